"""Llama and the families that differ in a few fields: Mistral, Qwen2 (biases on q, k, v), Qwen3 (normed heads)."""

from __future__ import annotations

from typing import TypeVar

from dovetail.checkpoints.attention import read_attention
from dovetail.checkpoints.fields import Fields
from dovetail.engine.config.base import TargetConfig, common, mlp_tensors, refuse


class LlamaConfig(TargetConfig, frozen=True, kw_only=True):
    """A decoder with grouped-query attention. `attention_bias`: whether q_proj, k_proj and v_proj have a bias."""

    num_key_value_heads: int
    head_dim: int
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
    """A Llama whose queries and keys are normed, head by head, before they are rotated."""

    def _layer_tensors(self, index: int, prefix: str) -> dict[str, tuple[int, ...]]:
        norms = {f"{prefix}self_attn.{part}_norm.weight": (self.head_dim,) for part in "qk"}
        return super()._layer_tensors(index, prefix) | norms


_C = TypeVar("_C", bound=LlamaConfig)


def llama_config(fields: Fields) -> LlamaConfig:
    """LlamaForCausalLM and MistralForCausalLM. Raises `CheckpointError`."""
    refuse(fields, sliding_window=None)
    bias = fields.flag("attention_bias")
    return _config(fields, LlamaConfig, attention_bias=bias, o_bias=bias)


def qwen2_config(fields: Fields) -> LlamaConfig:
    """Raises `CheckpointError`."""
    refuse(fields, use_sliding_window=False)
    return _config(fields, LlamaConfig, attention_bias=True, o_bias=False)


def qwen3_config(fields: Fields) -> Qwen3Config:
    """Raises `CheckpointError`."""
    refuse(fields, use_sliding_window=False)
    bias = fields.flag("attention_bias")
    return _config(fields, Qwen3Config, attention_bias=bias, o_bias=bias)


def _config(fields: Fields, kind: type[_C], *, attention_bias: bool, o_bias: bool) -> _C:
    refuse(fields, hidden_act="silu", mlp_bias=False, partial_rotary_factor=1.0, quantization_config=None)
    if others := sorted({repr(each) for each in fields.items("layer_types") or ()} - {"'full_attention'"}):
        raise fields.error(f"layer_types has {', '.join(others)}, only full_attention is supported")
    attention = read_attention(fields, fields.layers())
    if attention.kind in ("mla", "compressed"):
        raise fields.error(f"the attention is {attention.word}, which this architecture does not have")
    if attention.head_dim % 2:
        raise fields.error(f"head_dim is {attention.head_dim}, which must be even")
    return kind(
        **common(fields),
        num_attention_heads=attention.heads,
        num_key_value_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        attention_bias=attention_bias,
        o_bias=o_bias,
    )
