"""Rotary positions and the longest context, as config.json declares them."""

from __future__ import annotations

import msgspec

from dovetail.checkpoints.fields import LARGEST, Fields


class LinearScaling(msgspec.Struct, frozen=True):
    """Linear scaling divides every position by `factor`."""

    factor: float


class Llama3Scaling(msgspec.Struct, frozen=True):
    """Llama 3.1's scaling divides low frequencies by `factor`, leaves high ones, and blends those in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class Yarn(msgspec.Struct, frozen=True):
    """YaRN context extension (https://arxiv.org/abs/2309.00071), with DeepSeek's two mscale fields."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary positions: the base wavelength and how it is scaled.

    `type` is the declared word, "default" for no scaling. `factor` stretches `original` positions. `scaling` holds all
    parameters of a type that the embedded engine computes, and is None for other types and for incomplete ones.
    `mrope` says that a position has three parts (time, height, width), as in vision models.
    """

    type: str = "default"
    theta: float = 10000.0
    factor: float | None = None
    original: int | None = None
    scaling: LinearScaling | Llama3Scaling | Yarn | None = None
    mrope: bool = False


def read_rope(fields: Fields) -> Rope:
    """Reads both spellings: rope_theta with rope_scaling, and rope_parameters (transformers 5)."""
    block = rope_block(fields)
    kind = block.text("rope_type", "type") or "default"
    return Rope(
        type=kind,
        theta=block.positive("rope_theta") or fields.positive("rope_theta") or 10000.0,
        factor=block.positive("factor"),
        original=block.number("original_max_position_embeddings"),
        scaling=_scaling(kind, block),
        mrope=kind == "mrope" or block.raw.get("mrope_section") is not None,
    )


def rope_block(fields: Fields) -> Fields:
    """The object that declares the rope, empty when there is none."""
    block = fields.block("rope_parameters", "rope_scaling") or Fields({}, fields.where)
    # When kinds of layers have ropes of their own, the layers with full attention decide the context.
    return block.block("full_attention") or block


def _scaling(kind: str, block: Fields) -> LinearScaling | Llama3Scaling | Yarn | None:
    factor, original = block.positive("factor"), block.number("original_max_position_embeddings")
    if factor is None:
        return None
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "llama3" and original:
        low, high = block.positive("low_freq_factor"), block.positive("high_freq_factor")
        if low is None or high is None:
            return None
        if low == high:
            raise block.error("low_freq_factor and high_freq_factor must differ")
        return Llama3Scaling(factor, low, high, original)
    if kind == "yarn" and original:
        return Yarn(
            factor,
            original,
            beta_fast=block.positive("beta_fast") or 32.0,
            beta_slow=block.positive("beta_slow") or 1.0,
            mscale=block.real("mscale"),
            mscale_all_dim=block.real("mscale_all_dim"),
            attention_factor=block.real("attention_factor"),
            truncate=block.raw.get("truncate") is None or block.flag("truncate"),
        )
    return None


#: Rope types under which max_position_embeddings counts the tokens after scaling (vLLM 0.33, config/model.py).
_COUNTED_AFTER = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope")


def context_length(fields: Fields, rope: Rope) -> int | None:
    """The longest sequence in tokens, None when it is not declared.

    It is max_position_embeddings, times the factor when the rope type counts positions before scaling. YaRN configs
    (Kimi, DeepSeek) count after scaling: 262,144 is 64 × 4,096 already.
    """
    positions = fields.number(
        "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "model_max_length"
    )
    if not positions:
        return None
    if rope.type in _COUNTED_AFTER or not rope.factor:
        return positions
    if not 1 <= positions * rope.factor < LARGEST:
        raise fields.error(
            f"the rope's factor {rope.factor:g} makes {positions * rope.factor:g} of {positions} positions, which "
            "cannot be a context length"
        )
    return int(positions * rope.factor)
