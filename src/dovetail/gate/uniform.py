"""The gate for an engine that drafts one number for all sequences and cannot be timed before it serves."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dovetail.gate.acceptance import Track
from dovetail.gate.costs import CostTable, Point
from dovetail.gate.decision import (
    DECIDE_EVERY,
    GAIN,
    UNKNOWN,
    Batch,
    Clock,
    Decision,
    Limits,
    Policy,
    State,
    Trial,
    begin_trial,
    explore,
    improve,
)
from dovetail.gate.gate import Drafted, Gate

# Before there is a table, this many steps with all drafts and as many with none are timed.
_TIMED_STEPS = 5
# Steps of a trial of none and of all drafts. Both are tried while they are unknown, whatever the forecast says, because
# the forecast knows their times only from measurements elsewhere.
_TRIAL_STEPS = 6


def one_count(
    state: State, clock: Clock, batch: Batch, survivals: Sequence[Sequence[float]], table: CostTable
) -> tuple[State, Sequence[int], bool]:
    """A `Policy`: one count for all sequences that may draft at all."""
    usual, size = state.usual, len(batch.counts)
    forecast, state, _, _, changed = improve(state, clock, batch, survivals, table)
    rates = [forecast.uniform(k) for k in range(forecast.depth + 1)]
    best = max(range(len(rates)), key=rates.__getitem__)
    count = min(usual, forecast.depth)
    if rates[best] > GAIN * rates[count]:
        count, changed = best, True
    state = replace(state, usual=count)
    counts = [count] * size
    for other in (0, forecast.depth):
        known = table.steps_at(size, other, batch.mean_context)
        if other != count and known < UNKNOWN and clock.steps - state.last_trial >= DECIDE_EVERY:
            return begin_trial(state.held(clock, DECIDE_EVERY), clock, other, _TRIAL_STEPS), counts, True
    state = explore(state, clock, batch, forecast, rates[count], table)
    return state, counts, changed or state.trial is not None


class UniformGate(Gate):
    """A `Gate` that allows the same number of draft tokens for all sequences that may draft at all.

    Without a `table` it first times steps with all drafts and with none, as they come, and makes a table up to `batch`
    sequences and `context`.
    """

    policy: Policy = staticmethod(one_count)

    def __init__(self, table: CostTable | None, limits: Limits, drafts: int, *, batch: int, context: int) -> None:
        super().__init__(table, limits, drafts)
        self._sizes = batch, context
        # Before there is a table: draft tokens -> seconds of each timed step, and the batch of these steps.
        self._timings: dict[int, list[float]] = {drafts: [], 0: []}
        self._timed_batch = 0

    def decide(self, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]) -> Decision:
        if self.table is None and tracks:
            self._time_next(len(tracks))
        return super().decide(tracks, contexts, caps)

    def observe(self, drafted: Iterable[Drafted], seconds: float | None) -> None:
        rows, trial = list(drafted), self._state.trial
        if self.table is None and seconds is not None and self._timed and trial is not None:
            asked = sum(row[1] for row in rows)
            # A step counts unless most sequences have a limit or a cap of their own.
            if not trial.drafts or 2 * asked > trial.drafts * len(self._tracks):
                self._timings[trial.drafts].append(seconds)
        super().observe(rows, seconds)

    def _time_next(self, batch: int) -> None:
        """Try the number of drafts that is to be timed next, or make the table when all are timed."""
        if abs(batch - self._timed_batch) * 8 > self._timed_batch:
            self._timed_batch = batch
            self._timings = {drafts: [] for drafts in self._timings}
        untimed = next((drafts for drafts, times in self._timings.items() if len(times) < _TIMED_STEPS), None)
        state = self._state
        if untimed is None:
            self.table = self._first_table()
            self._state = replace(state, trial=None, due=self._steps)
        elif state.trial is None or state.trial.drafts != untimed:
            self._state = replace(state, trial=Trial(untimed, end=None), due=self._steps)

    def _first_table(self) -> CostTable:
        context = int(self._context)
        points = [
            Point(self._timed_batch, drafts, context, statistics.median(times))
            for drafts, times in self._timings.items()
        ]
        batch, longest = self._sizes
        return CostTable.of(points, batch=batch, drafts=self._drafts, context=longest)
