"""The cost table: seconds of a step by batch, drafts per sequence and context. Measured once, corrected by every step.

A step in which `batch` sequences of `context` tokens decode with `drafts` drafts each takes ``T(batch, drafts,
context)`` seconds, drafting included. The table has T on a grid and interpolates linearly. `CostTable.of` derives the
grid from a few measured points; `correct` adjusts the cells around a step that was timed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec

#: The lower ends of the ranges of context, in the table, in acceptance and in metrics.
CONTEXTS = (0, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

# How an error is shared among the four corrections if they have learned equally little. The correction of all cells
# gets most, because a machine mostly becomes slower or faster as a whole.
_SHARES = (4.0, 2.0, 2.0, 1.0)
# A correction is a mean over at most this many steps, so that the latest steps count more.
_STEPS = 64.0
# An error beyond this (natural logarithm) is cut: such a step met a page fault or another process.
_OUTLIER = 0.3
# The largest correction (natural logarithm).
_MOST = 4.0
# The least and the most seconds of a cell, whatever a line through measurements gives.
_LEAST, _LONGEST = 1e-6, 1e6


class Point(msgspec.Struct, frozen=True):
    """One measurement, in seconds."""

    batch: int
    drafts: int
    context: int
    seconds: float


class Correction(msgspec.Struct):
    """Factors on T, as natural logarithms, and from how many steps each was learned."""

    values: list[float]
    steps: list[float]


class CostTable(msgspec.Struct):
    """T on the grid of `batches` (ascending from 1), `contexts` (ascending from 0) and 0 to `drafts`.

    `seconds`: T as measured, ordered by batch, then context, then drafts. `corrections`, learned while serving: one for
    all cells, one per batch and context, one per batch and number of drafts, one per cell. A cell that was never
    corrected has the corrections that it shares with others.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    drafts: int
    seconds: tuple[float, ...]
    corrections: tuple[Correction, Correction, Correction, Correction]

    def __post_init__(self) -> None:
        """Raises `ValueError` for an inconsistent table, which a file may contain."""
        for axis, first in ((self.batches, 1), (self.contexts, 0)):
            if axis[:1] != (first,) or list(axis) != sorted(set(axis)) or axis[-1] >= 1 << 63:
                raise ValueError(f"a table's axes must ascend from {first}")
        if self.drafts < 0 or len(self.seconds) != self._sizes()[-1]:
            raise ValueError(f"a table of {self._sizes()[-1]} cells has {len(self.seconds)} times")
        if not all(_LEAST <= value <= _LONGEST for value in self.seconds):
            raise ValueError(f"a table's times must be within {_LEAST} and {_LONGEST} seconds")
        for size, correction in zip(self._sizes(), self.corrections, strict=True):
            if not len(correction.values) == len(correction.steps) == size:
                raise ValueError(
                    f"a table has {len(correction.values)} corrections in {len(correction.steps)} steps, not {size}"
                )
            if not all(-_MOST <= value <= _MOST for value in correction.values):
                raise ValueError(f"a table's corrections must be within a factor of exp({_MOST})")
            if not all(0 <= value < math.inf for value in correction.steps):
                raise ValueError("a table's numbers of steps must not be negative")

    def _sizes(self) -> tuple[int, int, int, int]:
        batches, contexts, kinds = len(self.batches), len(self.contexts), self.drafts + 1
        return 1, batches * contexts, batches * kinds, batches * contexts * kinds

    @classmethod
    def of(cls, points: Iterable[Point], *, batch: int, drafts: int, context: int) -> Self:
        """A table up to these sizes, from at least one measurement.

        It interpolates and extrapolates linearly. What a longer context costs each sequence follows from sizes that
        were measured at two contexts.
        """
        batches = tuple(sorted({*(1 << i for i in range(batch.bit_length())), batch}))
        contexts = (*(c for c in CONTEXTS if c < context), context) if context else CONTEXTS[:1]
        short, per_token = _split(points)
        by_batch = {size: [_between(own, k) for k in range(drafts + 1)] for size, own in short.items()}
        seconds: list[float] = []
        for size in batches:
            base = [_between({b: own[k] for b, own in by_batch.items()}, size) for k in range(drafts + 1)]
            slope = [_between(per_token, k) if per_token else 0.0 for k in range(drafts + 1)]
            for at in contexts:
                seconds += [min(max(_LEAST, base[k] + size * at * slope[k]), _LONGEST) for k in range(drafts + 1)]
        sizes = (1, len(batches) * len(contexts), len(batches) * (drafts + 1), len(seconds))
        one, by_context, by_drafts, own = (Correction([0.0] * size, [0.0] * size) for size in sizes)
        return cls(batches, contexts, drafts, tuple(seconds), (one, by_context, by_drafts, own))

    def at(self, batch: float, drafts: float, context: float) -> float:
        """Seconds of a step. Beyond the grid the value at its edge."""
        return sum(weight * self._corrected(cell) for cell, weight in self._cells(batch, drafts, context))

    def columns(self, context: float, batch: int) -> list[list[float]]:
        """T at one context, for each of `batches` up to the first that is at least `batch`: a list by drafts."""
        low, high, share = _place(self.contexts, context)
        width, rows = self.drafts + 1, []
        for index in range(min(len(self.batches), bisect_left(self.batches, batch) + 1)):
            first = index * width * len(self.contexts)
            row = [self._corrected(first + low * width + k) for k in range(width)]
            if share:
                upper = [self._corrected(first + high * width + k) for k in range(width)]
                row = [a * (1 - share) + b * share for a, b in zip(row, upper, strict=True)]
            rows.append(row)
        return rows

    def steps_at(self, batch: float, drafts: float, context: float) -> float:
        """By how many steps the cells around this point were corrected."""
        steps = self.corrections[-1].steps
        return sum(weight * steps[cell] for cell, weight in self._cells(batch, drafts, context))

    def correct(self, batch: float, drafts: float, context: float, seconds: float, steps: int = 1) -> None:
        """Correct the table by this many `steps` that took `seconds` each."""
        cells = self._cells(batch, drafts, context)
        error = math.log(max(seconds, _LEAST) / sum(weight * self._corrected(cell) for cell, weight in cells))
        own = self.corrections[-1].steps
        if sum(weight * own[cell] for cell, weight in cells) >= 1:
            error = max(-_OUTLIER, min(_OUTLIER, error))
        for cell, weight in cells:
            indices = self._indices(cell)
            # The first measurement counts as a step. The corrections that have learned least take most of the error.
            taken = error * weight * steps / (own[cell] + steps + 1)
            shares = [
                share / (correction.steps[i] + 1)
                for share, correction, i in zip(_SHARES, self.corrections, indices, strict=True)
            ]
            taken /= sum(shares)
            for correction, i, share in zip(self.corrections, indices, shares, strict=True):
                correction.values[i] = max(-_MOST, min(_MOST, correction.values[i] + taken * share))
                correction.steps[i] = min(correction.steps[i] + weight * steps, _STEPS)

    def forget(self, steps: float) -> None:
        """Let new steps outweigh what was learned: count it as learned from at most this many steps."""
        for correction in self.corrections:
            correction.steps[:] = [min(steps, learned) for learned in correction.steps]

    def _corrected(self, cell: int) -> float:
        one, by_context, by_drafts, own = self.corrections
        _, i, j, _ = self._indices(cell)
        return self.seconds[cell] * math.exp(
            one.values[0] + by_context.values[i] + by_drafts.values[j] + own.values[cell]
        )

    def _indices(self, cell: int) -> tuple[int, int, int, int]:
        """Of the corrections of `cell`."""
        kinds = self.drafts + 1
        column, drafts = divmod(cell, kinds)
        return 0, column, column // len(self.contexts) * kinds + drafts, cell

    def _cells(self, batch: float, drafts: float, context: float) -> list[tuple[int, float]]:
        """The cells around a place and their weights, which sum to 1."""
        low_b, high_b, share_b = _place(self.batches, batch)
        low_c, high_c, share_c = _place(self.contexts, context)
        low_k = min(int(drafts), self.drafts)
        share_k = min(drafts, self.drafts) - low_k
        cells = []
        for b, of_b in ((low_b, 1 - share_b), (high_b, share_b)) if share_b else ((low_b, 1.0),):
            for c, of_c in ((low_c, 1 - share_c), (high_c, share_c)) if share_c else ((low_c, 1.0),):
                first = (b * len(self.contexts) + c) * (self.drafts + 1) + low_k
                cells.append((first, of_b * of_c * (1 - share_k)))
                if share_k:
                    cells.append((first + 1, of_b * of_c * share_k))
        return cells


