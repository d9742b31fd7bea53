"""The gate that measures, for an engine that drafts one number for all and cannot be timed before it serves."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from dovetail.gate.acceptance import Track
from dovetail.gate.costs import CostTable, Point
from dovetail.gate.forecast import Forecast
from dovetail.gate.gate import DECIDE_EVERY, Gate, Limits

# What a change must gain by a forecast.
_GAIN = 1.01
# So many steps of each kind are timed before there is a table.
_TIMED = 5
# None and all are tried for so many steps where they were told of in fewer than these, whatever the forecast says: it
# knows of their times only what was seen elsewhere.
_TRIAL, _UNKNOWN = 6, 1.5


class UniformGate(Gate):
    """As `Gate`, but what pays is one number of drafts for all that may draft at all.

    Without a `table` it first times steps with all drafts and with none, as they come, and makes one up to `batch`
    sequences and `context`.
    """

    def __init__(self, table: CostTable | None, limits: Limits, drafts: int, *, batch: int, context: int) -> None:
        super().__init__(table, limits, drafts)
        self._sizes = batch, context
        self._one = drafts
        # What was timed: number of drafts -> seconds; in a batch of so many.
        self._times: dict[int, list[float]] = {drafts: [], 0: []}
        self._timed = 0

    def choose(self, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]) -> list[int]:
        if self.table is None and tracks:
            if abs(len(tracks) - self._timed) * 8 > self._timed:
                self._timed = len(tracks)
                self._times = {drafts: [] for drafts in self._times}
            due = next((drafts for drafts, times in self._times.items() if len(times) < _TIMED), None)
            if due is None:
                self.table = self._first_table()
                self._trial_left = self._left = 0
            elif due != self._trial or not self._trial_left:
                self._trial, self._left = due, 0
            if due is not None:
                self._trial_left = 2  # as long as there is no table: one less with every step
        return super().choose(tracks, contexts, caps)

    def tell(self, drafted: Iterable[tuple[Track | None, int, int, int]], seconds: float | None) -> None:
        rows = list(drafted)
        if self.table is None and seconds is not None and not self._changed:
            asked = sum(row[1] for row in rows)
            # Unless most have a limit or a cap of their own.
            if not self._trial or 2 * asked > self._trial * len(self._tracks):
                self._times[self._trial].append(seconds)
        super().tell(rows, seconds)

    def _first_table(self) -> CostTable:
        context = int(self._context)
        points = [
            Point(self._timed, drafts, context, statistics.median(times)) for drafts, times in self._times.items()
        ]
        batch, longest = self._sizes
        return CostTable.of(points, batch=batch, drafts=self._drafts, context=longest)

    def _try(self, table: CostTable, forecast: Forecast, now: float) -> None:
        rates = [forecast.uniform(k) for k in range(forecast.depth + 1)]
        best = max(range(len(rates)), key=rates.__getitem__)
        one = min(self._one, forecast.depth)
        if rates[best] > _GAIN * rates[one]:
            one, self._changed = best, True
        for track in self._tracks:
            track.drafts = one
        self._one = self._usual = one
        batch = len(self._tracks)
        for trial in (0, forecast.depth):
            if trial != one and table.known(batch, trial, self._context) < _UNKNOWN and self._untried >= DECIDE_EVERY:
                self._trial, self._trial_left, self._untried, self._changed = trial, _TRIAL, 0, True
                self._left = self._hold = DECIDE_EVERY
                return
        super()._try(table, forecast, rates[one])
