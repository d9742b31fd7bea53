"""A mixture of experts as config.json declares it."""

from __future__ import annotations

import msgspec

from dovetail.checkpoints.attention import check_one_per_layer
from dovetail.checkpoints.fields import Fields

_MOST_EXPERTS = 4096  # per layer; the largest known model has 384


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts. A layer has `routed` experts, of which a token uses `active`, and `shared` beside them.

    `width` is the width of one routed expert, `shared_width` of all shared experts together. `layers` is how many
    layers have experts; the others have a dense feed-forward.
    """

    routed: int
    active: int
    width: int
    layers: int
    shared: int = 0
    shared_width: int = 0


def read_experts(fields: Fields, layers: int) -> Experts | None:
    """The experts of a model with `layers` layers, None for a dense model."""
    routed = fields.number("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    if not routed:
        return None
    if routed > _MOST_EXPERTS:
        raise fields.error(f"n_routed_experts is {routed}, at most {_MOST_EXPERTS} are supported")
    width = fields.size("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    shared = fields.number("n_shared_experts", "num_shared_experts", "moe_num_shared_experts") or 0
    shared_width = fields.number("shared_expert_intermediate_size") or shared * width
    return Experts(
        routed=routed,
        active=fields.size("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "experts_per_token"),
        width=width,
        layers=_expert_layers(fields, layers),
        shared=shared or (1 if shared_width else 0),
        shared_width=shared_width,
    )


def _expert_layers(fields: Fields, layers: int) -> int:
    listed = fields.raw.get("moe_layer_freq")
    if isinstance(listed, list):
        check_one_per_layer(fields, "moe_layer_freq", len(listed), layers)
        return sum(bool(each) for each in listed)
    first = fields.number("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index") or 0
    interval = fields.number("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step") or 1
    dense = frozenset(fields.numbers("mlp_only_layers") or ())
    # decoder_sparse_step and interleave_moe_layer_step count from one, moe_layer_freq from zero.
    offset = 0 if fields.number("decoder_sparse_step", "interleave_moe_layer_step") is None else 1
    return sum((i + offset) % interval == 0 and i not in dense for i in range(first, layers))
