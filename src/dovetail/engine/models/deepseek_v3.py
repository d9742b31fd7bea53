"""DeepSeek-V3 and Kimi-K2: multi-head latent attention, mixture of experts, YaRN. The contract is in base.py.

Weights are rearranged once, at load: products that share an input are one product, kv_b_proj is split into the parts
that are absorbed or written to the cache, the softmax scale is folded into the query projection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.engine.attention.gqa import HeadCache
from dovetail.engine.attention.mla import LatentCache
from dovetail.engine.config import TargetConfig
from dovetail.engine.linear import Linear
from dovetail.engine.models.base import ForwardBatch
from dovetail.engine.models.layers import MLP, RMSNorm, rotary_table, rotate_, yarn_mscale
from dovetail.engine.models.moe import Expert, MoE, Router

# The two low-rank norms keep the architecture's own epsilon, whatever rms_norm_eps says (transformers'
# DeepseekV3RMSNorm).
_LOW_RANK_EPS = 1e-6


def expands(config: TargetConfig) -> bool:
    """Whether the cache holds each head's keys and values instead of the latent they are made from.

    A decode step reads a latent twice (scores, then values): 2 * kv_lora_rank + rope numbers a token. Real models have
    so many heads that expanded keys and values are 20 times that. A model with a few narrow heads and kv_lora_rank 512
    (which other engines' kernels insist on) is the other way round: 4 heads of 96 and 32 read half as much expanded,
    and multiply an eighth: 4 queries on 800 rows take some 45 us a layer against 315 us absorbed.
    """
    expanded = config.num_attention_heads * (config.qk_head_dim + config.v_head_dim)
    return expanded <= 2 * config.kv_lora_rank + config.qk_rope_head_dim


def cache_width(config: TargetConfig) -> int:
    """Numbers cached per token and layer."""
    if expands(config):
        return config.num_attention_heads * (config.qk_head_dim + config.v_head_dim)
    return config.kv_lora_rank + config.qk_rope_head_dim


class Attention:
    """MLA of one layer, from normed hidden states to the residual stream."""

    def __init__(self, weights: Mapping[str, Tensor], config: TargetConfig, rows: int, dtype: torch.dtype) -> None:
        heads, nope, rope = config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
        self._heads, self._nope = heads, nope
        self._rank = config.kv_lora_rank
        scale = config.qk_head_dim**-0.5
        yarn = config.rope.yarn
        if yarn is not None and yarn.mscale_all_dim:
            scale *= yarn_mscale(yarn.factor, yarn.mscale_all_dim) ** 2
        kv_a = weights["kv_a_proj_with_mqa.weight"]
        if config.q_lora_rank is None:
            first = weights["q_proj.weight"] * scale
        else:
            first = weights["q_a_proj.weight"]
            self._q_norm = RMSNorm(weights["q_a_layernorm.weight"].to(dtype), _LOW_RANK_EPS)
            self._q_b = Linear((weights["q_b_proj.weight"] * scale).to(dtype))
        self._low_rank = config.q_lora_rank is not None
        self._query_width = first.shape[0]
        self._a = Linear(torch.cat((first, kv_a)).to(dtype))
        self._kv_norm = RMSNorm(weights["kv_a_layernorm.weight"].to(dtype), _LOW_RANK_EPS)
        self._o = Linear(weights["o_proj.weight"].to(dtype))
        self._latent: LatentCache | None = None
        if expands(config):
            self._kv_b = Linear(weights["kv_b_proj.weight"].to(dtype))
            self._cache = HeadCache(heads, nope + rope, config.v_head_dim, rows, dtype)
        else:
            kv_b = weights["kv_b_proj.weight"].view(heads, nope + config.v_head_dim, self._rank).to(dtype)
            self._latent = LatentCache(kv_b[:, :nope].contiguous(), kv_b[:, nope:].mT.contiguous(), rope, rows)

    def add(self, batch: ForwardBatch, x: Tensor, table: Tensor, residual: Tensor) -> Tensor:
        """``residual + attention(x)``; `table` holds the batch's rotations, [tokens, 1, rope / 2]."""
        tokens = x.shape[0]
        a = self._a(x)
        queries, latent = a[:, : self._query_width], a[:, self._query_width :]
        if self._low_rank:
            queries = self._q_b(self._q_norm(queries))
        queries = queries.view(tokens, self._heads, -1)
        rotate_(queries[..., self._nope :], table)
        rotary = rotate_(latent[:, self._rank :].view(tokens, 1, -1), table)
        compressed = self._kv_norm(latent[:, : self._rank])
        if self._latent is not None:
            mixed = self._latent.attend(batch, queries, torch.cat((compressed, rotary.view(tokens, -1)), -1))
        else:
            expanded = self._kv_b(compressed).view(tokens, self._heads, -1)
            keys = torch.cat((expanded[..., : self._nope], rotary.expand(-1, self._heads, -1)), -1)
            mixed = self._cache.attend(batch, queries, keys, expanded[..., self._nope :])
        return self._o(mixed).add_(residual)


class DeepseekV3:
    """The target. `rows` is the size of every layer's cache in tokens, `context` the highest position plus one."""

    def __init__(
        self,
        config: TargetConfig,
        weights: Mapping[str, Tensor],
        *,
        rows: int,
        context: int,
        dtype: torch.dtype,
        aux_layers: Sequence[int],
    ) -> None:
        self.vocab_size = config.vocab_size
        self.embed_tokens = weights["model.embed_tokens.weight"].to(dtype)
        self._aux_layers = tuple(aux_layers)
        self._table = rotary_table(config.rope, config.qk_rope_head_dim, context)
        self._layers = [_layer(i, config, weights, rows, dtype) for i in range(config.num_hidden_layers)]
        self._norm = RMSNorm(weights["model.norm.weight"].to(dtype), config.rms_norm_eps)
        tied = config.tie_word_embeddings
        self._lm_head = Linear(weights["model.embed_tokens.weight" if tied else "lm_head.weight"].to(dtype))

    def forward(self, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        table = self._table[batch.positions].unsqueeze(1)
        stream = F.embedding(batch.tokens, self.embed_tokens)
        entering = [stream]
        for input_norm, attention, post_norm, mlp in self._layers:
            stream = attention.add(batch, input_norm(stream), table, stream)
            stream = mlp.add(post_norm(stream), stream)
            entering.append(stream)
        aux = torch.cat([entering[i] for i in self._aux_layers], -1) if self._aux_layers else None
        return self._norm(stream), aux

    def logits(self, hidden: Tensor) -> Tensor:
        return self._lm_head(hidden).float()


def _layer(
    index: int, config: TargetConfig, weights: Mapping[str, Tensor], rows: int, dtype: torch.dtype
) -> tuple[RMSNorm, Attention, RMSNorm, MLP | MoE]:
    prefix = f"model.layers.{index}."
    own = {name.removeprefix(prefix): tensor.float() for name, tensor in weights.items() if name.startswith(prefix)}
    attention = {name.removeprefix("self_attn."): t for name, t in own.items() if name.startswith("self_attn.")}
    return (
        RMSNorm(own["input_layernorm.weight"].to(dtype), config.rms_norm_eps),
        Attention(attention, config, rows, dtype),
        RMSNorm(own["post_attention_layernorm.weight"].to(dtype), config.rms_norm_eps),
        MLP(*_expert(own, "mlp.", dtype)) if index < config.first_k_dense_replace else _moe(own, config, dtype),
    )


def _moe(own: Mapping[str, Tensor], config: TargetConfig, dtype: torch.dtype) -> MoE:
    router = Router(own["mlp.gate.weight"], own["mlp.gate.e_score_correction_bias"], config)
    scale = config.routed_scaling_factor
    routed = [_expert(own, f"mlp.experts.{e}.", dtype, scale) for e in range(config.n_routed_experts)]
    return MoE(router, routed, _expert(own, "mlp.shared_experts.", dtype))


def _expert(own: Mapping[str, Tensor], prefix: str, dtype: torch.dtype, scale: float = 1.0) -> Expert:
    gate, up, down = (own[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down"))
    return Expert(gate.to(dtype), up.to(dtype), (down * scale).to(dtype))
