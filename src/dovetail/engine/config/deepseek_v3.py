"""DeepSeek-V3 and Kimi-K2: multi-head latent attention and a mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dovetail.engine.config.base import Size, TargetConfig, convert, mlp_tensors, only
from dovetail.errors import CheckpointError

# Every expert's tensors are listed to look a checkpoint over; the largest known model has 384.
_Experts = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class DeepseekV3Config(TargetConfig, frozen=True, kw_only=True):
    """`q_lora_rank` None means one full q_proj."""

    moe_intermediate_size: Size
    n_shared_experts: Size
    n_routed_experts: _Experts
    num_experts_per_tok: Size
    routed_scaling_factor: float
    kv_lora_rank: Size
    qk_rope_head_dim: Size
    qk_nope_head_dim: Size
    v_head_dim: Size
    q_lora_rank: Size | None = None
    n_group: Size = 1
    topk_group: Size = 1
    first_k_dense_replace: Annotated[int, msgspec.Meta(ge=0)] = 0
    norm_topk_prob: bool = True

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def expands(self) -> bool:
        """Whether the cache holds each head's keys and values instead of the latent they are made from.

        A decode step reads a latent twice (scores, then values): 2 * kv_lora_rank + rope numbers a token. Real models
        have so many heads that expanded keys and values are 20 times that. A model with a few narrow heads and
        kv_lora_rank 512 (which other engines' kernels insist on) is the other way round: 4 heads of 96 and 32 read half
        as much expanded, and multiply an eighth: 4 queries on 800 rows take some 45 us a layer against 315 us absorbed.
        """
        expanded = self.num_attention_heads * (self.qk_head_dim + self.v_head_dim)
        return expanded <= 2 * self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def cache_width(self) -> int:
        if self.expands:
            return self.num_attention_heads * (self.qk_head_dim + self.v_head_dim)
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def rotary_width(self) -> int:
        return self.qk_rope_head_dim

    def _layer_tensors(self, index: int, prefix: str) -> dict[str, tuple[int, ...]]:
        hidden, heads, rank = self.hidden_size, self.num_attention_heads, self.kv_lora_rank
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        shapes: dict[str, tuple[int, ...]] = {
            attention + "kv_a_proj_with_mqa.weight": (rank + self.qk_rope_head_dim, hidden),
            attention + "kv_a_layernorm.weight": (rank,),
            attention + "kv_b_proj.weight": (heads * (self.qk_nope_head_dim + self.v_head_dim), rank),
            attention + "o_proj.weight": (hidden, heads * self.v_head_dim),
        }
        if self.q_lora_rank is None:
            shapes[attention + "q_proj.weight"] = (heads * self.qk_head_dim, hidden)
        else:
            shapes[attention + "q_a_proj.weight"] = (self.q_lora_rank, hidden)
            shapes[attention + "q_a_layernorm.weight"] = (self.q_lora_rank,)
            shapes[attention + "q_b_proj.weight"] = (heads * self.qk_head_dim, self.q_lora_rank)
        if index < self.first_k_dense_replace:
            return shapes | mlp_tensors(mlp, hidden, self.intermediate_size)
        shapes[mlp + "gate.weight"] = (self.n_routed_experts, hidden)
        shapes[mlp + "gate.e_score_correction_bias"] = (self.n_routed_experts,)
        for expert in range(self.n_routed_experts):
            shapes |= mlp_tensors(f"{mlp}experts.{expert}.", hidden, self.moe_intermediate_size)
        return shapes | mlp_tensors(mlp + "shared_experts.", hidden, self.moe_intermediate_size * self.n_shared_experts)


def deepseek_v3_config(raw: Mapping[str, Any], path: Path) -> DeepseekV3Config:
    """Raises `CheckpointError`."""
    only(
        raw,
        path,
        hidden_act="silu",
        attention_bias=False,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        moe_layer_freq=1,
        rope_interleave=True,
        quantization_config=None,
    )
    config = convert(raw, path, DeepseekV3Config)
    experts, groups = config.n_routed_experts, config.n_group
    if experts % groups or not 1 <= config.topk_group <= groups:
        raise CheckpointError(
            f"{path}: n_group {groups} and topk_group {config.topk_group} do not fit {experts} experts: n_group must "
            "divide n_routed_experts and topk_group must not exceed n_group"
        )
    # A group's score is the sum of its best two experts, so a group must have two.
    if groups > 1 and experts // groups < 2:
        raise CheckpointError(f"{path}: n_group {groups} leaves fewer than 2 of {experts} experts in a group")
    if config.num_experts_per_tok > config.topk_group * (experts // groups):
        raise CheckpointError(
            f"{path}: num_experts_per_tok {config.num_experts_per_tok} exceeds the experts that topk_group "
            f"{config.topk_group} of n_group {groups} leaves: {config.topk_group * (experts // groups)}"
        )
    if config.qk_rope_head_dim % 2 or config.qk_nope_head_dim % 2:
        raise CheckpointError(
            f"{path}: qk_rope_head_dim {config.qk_rope_head_dim} and qk_nope_head_dim {config.qk_nope_head_dim} must "
            "be even"
        )
    return config
