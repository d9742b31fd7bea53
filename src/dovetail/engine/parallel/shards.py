"""Which bytes of a stored tensor one rank reads.

A product whose outputs are divided has rows of its weight on each rank (queries, keys, values, gate, up, head); one
whose inputs are divided has columns (o_proj, down_proj), and its results are summed over ranks. Norms, embeddings, the
router and what makes latents are whole on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.checkpoints.tensor_files import TensorHeader
from dovetail.engine.config.base import TargetConfig

_ROWS = ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "lm_head")
_COLUMNS = ("o_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a tensor: pieces of `piece` bytes at the bytes `starts` of its file, which have `shape` together."""

    shape: tuple[int, ...]
    starts: Sequence[int]
    piece: int

    @property
    def size(self) -> int:
        return len(self.starts) * self.piece


def shard_of(name: str, header: TensorHeader, rank: int, ranks: int) -> Shard:
    """The part of `rank` of the tensor called `name`. `ranks` divides what is divided."""
    axis = axis_of(name) if ranks > 1 else None
    if axis == 0:
        size = header.size // ranks
        return Shard((header.shape[0] // ranks, *header.shape[1:]), (header.start + rank * size,), size)
    if axis == 1:
        rows, columns = header.shape
        width = header.size // rows
        size = width // ranks
        starts = range(header.start + rank * size, header.start + header.size, width)
        return Shard((rows, columns // ranks), starts, size)
    return Shard(header.shape, (header.start,), header.size)


def rank_parameters(config: TargetConfig, ranks: int) -> int:
    """How many numbers of the weights each rank has."""
    shapes = config.expected_tensors().items()
    return sum(math.prod(shape) // (1 if axis_of(name) is None else ranks) for name, shape in shapes)


def axis_of(name: str) -> int | None:
    """The axis along which a tensor is divided, None if it is whole on every rank."""
    module, _, kind = name.rpartition(".")
    module = module.rpartition(".")[2]
    if module in _ROWS:
        return 0
    return 1 if module in _COLUMNS and kind == "weight" else None
