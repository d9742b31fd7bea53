"""Llama, Mistral, Qwen2 and Qwen3: grouped queries and a gated MLP. The contract is in base.py.

As in deepseek_v3.py weights are rearranged once, at load: q, k and v are one product, and heads are reordered so that
the dimensions that rotate together are neighbours. The softmax scale is folded into the norm of the queries in Qwen3.
Elsewhere it multiplies the queries: folded into their weights, it would leave them no numbers of 16 bits (linear.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from dovetail.engine.attention.gqa import HeadCache
from dovetail.engine.config import LlamaConfig, Qwen3Config
from dovetail.engine.models.base import ForwardBatch
from dovetail.engine.models.decoder import Layer
from dovetail.engine.models.layers import MLP, Options, Prefixed, RMSNorm, interleave, rotate_


class Attention:
    """Grouped-query attention of one layer, from normed hidden states to the residual stream."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        config: LlamaConfig,
        rows: int,
        dtype: torch.dtype,
        options: Options,
    ) -> None:
        heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self._heads, self._kv_heads, self._width = heads, kv_heads, width
        normed = isinstance(config, Qwen3Config)
        self._scale = scale = width**-0.5
        self._norms: tuple[RMSNorm, RMSNorm] | None = None
        if normed:
            q_norm, k_norm = (interleave(weights[f"{part}_norm.weight"], 1) for part in "qk")
            self._norms = (
                RMSNorm((q_norm * scale).to(dtype), config.rms_norm_eps),
                RMSNorm(k_norm.to(dtype), config.rms_norm_eps),
            )

        def joined(kind: str) -> Tensor:
            q, k, v = (weights[f"{part}_proj.{kind}"] for part in "qkv")
            return torch.cat((interleave(q, heads), interleave(k, kv_heads), v)).to(dtype)

        bias = joined("bias") if config.attention_bias else None
        self._qkv = options.linear(joined("weight"), bias)
        o_bias = weights["o_proj.bias"].to(dtype) if config.o_bias else None
        if o_bias is not None and options.ranks is not None:
            o_bias = options.ranks.tensor.once(o_bias)
        self._o = options.linear(weights["o_proj.weight"].to(dtype), o_bias)
        self._cache = HeadCache(kv_heads, width, width, rows, options.cache_dtype(dtype), options.attention_backend)

    def add(self, batch: ForwardBatch, x: Tensor, table: Tensor, residual: Tensor) -> Tensor:
        """``residual + attention(x)``; `table` holds the batch's rotations, [tokens, 1, head_dim / 2]."""
        qkv = self._qkv(x).view(x.shape[0], -1, self._width)
        queries, keys, values = qkv.split_with_sizes([self._heads, self._kv_heads, self._kv_heads], 1)
        if self._norms is None:
            queries.mul_(self._scale)
        else:
            for norm, part in zip(self._norms, (queries, keys), strict=True):
                part.copy_(norm(part))
        rotate_(qkv[:, : self._heads + self._kv_heads], table)
        mixed = self._cache.attend(batch, queries, keys, values)
        return self._o(mixed).add_(residual)


def layers(
    config: LlamaConfig, weights: Mapping[str, Tensor], rows: int, dtype: torch.dtype, options: Options
) -> Iterator[Layer]:
    """The target's layers, one after the other. `rows`: the size of each layer's cache in tokens."""
    for i in range(config.num_hidden_layers):
        yield load_layer(Prefixed(weights, f"model.layers.{i}."), config, rows, dtype, options)


def load_layer(
    own: Mapping[str, Tensor], config: LlamaConfig, rows: int, dtype: torch.dtype, options: Options
) -> Layer:
    """The layer whose weights are `own`, without a prefix."""
    gate, up, down = (own[f"mlp.{part}_proj.weight"].to(dtype) for part in ("gate", "up", "down"))
    return (
        RMSNorm(own["input_layernorm.weight"].to(dtype), config.rms_norm_eps),
        Attention(Prefixed(own, "self_attn."), config, rows, dtype, options),
        RMSNorm(own["post_attention_layernorm.weight"].to(dtype), config.rms_norm_eps),
        MLP(gate, up, down, options),
    )
