"""A transformer's shape as its config.json gives it: attention, experts, positions, quantization, and what they weigh.

Targets and drafters are read by the same words. Families call one thing by several names; all of them are read here.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec

from dovetail.errors import CheckpointError
from dovetail.plan import pattern

_LARGEST = 2**40  # anything above is a slip of the pen, and would be reckoned with for ever
_MOST_LAYERS = 4096
#: Modules that a config leaves unquantized, those of them with wildcards, characters of all its regular expressions.
_MOST_IGNORED, _MOST_WILD, _MOST_EXPRESSED = 100_000, 10_000, 2000
_DTYPES = {"float32": 32, "bfloat16": 16, "float16": 16}


class Fields:
    """The fields of one config. `where` begins every error, which names the field."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def number(self, *names: str) -> int | None:
        """The first of `names` that is there and not null, as a whole number."""
        for name in names:
            value = self.raw.get(name)
            if value is not None:
                if type(value) is not int or not 0 <= value < _LARGEST:
                    raise CheckpointError(f"{self.where}: {name} must be a whole number, found {value!r:.80}")
                return value
        return None

    def size(self, *names: str) -> int:
        """The same, but one of them must be there and above zero."""
        value = self.number(*names)
        if not value:
            said = "is 0" if value == 0 else "is not there"
            raise CheckpointError(
                f"{self.where}: {names[0]} {said}, and without it the model's shape is unknown: the config.json must "
                "say it"
            )
        return value

    def real(self, *names: str) -> float | None:
        for name in names:
            value = self.raw.get(name)
            if value is not None:
                if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < _LARGEST:
                    raise CheckpointError(f"{self.where}: {name} must be a number, found {value!r:.80}")
                return float(value)
        return None

    def text(self, *names: str) -> str | None:
        value: str | None = self._kind(str, "text", names)
        return value

    def flag(self, *names: str) -> bool:
        return bool(self._kind(bool, "true or false", names))

    def block(self, *names: str) -> Fields | None:
        """The object under one of `names`, as fields of its own."""
        value: dict[str, Any] | None = self._kind(dict, "an object", names)
        if value is None:
            return None
        name = next(name for name in names if self.raw.get(name) is value)
        return Fields(value, f"{self.where}: {name}")

    def items(self, *names: str) -> list[Any] | None:
        value: list[Any] | None = self._kind(list, "a list", names)
        return value

    def numbers(self, *names: str) -> tuple[int, ...] | None:
        items = self.items(*names)
        if items is None:
            return None
        if not all(type(item) is int and abs(item) < _LARGEST for item in items):
            raise CheckpointError(f"{self.where}: {names[0]} must be a list of whole numbers, found {items!r:.80}")
        return tuple(items)

    def _kind(self, kind: type[Any], called: str, names: tuple[str, ...]) -> Any:
        for name in names:
            value = self.raw.get(name)
            if value is not None:
                if not isinstance(value, kind):
                    raise CheckpointError(f"{self.where}: {name} must be {called}, found {value!r:.80}")
                return value
        return None


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary positions. `factor` stretches `original` positions, where it is said."""

    type: str
    theta: float | None = None
    factor: float | None = None
    original: int | None = None
    mrope: bool = False


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's attention, and how many layers are of another kind. Widths are in elements.

    `kind` is that of the layers whose cache grows with every token. MLA keeps `kv_lora_rank` + `rope_dim` elements per
    token, whatever the heads (DeepSeek-V2, https://arxiv.org/abs/2405.04434); `index_dim` is the width of the keys by
    which DeepSeek-V3.2's sparse attention chooses. "compressed" is DeepSeek-V4's, whose cache is not reckoned here.
    """

    kind: Literal["mla", "gqa", "mqa", "mha", "compressed"]
    heads: int
    kv_heads: int
    head_dim: int
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    rope_dim: int | None = None
    nope_dim: int | None = None
    value_dim: int | None = None
    index_dim: int | None = None
    index_heads: int = 0
    window: int | None = None
    windowed_layers: int = 0
    linear_layers: int = 0

    @property
    def word(self) -> str:
        """As one says it: "mla", "gqa", "hybrid (36 linear layers, gqa)"."""
        if self.linear_layers:
            return f"hybrid ({self.linear_layers} linear layers, {self.kind})"
        if self.windowed_layers:
            return f"{self.kind}, {self.windowed_layers} layers with a window of {self.window}"
        return f"{self.kind}, sparse" if self.index_dim else self.kind

    def parameters(self, hidden: int, width: int | None = None) -> tuple[int, int]:
        """Of one layer: those that tensor parallelism divides, and those that every GPU has whole.

        `width` is what the projections read, where that is not `hidden` (an EAGLE-3 layer reads two vectors). Latent
        down-projections and the indexer are not divided (vLLM 0.33, models/deepseek_v2.py: ReplicatedLinear).
        """
        width = width or hidden
        if self.kind == "mla":
            rank, rope = self.kv_lora_rank or 0, self.rope_dim or 0
            keys, values = self.head_dim, self.value_dim or self.head_dim
            latent = width * (rank + rope) + width * (self.q_lora_rank or 0)
            index_input = self.q_lora_rank or width
            latent += (self.index_dim or 0) * (width + index_input * self.index_heads) + width * self.index_heads
            up = (self.q_lora_rank or width) * self.heads * keys
            up += rank * self.heads * (max(keys - rope, 0) + values)
            return up + self.heads * values * hidden, latent
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return width * (queries + 2 * keys) + queries * hidden, 0


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts: `routed` per layer, of which a token goes through `active`, and `shared` beside them.

    `width` is one routed expert's, `shared_width` that of all shared ones together; `layers` have experts, the others
    a dense feed-forward.
    """

    routed: int
    active: int
    width: int
    layers: int
    shared: int = 0
    shared_width: int = 0


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """How weights are stored. `kind` is the plain word (int4, fp8, nvfp4, mxfp4, int8), `method` the config's own.

    `block` are the rows and columns of weights that share a scale, of which a shard must hold whole ones; `group` the
    columns of a group. `ignored` names modules, with regular expressions after ``re:`` (compressed-tensors) and
    wildcards (ModelOpt), that are not quantized.
    """

    method: str
    kind: str
    bits: int
    group: int | None = None
    block: tuple[int, ...] | None = None
    ignored: tuple[str, ...] = ()
    kv_cache: str | None = None

    def covers(self, module: str) -> bool:
        parts = module.split(".")
        names = {".".join(parts[: i + 1]) for i in range(len(parts))}
        return names.isdisjoint(self.ignored) and not any(_matches(each, module) for each in _patterns(self.ignored))

    def bits_of(self, module: str, plain: float) -> float:
        """Bits per weight of a module, its scales included; `plain` is what an ignored one has."""
        if not self.covers(module):
            return plain
        # 16-bit scales for int4, 8-bit ones for the FP4 kinds; scales of whole blocks are too few to count.
        scale = {"nvfp4": 8, "mxfp4": 8, "int4": 16}.get(self.kind, 0)
        return self.bits + (scale / self.group if self.group and scale else 0)


_wild = re.compile(r"[*?\[]").search


@lru_cache(maxsize=8)
def _patterns(ignored: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are no plain names. They are few, and asked for again and again."""
    return tuple(each for each in ignored if each.startswith("re:") or _wild(each))


