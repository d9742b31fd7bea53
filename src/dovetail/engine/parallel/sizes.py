"""How a model is divided over ranks, from its config alone: what one rank has, and what cannot be divided.

This module imports no torch, so that a plan can ask it.

- Heads: each rank has a part of the query heads, and of the key-value heads or, with latent attention, of kv_b_proj.
- MLPs and experts: each rank has a part of the width of every one.
- Vocabulary: each rank has a part of the head's rows. Embeddings are whole on every rank: drafters read them too.
- Decode context: the latents of a group of ranks are divided by position (split.py). Query heads stay divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from dovetail.engine.config.base import TargetConfig
from dovetail.engine.config.deepseek_v3 import DeepseekV3Config
from dovetail.engine.config.llama import LlamaConfig

#: Positions of a block of the KV cache that one rank stores.
BLOCK_SIZE = 16

_C = TypeVar("_C", bound=TargetConfig)

#: Fields that are divided, with what a user knows them as.
_WIDTHS = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key-value heads",
    "intermediate_size": "columns in an MLP (intermediate_size)",
    "moe_intermediate_size": "columns in an expert (moe_intermediate_size)",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """`tensor`: how many ranks there are. `context`: how many of them share a cache; `interleave`: how many positions
    in a row one of these stores."""

    tensor: int = 1
    context: int = 1
    interleave: int = 1


def part(config: _C, ranks: int) -> _C:
    """The config of one rank's part of a model. Its vocabulary is the whole one."""
    return msgspec.structs.replace(config, **{name: getattr(config, name) // ranks for name in _divided(config)})


def indivisible(config: TargetConfig, sizes: Sizes) -> str | None:
    """Why this model cannot be divided like this, None if it can."""
    for name, meaning in (*_divided(config).items(), ("vocab_size", "tokens in its vocabulary")):
        if (count := getattr(config, name)) % sizes.tensor:
            return f"{sizes.tensor} ranks cannot divide {count:,} {meaning}"
    if sizes.tensor % sizes.context:
        return f"a context split over {sizes.context} ranks needs a multiple of them, and there are {sizes.tensor}"
    if sizes.context > 1 and config.latent_widths is None:
        return f"a context split over {sizes.context} ranks needs latent attention (MLA), and this model has none"
    if BLOCK_SIZE % sizes.interleave:
        return f"an interleave of {sizes.interleave} does not divide {BLOCK_SIZE}, the rows of a block"
    return None


def _divided(config: TargetConfig) -> dict[str, str]:
    names = ["num_attention_heads"]
    if isinstance(config, LlamaConfig):
        names.append("num_key_value_heads")
    names.append("intermediate_size")
    # Every layer of a dense drafter is dense, and the width of its one expert means nothing.
    if isinstance(config, DeepseekV3Config) and config.first_k_dense_replace < config.num_hidden_layers:
        names.append("moe_intermediate_size")
    return {name: _WIDTHS[name] for name in names}
