"""Which rank stores which position of a sequence, where decode-context parallelism splits a cache over ranks.

Position i is on rank ``i // interleave % ranks``. A block of the tables has ``BLOCK_SIZE * ranks`` positions, of which
each rank stores `BLOCK_SIZE`. `interleave` divides `BLOCK_SIZE`, so the same rule holds for a row of the tables (block
times block size, plus the place in the block): nothing but attention knows that the cache is split.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dovetail.engine.models.base import ForwardBatch


@dataclass(frozen=True, slots=True)
class LocalSpan:
    """One sequence's part of a batch on one rank: as `Span`, but `rows` are this rank's rows of this rank's positions.

    `ends`: how many of them each query sees, int64 [length].
    """

    start: int
    length: int
    rows: slice | Tensor
    ends: Tensor


@dataclass(frozen=True, slots=True)
class LocalBatch:
    """What one rank stores of a batch and reads for it: tokens `stored` (int64) go to `rows` of this rank's cache."""

    stored: Tensor
    rows: Tensor
    spans: tuple[LocalSpan, ...]


class Split:
    """The part of rank `rank` of `ranks`."""

    def __init__(self, rank: int, ranks: int, interleave: int) -> None:
        self.rank, self.ranks, self.interleave = rank, ranks, interleave
        self._last: tuple[ForwardBatch, LocalBatch] | None = None

    def stores(self, rows: Tensor) -> Tensor:
        """Whether this rank stores each of `rows`, rows of the tables."""
        return rows // self.interleave % self.ranks == self.rank

    def local(self, rows: Tensor) -> Tensor:
        """This rank's row for each of `rows`, which it stores."""
        return rows // (self.interleave * self.ranks) * self.interleave + rows % self.interleave

    def count(self, positions: Tensor) -> Tensor:
        """How many of the first `positions` of a sequence this rank stores."""
        whole = positions // (self.interleave * self.ranks) * self.interleave
        rest = positions % (self.interleave * self.ranks) - self.rank * self.interleave
        return whole + rest.clamp(0, self.interleave)

    def of(self, batch: ForwardBatch) -> LocalBatch:
        """This rank's part of `batch`. All layers ask for the same batch, so the last one is kept."""
        if self._last is None or self._last[0] is not batch:
            self._last = batch, self._of(batch)
        return self._last[1]

    def _of(self, batch: ForwardBatch) -> LocalBatch:
        stored = self.stores(batch.rows).nonzero().squeeze(-1)
        spans = []
        for span in batch.spans:
            ends = self.count(batch.positions[span.start : span.start + span.length] + 1)
            if isinstance(span.rows, slice):
                first = span.rows.start // self.ranks
                rows: slice | Tensor = slice(first, first + int(ends[-1]))
            else:
                rows = self.local(span.rows[self.stores(span.rows)])
            spans.append(LocalSpan(span.start, span.length, rows, ends))
        return LocalBatch(stored, self.local(batch.rows[stored]), tuple(spans))