def _matches(ignored: str, module: str) -> bool:
    if ignored.startswith("re:"):
        return pattern.matches(ignored[3:], module)
    return fnmatch.fnmatchcase(module, ignored)


def _ignored(fields: Fields) -> tuple[str, ...]:
    """Names and patterns of modules, all of which can be matched, and in a short time."""
    names = ("ignore", "exclude_modules", "modules_to_not_convert")
    found = tuple(dict.fromkeys(str(each) for name in names for each in fields.items(name) or ()))
    expressions = [each[3:] for each in found if each.startswith("re:")]
    wild = [each for each in found if _wild(each) and not each.startswith("re:")]
    for what, size, most in (
        ("modules", len(found), _MOST_IGNORED),
        ("modules with wildcards", len(wild), _MOST_WILD),
        ("characters in one of them", max(map(len, found), default=0), _MOST_EXPRESSED),
        ("characters of regular expressions", sum(map(len, expressions)), _MOST_EXPRESSED),
    ):
        if size > most:
            raise CheckpointError(f"{fields.where}: ignore has {size} {what}, at most {most} are read")
    for each in expressions:
        try:
            pattern.compiled(each)
        except pattern.UnreadPattern as error:
            raise CheckpointError(f"{fields.where}: ignore has the regular expression {each!r:.80}: {error}") from error
    return found


def layers(fields: Fields) -> int:
    count = fields.size("num_hidden_layers", "n_layer", "num_layers")
    if count > _MOST_LAYERS:
        raise CheckpointError(f"{fields.where}: num_hidden_layers {count} is no model's")
    return count


def dtype(*fields: Fields) -> str:
    """What unquantized weights are in: "bfloat16" where none of `fields` says, as checkpoints are today."""
    for each in fields:
        word = each.text("dtype", "torch_dtype")
        if word:
            return word.removeprefix("torch.")
    return "bfloat16"


def bits(dtype: str) -> int:
    return _DTYPES.get(dtype, 16)