def _place(axis: Sequence[int], value: float) -> tuple[int, int, float]:
    """The points of `axis` around `value`, and how far it is on its way from one to the other."""
    high = bisect_right(axis, value)
    if high == 0 or high == len(axis):
        end = min(high, len(axis) - 1)
        return end, end, 0.0
    return high - 1, high, (value - axis[high - 1]) / (axis[high] - axis[high - 1])


def _split(points: Iterable[Point]) -> tuple[dict[int, dict[int, float]], dict[int, float]]:
    """Measurements at their shortest context, by batch and drafts; and, by drafts, what a token of context takes."""
    by_size: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        by_size.setdefault((point.batch, point.drafts), []).append(point)
    short: dict[int, dict[int, float]] = {}
    per_token: dict[int, float] = {}
    for (batch, drafts), measured in by_size.items():
        first, last = min(measured, key=lambda p: p.context), max(measured, key=lambda p: p.context)
        short.setdefault(batch, {})[drafts] = first.seconds
        if last.context > first.context:
            slope = (last.seconds - first.seconds) / (last.context - first.context) / batch
            per_token[drafts] = max(0.0, slope)
    return short, per_token


def _between(known: Mapping[int, float], at: int) -> float:
    """The value at `at`, linear between known points. Beyond them it follows the last two points, but never falls."""
    if at in known:
        return known[at]
    axis = sorted(known)
    if len(axis) == 1:
        return known[axis[0]]
    i = min(max(bisect_right(axis, at), 1), len(axis) - 1)
    (low, high) = axis[i - 1], axis[i]
    value = known[low] + (known[high] - known[low]) * (at - low) / (high - low)
    return max(value, known[high]) if at > high else value
