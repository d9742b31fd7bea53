"""Llama, and what differs from it by a few fields: Mistral, Qwen2 (biases on q, k, v), Qwen3 (normed heads)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from dovetail.engine.config.base import Size, TargetConfig, convert, field, mlp_tensors, only
from dovetail.errors import CheckpointError


class LlamaConfig(TargetConfig, frozen=True, kw_only=True):
    """`attention_bias` is on q_proj, k_proj and v_proj; o_proj has one where `o_bias`."""

    num_key_value_heads: Size
    head_dim: Size
    attention_bias: bool = False
    o_bias: bool = False

    @property
    def cache_width(self) -> int:
        return 2 * self.num_key_value_heads * self.head_dim

    @property
    def rotary_width(self) -> int:
        return self.head_dim

    def _layer_tensors(self, index: int, prefix: str) -> dict[str, tuple[int, ...]]:
        hidden, attention = self.hidden_size, prefix + "self_attn."
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            attention + "q_proj.weight": (queries, hidden),
            attention + "k_proj.weight": (keys, hidden),
            attention + "v_proj.weight": (keys, hidden),
            attention + "o_proj.weight": (hidden, queries),
        }
        if self.attention_bias:
            shapes |= {
                attention + f"{part}_proj.bias": (rows,)
                for part, rows in zip("qkv", (queries, keys, keys), strict=True)
            }
        if self.o_bias:
            shapes[attention + "o_proj.bias"] = (hidden,)
        return shapes | mlp_tensors(prefix + "mlp.", hidden, self.intermediate_size)


class Qwen3Config(LlamaConfig, frozen=True, kw_only=True):
    """Queries and keys of each head are normed before they are rotated."""

    def _layer_tensors(self, index: int, prefix: str) -> dict[str, tuple[int, ...]]:
        norms = {f"{prefix}self_attn.{part}_norm.weight": (self.head_dim,) for part in "qk"}
        return super()._layer_tensors(index, prefix) | norms


_C = TypeVar("_C", bound=LlamaConfig)


def llama_config(raw: Mapping[str, Any], path: Path) -> LlamaConfig:
    """LlamaForCausalLM and MistralForCausalLM. Raises `CheckpointError`."""
    only(raw, path, sliding_window=None)
    return _checked(raw, path, LlamaConfig, o_bias=raw.get("attention_bias"))


def qwen2_config(raw: Mapping[str, Any], path: Path) -> LlamaConfig:
    """Raises `CheckpointError`."""
    only(raw, path, use_sliding_window=False)
    return _checked(raw, path, LlamaConfig, attention_bias=True, o_bias=False)


def qwen3_config(raw: Mapping[str, Any], path: Path) -> Qwen3Config:
    """Raises `CheckpointError`."""
    only(raw, path, use_sliding_window=False)
    return _checked({"head_dim": 128, **raw}, path, Qwen3Config, o_bias=raw.get("attention_bias"))


def _checked(raw: Mapping[str, Any], path: Path, kind: type[_C], **fixed: object) -> _C:
    only(raw, path, hidden_act="silu", mlp_bias=False, partial_rotary_factor=1.0, quantization_config=None)
    if others := set(field(raw, "layer_types", list, path)) - {"full_attention"}:
        raise CheckpointError(f"{path}: layer_types has {sorted(map(repr, others))}, only full_attention is supported")
    hidden, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    derived = {"num_key_value_heads": heads}
    if raw.get("head_dim") is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        derived["head_dim"] = hidden // heads
    given = {name: value for name, value in raw.items() if value is not None}
    config = convert(derived | given | fixed, path, kind)
    if config.num_attention_heads % config.num_key_value_heads or config.head_dim % 2:
        raise CheckpointError(
            f"{path}: num_attention_heads {config.num_attention_heads} cannot share num_key_value_heads "
            f"{config.num_key_value_heads} of head_dim {config.head_dim}, which must be even"
        )
    return config