def rope(fields: Fields) -> Rope:
    """Both spellings: rope_theta with rope_scaling (checkpoints so far), and rope_parameters (transformers 5)."""
    said = fields.block("rope_parameters", "rope_scaling") or Fields({}, fields.where)
    # Where layers of different kinds have ropes of their own, the full ones decide how far the model can look.
    said = said.block("full_attention") or said
    kind = said.text("rope_type", "type") or "default"
    factor = said.real("factor")
    if factor is not None and factor <= 0:
        raise CheckpointError(f"{said.where}: factor must be above zero, found {factor:g}")
    return Rope(
        type=kind,
        theta=said.real("rope_theta") or fields.real("rope_theta"),
        factor=factor,
        original=said.number("original_max_position_embeddings"),
        mrope=kind == "mrope" or said.raw.get("mrope_section") is not None,
    )


#: Rope types under which max_position_embeddings counts the tokens after scaling (vLLM 0.33, config/model.py).
_SCALED = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope")


def context(fields: Fields, rope: Rope) -> int | None:
    """The longest sequence in tokens: max_position_embeddings, times the factor of a rope that counts before scaling.

    YaRN configs (Kimi, DeepSeek) hold the number after scaling: 262,144 is 64 × 4,096, not to be multiplied again.
    """
    positions = fields.number(
        "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "model_max_length"
    )
    if not positions:
        return None
    if rope.type in _SCALED or not rope.factor:
        return positions
    if not 1 <= positions * rope.factor < _LARGEST:
        raise CheckpointError(
            f"{fields.where}: the rope's factor {rope.factor:g} makes {positions * rope.factor:g} of {positions} "
            "positions, which is no context"
        )
    return int(positions * rope.factor)


def attention(fields: Fields, count: int) -> Attention:
    """The attention of a model of `count` layers. Which layers are linear or windowed, families say in many ways."""
    heads = fields.size("num_attention_heads", "n_head")
    hidden = fields.size("hidden_size", "n_embd", "d_model")
    kv_heads = fields.number("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups") or heads
    linear, windowed = _layer_kinds(fields, count)
    window = fields.number("sliding_window", "attention_chunk_size")
    rank = fields.number("kv_lora_rank")
    rest: dict[str, Any] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "linear_layers": linear,
        "windowed_layers": windowed if window else 0,
        "window": window if windowed else None,
    }
    if fields.raw.get("compress_ratios") or fields.raw.get("compress_rates"):
        return Attention(kind="compressed", head_dim=fields.size("head_dim"), **rest)
    if rank:
        rope_dim, nope = fields.number("qk_rope_head_dim") or 0, fields.size("qk_nope_head_dim")
        return Attention(
            kind="mla",
            head_dim=nope + rope_dim,
            q_lora_rank=fields.number("q_lora_rank") or None,
            kv_lora_rank=rank,
            rope_dim=rope_dim,
            nope_dim=nope,
            value_dim=fields.size("v_head_dim"),
            index_dim=fields.number("index_head_dim") if fields.number("index_topk") else None,
            index_heads=fields.number("index_n_heads") or 0,
            **rest,
        )
    if heads % kv_heads:
        raise CheckpointError(
            f"{fields.where}: num_key_value_heads is {kv_heads}, which does not divide the {heads} of "
            "num_attention_heads"
        )
    width = fields.number("head_dim", "kv_channels") or hidden // heads
    if not width:
        raise CheckpointError(
            f"{fields.where}: num_attention_heads is {heads} but hidden_size is {hidden}, which leaves nothing for each"
        )
    kind: Literal["mha", "mqa", "gqa"] = "mha" if kv_heads == heads else "mqa" if kv_heads == 1 else "gqa"
    return Attention(kind=kind, head_dim=width, **rest)


def _layer_kinds(fields: Fields, count: int) -> tuple[int, int]:
    """How many layers keep a state of fixed size (linear attention, convolution, Mamba), and how many a window."""
    kinds = fields.items("layer_types", "layers_block_type")
    if kinds is not None:
        _one_each(fields, "layer_types", len(kinds), count)
        windowed = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
        return sum(kind in ("linear_attention", "conv", "mamba", "recurrent") for kind in kinds), windowed
    linear = fields.block("linear_attn_config")  # Kimi Linear and K3
    if linear is not None:
        numbers = set(linear.numbers("kda_layers") or ())
        if len(numbers) > count:
            raise CheckpointError(f"{linear.where}: kda_layers has {len(numbers)} layers, num_hidden_layers is {count}")
        return len(numbers), 0
    letters = fields.text("hybrid_override_pattern")  # Nemotron-H: M a Mamba layer, - a feed-forward, * attention
    if letters is not None:
        _one_each(fields, "hybrid_override_pattern", len(letters), count)
        return sum(letter in "M-E" for letter in letters), 0
    every = fields.number("full_attention_interval")  # Qwen3-Next
    if every:
        return count - count // every, 0
    every = fields.number("sliding_window_pattern")  # Gemma 3
    if every:
        return 0, count - count // every
    return 0, 0


