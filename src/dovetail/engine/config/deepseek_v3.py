"""DeepSeek-V3 and Kimi-K2: multi-head latent attention and a mixture of experts."""

from __future__ import annotations

from typing import Any

from dovetail.checkpoints.attention import read_attention
from dovetail.checkpoints.experts import read_experts
from dovetail.checkpoints.fields import Fields
from dovetail.engine.config.base import TargetConfig, common, mlp_tensors, refuse


class DeepseekV3Config(TargetConfig, frozen=True, kw_only=True):
    """A decoder with multi-head latent attention. `q_lora_rank` None: one full q_proj."""

    moe_intermediate_size: int
    n_shared_experts: int
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    n_group: int = 1
    topk_group: int = 1
    first_k_dense_replace: int = 0
    norm_topk_prob: bool = True

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def expands(self) -> bool:
        """Whether the cache holds each head's keys and values instead of the latent from which they are computed.

        A decode step reads a latent twice (for scores, then for values), which is 2 * kv_lora_rank + rope numbers per
        token. Published models have many heads, so their expanded keys and values are 20 times as many numbers. A model
        with a few narrow heads and kv_lora_rank 512, the only rank that the kernels of other engines support, reads
        less expanded: with 4 heads of 96 and 32, half as much, at an eighth of the multiplications. There, 4 queries on
        800 rows take about 45 us per layer expanded and 315 us with the latent.
        """
        expanded = self.num_attention_heads * (self.qk_head_dim + self.v_head_dim)
        return expanded <= 2 * self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def cache_width(self) -> int:
        if self.expands:
            return self.num_attention_heads * (self.qk_head_dim + self.v_head_dim)
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def latent_widths(self) -> tuple[int, int] | None:
        return self.kv_lora_rank, self.qk_rope_head_dim

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


def deepseek_v3_config(fields: Fields) -> DeepseekV3Config:
    """The config of a target. Raises `CheckpointError`."""
    refuse(fields, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    config = DeepseekV3Config(
        **_latent(fields),
        **_experts(fields),
        first_k_dense_replace=fields.number("first_k_dense_replace") or 0,
    )
    _check_groups(config, fields)
    return config


def dense_mla_config(fields: Fields) -> DeepseekV3Config:
    """The config of a drafter with latent attention, whose layers are all dense. Raises `CheckpointError`."""
    one_expert: dict[str, Any] = dict.fromkeys(
        ("moe_intermediate_size", "n_shared_experts", "n_routed_experts", "num_experts_per_tok"), 1
    )
    return DeepseekV3Config(
        **_latent(fields), **one_expert, routed_scaling_factor=1.0, first_k_dense_replace=fields.layers()
    )


def _latent(fields: Fields) -> dict[str, Any]:
    refuse(fields, hidden_act="silu", attention_bias=False, rope_interleave=True, quantization_config=None)
    rank = fields.size("kv_lora_rank")
    attention = read_attention(fields, fields.layers())
    rope, nope = fields.size("qk_rope_head_dim"), fields.size("qk_nope_head_dim")
    if rope % 2 or nope % 2:
        raise fields.error(f"qk_rope_head_dim {rope} and qk_nope_head_dim {nope} must be even")
    return common(fields) | {
        "num_attention_heads": attention.heads,
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": nope,
        "v_head_dim": attention.value_dim,
        "q_lora_rank": attention.q_lora_rank,
    }


def _experts(fields: Fields) -> dict[str, Any]:
    experts, scale = read_experts(fields, fields.layers()), fields.real("routed_scaling_factor")
    if experts is None or not experts.shared:
        raise fields.error(f"{'n_routed_experts' if experts is None else 'n_shared_experts'} must be 1 or more")
    if scale is None:
        raise fields.error("routed_scaling_factor is missing")
    return {
        "moe_intermediate_size": experts.width,
        "n_shared_experts": experts.shared,
        "n_routed_experts": experts.routed,
        "num_experts_per_tok": experts.active,
        "routed_scaling_factor": scale,
        "n_group": 1 if fields.raw.get("n_group") is None else fields.size("n_group"),
        "topk_group": 1 if fields.raw.get("topk_group") is None else fields.size("topk_group"),
        "norm_topk_prob": fields.raw.get("norm_topk_prob") is None or fields.flag("norm_topk_prob"),
    }


def _check_groups(config: DeepseekV3Config, fields: Fields) -> None:
    experts, groups = config.n_routed_experts, config.n_group
    if experts % groups or config.topk_group > groups:
        raise fields.error(
            f"n_group {groups} and topk_group {config.topk_group} do not fit {experts} experts: n_group must divide "
            "n_routed_experts and topk_group must not exceed n_group"
        )
    # The score of a group is the sum of its best two experts, so a group must have two.
    if groups > 1 and experts // groups < 2:
        raise fields.error(f"n_group {groups} leaves fewer than 2 of {experts} experts in a group")
    eligible = config.topk_group * (experts // groups)
    if config.num_experts_per_tok > eligible:
        raise fields.error(
            f"num_experts_per_tok {config.num_experts_per_tok} exceeds the {eligible} experts that topk_group "
            f"{config.topk_group} of n_group {groups} leaves"
        )
