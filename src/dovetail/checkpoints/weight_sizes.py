"""What a model weighs: parameters counted from its shape, bytes from its files or else from the count."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from dovetail.checkpoints.attention import Attention
from dovetail.checkpoints.experts import Experts
from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.gguf.header import TYPES
from dovetail.checkpoints.quantization import Quantization
from dovetail.checkpoints.tensor_files import Stored

_DTYPE_BITS: dict[str, float] = {kind.name: 8 * kind.size / kind.block for kind in TYPES.values()}
_DTYPE_BITS |= {"float32": 32, "bfloat16": 16, "float16": 16}


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by how a parallel engine divides them.

    Tensor parallelism divides `divided` and the vocabulary (`embedding`, `head`). Data parallelism divides `experts`
    too. Every GPU holds `whole`. `mtp` is loaded only for drafting; `vision` is not loaded when only text is served.
    """

    divided: int = 0
    experts: int = 0
    whole: int = 0
    embedding: int = 0
    head: int = 0
    vision: int = 0
    mtp: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in self.__struct_fields__)


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a model. `source` says where `bytes` comes from; "shape" means that it is `estimate`.

    `estimate` is the parameters times their bits, `active` the parameters that one token uses.
    """

    bytes: int
    estimate: int
    source: Literal["index", "files", "shape"]
    parameters: int
    active: int
    parts: Parts


class Part(NamedTuple):
    """Some parameters, the bits of each, and how many of them one token uses."""

    name: str
    parameters: int
    bits: float
    active: int


def weight_dtype(*fields: Fields) -> str:
    """The type of unquantized weights: the first that `fields` declare, else "bfloat16", as most checkpoints have."""
    for each in fields:
        word = each.text("dtype", "torch_dtype")
        if word:
            return word.removeprefix("torch.")
    return "bfloat16"


def dtype_bits(dtype: str) -> float:
    """The bits of a number of this type, among them the quantized ones of GGUF files."""
    return _DTYPE_BITS.get(dtype, 16)


def weigh(parts: list[Part], stored: Stored) -> Weights:
    """Scales the parts so that their sum is the stored size, since a shape gives shares better than totals."""
    counted = sum(part.parameters * part.bits / 8 for part in parts)
    total, source = stored.bytes, stored.source
    if total is None or source is None:
        total, source = round(counted), None
    scale = total / counted if counted else 0.0
    sizes: dict[str, int] = {}
    for part in parts:
        sizes[part.name] = sizes.get(part.name, 0) + round(part.parameters * part.bits / 8 * scale)
    return Weights(
        bytes=total,
        estimate=round(counted),
        source=source or "shape",
        # Published counts leave out MTP layers and vision encoders (DeepSeek-V3: 671B, 37B active).
        parameters=sum(part.parameters for part in parts if part.name not in ("mtp", "vision")),
        active=sum(part.active for part in parts),
        parts=Parts(**sizes),
    )


def weigh_target(
    fields: Fields,
    attention: Attention,
    experts: Experts | None,
    quantization: Quantization | None,
    *,
    layers: int,
    mtp_layers: int,
    vision: Fields | None,
    unquantized_bits: float,
    tied: bool,
    stored: Stored,
) -> Weights:
    """The size of a target. As published, Kimi-K2.5 has 1.03T and 32B active, DeepSeek-V3.2 672B and 37B."""
    hidden, vocabulary = fields.hidden(), fields.size("vocab_size")

    def bits(module: str) -> float:
        return quantization.bits_of(module, unquantized_bits) if quantization else float(unquantized_bits)

    # A layer in the middle represents all of its kind: configs exclude only the first and last few by number.
    layer = f"model.layers.{layers // 2}."
    expert_bits = bits(layer + "mlp.experts.0.down_proj")
    divided, whole = attention.parameters(hidden)
    full = layers - attention.linear_layers
    linear = attention.linear_layers * _linear_parameters(fields, hidden)
    dense = 3 * hidden * (fields.number("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size") or 4 * hidden)
    dense_layers = layers - (experts.layers if experts else 0)
    attention_bits = bits(layer + "self_attn.o_proj")
    parts = [
        Part("embedding", vocabulary * hidden, unquantized_bits, 0),
        Part("head", 0 if tied else vocabulary * hidden, unquantized_bits, vocabulary * hidden),
        Part("divided", full * divided + linear, attention_bits, full * divided + linear),
        Part("whole", full * whole, attention_bits, full * whole),
        Part("divided", dense_layers * dense, bits("model.layers.0.mlp.down_proj"), dense_layers * dense),
    ]
    if experts:
        shared_bits = bits(layer + "mlp.shared_experts.down_proj")
        parts += _expert_parts(experts, hidden, expert_bits, shared_bits, unquantized_bits)
    if mtp_layers:
        feed_forward = experts.routed * 3 * hidden * experts.width if experts else dense
        # An MTP layer has a decoder layer, a projection of two vectors into one, and copies of embedding and head.
        parts.append(Part("mtp", mtp_layers * (divided + whole + feed_forward), expert_bits, 0))
        parts.append(Part("mtp", mtp_layers * (2 * hidden + 2 * vocabulary) * hidden, unquantized_bits, 0))
    if vision is not None:
        parts.append(Part("vision", _vision_parameters(vision, hidden), unquantized_bits, 0))
    return weigh(parts, stored)


def _expert_parts(
    experts: Experts, hidden: int, expert_bits: float, shared_bits: float, router_bits: float
) -> list[Part]:
    expert = experts.layers * 3 * hidden * experts.width
    shared = experts.layers * 3 * hidden * experts.shared_width
    router = experts.layers * experts.routed * hidden
    return [
        Part("experts", experts.routed * expert, expert_bits, experts.active * expert),
        Part("divided", shared, shared_bits, shared),
        Part("whole", router, router_bits, router),
    ]


def _linear_parameters(fields: Fields, hidden: int) -> int:
    """Roughly the parameters of one linear-attention layer: projections of queries, keys, values, gate and output."""
    block = fields.block("linear_attn_config") or fields
    heads = block.number("linear_num_value_heads", "num_heads")
    width = block.number("linear_value_head_dim", "head_dim")
    values = heads * width if heads and width else hidden
    return 5 * hidden * values


def _vision_parameters(vision: Fields, hidden: int) -> int:
    """Roughly the parameters of a vision encoder: its layers and a projector of four patches into one token."""
    width = vision.number("vt_hidden_size", "hidden_size", "embed_dim", "width") or 0
    depth = vision.number("vt_num_hidden_layers", "num_hidden_layers", "depth", "layers") or 0
    inner = vision.number("vt_intermediate_size", "intermediate_size") or 4 * width
    return depth * (4 * width + 2 * inner) * width + 4 * width * (4 * width + hidden)