def _one_each(fields: Fields, name: str, entries: int, count: int) -> None:
    if entries != count:
        raise CheckpointError(f"{fields.where}: {name} has {entries} entries, num_hidden_layers is {count}")


def experts(fields: Fields, count: int) -> Experts | None:
    """The mixture of experts of a model of `count` layers, None for a dense one."""
    routed = fields.number("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    if not routed:
        return None
    width = fields.size("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    shared = fields.number("n_shared_experts", "num_shared_experts", "moe_num_shared_experts") or 0
    shared_width = fields.number("shared_expert_intermediate_size") or shared * width
    return Experts(
        routed=routed,
        active=fields.size("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "experts_per_token"),
        width=width,
        layers=_expert_layers(fields, count),
        shared=shared or (1 if shared_width else 0),
        shared_width=shared_width,
    )


def _expert_layers(fields: Fields, count: int) -> int:
    listed = fields.raw.get("moe_layer_freq")
    if isinstance(listed, list):
        _one_each(fields, "moe_layer_freq", len(listed), count)
        return sum(bool(each) for each in listed)
    first = fields.number("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index") or 0
    every = fields.number("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step") or 1
    dense = frozenset(fields.numbers("mlp_only_layers") or ())
    # decoder_sparse_step and interleave_moe_layer_step count from one, moe_layer_freq from zero.
    offset = 0 if fields.number("decoder_sparse_step", "interleave_moe_layer_step") is None else 1
    return sum((i + offset) % every == 0 and i not in dense for i in range(first, count))


def quantization(raw: Mapping[str, Any] | None, where: str) -> Quantization | None:
    """What a `quantization_config` (or ModelOpt's hf_quant_config.json) says of the stored weights."""
    if not raw:
        return None
    fields = Fields(raw, f"{where}: quantization_config")
    inner = fields.block("quantization")  # ModelOpt's own file
    if inner is not None:
        fields = inner
    method = (fields.text("quant_method") or ("modelopt" if inner is not None else "")).replace("_", "-").lower()
    algorithm = (fields.text("quant_algo") or "").upper()
    cache = fields.text("kv_cache_quant_algo") or ("fp8" if fields.raw.get("kv_cache_scheme") else None)
    rest = {"ignored": _ignored(fields), "kv_cache": cache.lower() if cache else None}
    if algorithm or method.startswith("modelopt"):
        stored = _modelopt(algorithm or method.upper(), fields)
    elif method == "compressed-tensors":
        stored = _compressed_tensors(fields)
    elif method in ("fp8", "fbgemm-fp8"):
        stored = Quantization(method=method, kind="fp8", bits=8, block=fields.numbers("weight_block_size"))
    elif method == "mxfp4":
        stored = Quantization(method=method, kind="mxfp4", bits=4, group=32)
    else:
        width = 4 if fields.flag("load_in_4bit") else fields.number("bits", "num_bits") or 8
        group = fields.number("group_size") if fields.raw.get("group_size") != -1 else None
        stored = Quantization(method=method or "unnamed", kind=f"int{width}", bits=width, group=group)
    return msgspec.structs.replace(stored, **rest)


def _modelopt(algorithm: str, fields: Fields) -> Quantization:
    for word, kind, width in (("NVFP4", "nvfp4", 4), ("FP4", "nvfp4", 4), ("W4A", "int4", 4), ("INT4", "int4", 4)):
        if word in algorithm:
            return Quantization(method="modelopt", kind=kind, bits=width, group=fields.number("group_size") or 16)
    return Quantization(method="modelopt", kind="fp8" if "FP8" in algorithm else algorithm.lower(), bits=8)


def _compressed_tensors(fields: Fields) -> Quantization:
    groups = fields.block("config_groups")
    first = next(iter(groups.raw), None) if groups is not None else None
    block = groups.block(first) if groups is not None and first is not None else None
    weights = block.block("weights") if block is not None else None
    if weights is None:
        raise CheckpointError(f"{fields.where}: compressed-tensors without config_groups says nothing of the weights")
    width = weights.number("num_bits") or 8
    kind = f"int{width}" if (weights.text("type") or "int") == "int" else f"fp{width}"
    layout = fields.text("format") or ""
    if kind == "fp4":
        kind = "mxfp4" if "mxfp4" in layout else "nvfp4"
    return Quantization(
        method="compressed-tensors",
        kind=kind,
        bits=width,
        group=weights.number("group_size"),
        block=weights.numbers("block_structure") if isinstance(weights.raw.get("block_structure"), list) else None,
    )
