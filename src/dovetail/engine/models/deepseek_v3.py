"""DeepSeek-V3 and Kimi-K2: multi-head latent attention, mixture of experts, YaRN. The contract is in base.py.

Weights are rearranged once, at load: products that share an input are one product, kv_b_proj is split into the parts
that are absorbed or written to the cache, the softmax scale is folded into the query projection.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from dovetail.checkpoints.positions import Yarn
from dovetail.checkpoints.tensor_files import CACHE_SCALES
from dovetail.engine.attention.gqa import HeadCache
from dovetail.engine.attention.latent_rows import latent_rows
from dovetail.engine.attention.mla import LatentCache
from dovetail.engine.attention.split_mla import SplitLatentCache
from dovetail.engine.config import DeepseekV3Config
from dovetail.engine.linear import Linear
from dovetail.engine.models.base import ForwardBatch
from dovetail.engine.models.decoder import Layer
from dovetail.engine.models.layers import MLP, Options, Prefixed, RMSNorm, rotate_, yarn_mscale
from dovetail.engine.models.moe import Expert, MoE, Router
from dovetail.engine.settings import FP8
from dovetail.errors import CheckpointError

# The two low-rank norms keep the architecture's own epsilon, whatever rms_norm_eps says (transformers'
# DeepseekV3RMSNorm).
_LOW_RANK_EPS = 1e-6


class Attention:
    """MLA of one layer, from normed hidden states to the residual stream."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        config: DeepseekV3Config,
        rows: int,
        dtype: torch.dtype,
        options: Options,
    ) -> None:
        def linear(weight: Tensor) -> Linear:
            return options.linear(weight.to(dtype))

        kv_dtype, backend = options.cache_dtype(dtype), options.attention_backend
        heads, nope, rope = config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
        self._heads, self._nope = heads, nope
        self._rank = config.kv_lora_rank
        scale = config.qk_head_dim**-0.5
        yarn = config.rope.scaling
        if isinstance(yarn, Yarn) and yarn.mscale_all_dim:
            scale *= yarn_mscale(yarn.factor, yarn.mscale_all_dim) ** 2
        kv_a = weights["kv_a_proj_with_mqa.weight"]
        if config.q_lora_rank is None:
            first = weights["q_proj.weight"] * scale
        else:
            first = weights["q_a_proj.weight"]
            self._q_norm = RMSNorm(weights["q_a_layernorm.weight"].to(dtype), _LOW_RANK_EPS)
            self._q_b = linear(weights["q_b_proj.weight"] * scale)
        self._low_rank = config.q_lora_rank is not None
        self._widths = [first.shape[0], config.kv_lora_rank, rope]
        self._a = linear(torch.cat((first, kv_a)))
        self._kv_norm = RMSNorm(weights["kv_a_layernorm.weight"].to(dtype), _LOW_RANK_EPS)
        self._o = linear(weights["o_proj.weight"])
        self._latent: LatentCache | SplitLatentCache | None = None
        context = None if options.ranks is None else options.ranks.context
        # FP8 caches and caches that ranks share store latents, even if keys and values of heads would be fewer numbers.
        if config.expands and options.kv_cache_dtype not in FP8 and context is None:
            self._kv_b = linear(weights["kv_b_proj.weight"])
            self._cache = HeadCache(heads, nope + rope, config.v_head_dim, rows, kv_dtype, backend)
        else:
            absorbed = torch.float32 if options.kernels.absorbed == "float32" else dtype
            kv_b = weights["kv_b_proj.weight"].view(heads, nope + config.v_head_dim, self._rank).to(dtype).to(absorbed)
            key_up, value_up = kv_b[:, :nope].contiguous(), kv_b[:, nope:].mT.contiguous()
            stored = latent_rows(options.kv_cache_dtype, rows, self._rank, rope, kv_dtype, _cache_scale(weights))
            if context is None:
                self._latent = LatentCache(key_up, value_up, stored, backend)
            else:
                self._latent = SplitLatentCache(key_up, value_up, stored, context)

    def add(self, batch: ForwardBatch, x: Tensor, table: Tensor, residual: Tensor) -> Tensor:
        """``residual + attention(x)``; `table` holds the batch's rotations, [tokens, 1, rope / 2]."""
        tokens = x.shape[0]
        a = self._a(x)
        queries, compressed, rotary = a.split_with_sizes(self._widths, 1)
        if self._low_rank:
            queries = self._q_b(self._q_norm(queries))
        queries = queries.view(tokens, self._heads, -1)
        rotate_(queries[..., self._nope :], table)
        rotary = rotate_(rotary.unsqueeze(1), table)
        compressed = self._kv_norm(compressed)
        if self._latent is not None:
            mixed = self._latent.attend(batch, queries, torch.cat((compressed, rotary.squeeze(1)), -1))
        else:
            expanded = self._kv_b(compressed).view(tokens, self._heads, -1)
            keys, values = expanded.split_with_sizes([self._nope, expanded.shape[2] - self._nope], 2)
            keys = torch.cat((keys, rotary.expand(-1, self._heads, -1)), -1)
            mixed = self._cache.attend(batch, queries, keys, values)
        return self._o(mixed).add_(residual)


def _cache_scale(weights: Mapping[str, Tensor]) -> float:
    """The scale of an FP8 cache, 1 if the checkpoint has none. Raises `CheckpointError`."""
    for name in CACHE_SCALES:
        if name in weights:
            scale = weights[name].item()
            if not 0 < scale < math.inf:
                raise CheckpointError(f"self_attn.{name}, a scale of an FP8 cache, is {scale}: it must be more than 0")
            return scale
    return 1.0


def layers(
    config: DeepseekV3Config, weights: Mapping[str, Tensor], rows: int, dtype: torch.dtype, options: Options
) -> Iterator[Layer]:
    """The target's layers, one after the other. `rows`: the size of each layer's cache in tokens."""
    for i in range(config.num_hidden_layers):
        dense = i < config.first_k_dense_replace
        yield load_layer(Prefixed(weights, f"model.layers.{i}."), config, dense, rows, dtype, options)


def load_layer(
    own: Mapping[str, Tensor], config: DeepseekV3Config, dense: bool, rows: int, dtype: torch.dtype, options: Options
) -> Layer:
    """The layer whose weights are `own`, without a prefix: with a plain MLP if `dense`, else with experts."""
    attention = Attention(Prefixed(own, "self_attn."), config, rows, dtype, options)
    mlp: MLP | MoE
    if dense:
        mlp = MLP(*_expert(own, "mlp.", dtype), options)
    else:
        router = Router(own["mlp.gate.weight"], own["mlp.gate.e_score_correction_bias"], config)
        count, scale = config.n_routed_experts, config.routed_scaling_factor
        routed = (_expert(own, f"mlp.experts.{e}.", dtype, scale) for e in range(count))
        mlp = MoE(router, count, routed, _expert(own, "mlp.shared_experts.", dtype), options)
    return (
        RMSNorm(own["input_layernorm.weight"].to(dtype), config.rms_norm_eps),
        attention,
        RMSNorm(own["post_attention_layernorm.weight"].to(dtype), config.rms_norm_eps),
        mlp,
    )


def _expert(own: Mapping[str, Tensor], prefix: str, dtype: torch.dtype, scale: float = 1.0) -> Expert:
    gate, up, down = (own[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down"))
    return Expert(gate.to(dtype), up.to(dtype), (down * scale).to(dtype))
