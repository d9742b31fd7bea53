"""What every architecture's config has, and how a config that the engine cannot run is refused."""

from __future__ import annotations

from typing import Any

import msgspec

from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.positions import Rope, context_length, read_rope, rope_block


class TargetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all architectures have. `cache_width`: numbers that each layer caches per token. `rotary_width`:
    numbers of a head that carry its position.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    rope: Rope
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False

    @property
    def cache_width(self) -> int:
        raise NotImplementedError

    @property
    def latent_widths(self) -> tuple[int, int] | None:
        """How many numbers of a token's latent are compressed and how many are rotated; None without latents."""
        return None

    @property
    def rotary_width(self) -> int:
        raise NotImplementedError

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the model."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size),
            "model.norm.weight": (self.hidden_size,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        for i in range(self.num_hidden_layers):
            layer = f"model.layers.{i}."
            shapes[layer + "input_layernorm.weight"] = (self.hidden_size,)
            shapes[layer + "post_attention_layernorm.weight"] = (self.hidden_size,)
            shapes |= self._layer_tensors(i, layer)
        return shapes

    def _layer_tensors(self, index: int, prefix: str) -> dict[str, tuple[int, ...]]:
        """The tensors of attention and MLP of layer `index`, whose names start with `prefix`."""
        raise NotImplementedError


def common(fields: Fields) -> dict[str, Any]:
    """The fields of `TargetConfig` but `num_attention_heads`. Raises `CheckpointError`."""
    rope = read_rope(fields)
    _check_rope(rope, fields)
    context = context_length(fields, rope)
    if context is None:
        raise fields.error("max_position_embeddings is missing, so the longest context is unknown")
    return {
        "vocab_size": fields.size("vocab_size"),
        "hidden_size": fields.hidden(),
        "intermediate_size": fields.size("intermediate_size"),
        "num_hidden_layers": fields.layers(),
        "max_position_embeddings": context,
        "rope": rope,
        "rms_norm_eps": fields.positive("rms_norm_eps") or 1e-6,
        "tie_word_embeddings": fields.flag("tie_word_embeddings"),
    }


def refuse(fields: Fields, **supported: object) -> None:
    """Raises `CheckpointError` for a field that has another value than the supported one. Absent fields are fine."""
    for name, value in supported.items():
        declared = fields.raw.get(name)
        if declared is not None and declared != value:
            shown = "set" if isinstance(declared, dict) else repr(declared)
            raise fields.error(f"{name} is {shown}, which the embedded engine does not support")


def _check_rope(rope: Rope, fields: Fields) -> None:
    refuse(rope_block(fields), partial_rotary_factor=1.0)
    if rope.type == "default" or rope.scaling is not None:
        return
    required = {
        "linear": "factor",
        "llama3": "factor, low_freq_factor, high_freq_factor and original_max_position_embeddings",
        "yarn": "factor and original_max_position_embeddings",
    }
    if rope.type in required:
        raise fields.error(f"rope type {rope.type!r} needs {required[rope.type]}")
    raise fields.error(f"rope type {rope.type!r} is not supported, only default, {', '.join(required)}")


def mlp_tensors(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        prefix + "gate_proj.weight": (width, hidden),
        prefix + "up_proj.weight": (width, hidden),
        prefix + "down_proj.weight": (hidden, width),
    }
