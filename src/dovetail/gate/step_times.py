"""Learns the cost model from step times: by ratios of consecutive steps that made different numbers of drafts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dovetail.gate.costs import LEAST, LEAST_NOISE, NEAR, PARTS, CostModel, Features

# The features that do not depend on context, by index.
_CONTEXT_FREE = [i for i, part in enumerate(PARTS) if "rows" not in part]
# The share of the latest comparison in the noise, and the number of comparisons that the first estimate weighs.
_LEARN, _FIRST = 0.1, 2
# The median of fewer steps follows an outlier.
_LEAST_STEPS = 3
# The most kinds of steps that wait until there are enough of a kind.
_MOST_KINDS = 8
# Differences are clipped at this many standard deviations of the noise.
_OUTLIER = 3.0
# If equal steps differ by more than this (in the logarithm), the parts of the cost model become uncertain.
_JUMP = 0.3


class _Block(NamedTuple):
    """Consecutive steps with the features `step`. `seconds`: their typical time. `end`: the number of the last one."""

    step: Features
    seconds: float
    steps: int
    end: int


class StepTimes:
    """Learns `costs` from the steps of one decision after another."""

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        #: Comparisons since start: of different steps, and of equal ones.
        self.compared = 0
        self._equal = 0
        self._last: _Block | None = None
        # By the features that do not depend on context: steps of decisions that held for too few to compare.
        self._few: dict[Features, list[tuple[int, float]]] = {}

    def learn(self, step: Features, times: Sequence[tuple[int, float]], end: int) -> None:
        """Learn from consecutive steps with the features `step`.

        `times`: draft tokens made and seconds, step by step. `end`: the number of the last step. Where decisions hold
        for few steps, because the batch changes, steps with equal features are learned when there are enough of them.
        """
        if len(times) < _LEAST_STEPS:
            times = self._joined(step, times)
            if not times:
                return
        before = _typical(times[:NEAR])
        if self._last is not None and end - len(times) - self._last.end <= 4 * NEAR:
            self._compare(self._last, _Block(step, before, min(len(times), NEAR), end))
        for at in range(NEAR, len(times) - NEAR + 1, NEAR):
            after = _typical(times[at : at + NEAR])
            self._differ(math.log(after / before))
            before = after
        self._last = _Block(step, _typical(times[-NEAR:]), min(len(times), NEAR), end)

    def _joined(self, step: Features, times: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
        """`times` with earlier times of steps that have the same features; empty if they are still too few."""
        key = tuple(step[i] for i in _CONTEXT_FREE)
        few = [*self._few.pop(key, ()), *times]
        if len(few) >= NEAR:
            return few
        self._few[key] = few
        if len(self._few) > _MOST_KINDS:
            del self._few[next(iter(self._few))]
        return ()

    def _compare(self, before: _Block, block: _Block) -> None:
        ratio = block.seconds / before.seconds
        if all(before.step[i] == block.step[i] for i in _CONTEXT_FREE):
            self._differ(math.log(ratio))
        else:
            # The noise is for medians of `NEAR` steps; medians of fewer steps are noisier.
            wider = (NEAR / before.steps + NEAR / block.steps) / 2
            self.compared += 1
            self.costs.drift()
            self.costs.learn_ratio(before.step, block.step, ratio, self.costs.noise * math.sqrt(wider))

    def _differ(self, error: float) -> None:
        """Learn the noise from `error`, the difference between the logarithms of two times of equal steps."""
        noise = self.costs.noise
        if abs(error) > max(_JUMP, _OUTLIER * noise):
            self.costs.drift(_JUMP)  # either the whole machine became slower, or one part of the step
        square = min(abs(error), _OUTLIER * noise) ** 2
        self._equal += 1
        share = max(_LEARN, 1 / (_FIRST + self._equal))
        self.costs.noise = max(LEAST_NOISE, math.sqrt(noise**2 + share * (square - noise**2)))


def _typical(times: Sequence[tuple[int, float]]) -> float:
    """The typical seconds of a step.

    Steps that made equally many drafts count with their median, because single steps are disturbed. Steps that made
    different numbers count with the mean of these medians, because a lookup finds a draft only now and then.
    """
    first = times[0][0]
    if all(made == first for made, _ in times):
        return _median([seconds for _, seconds in times])
    by_made: dict[int, list[float]] = {}
    for made, taken in times:
        by_made.setdefault(made, []).append(taken)
    return sum(len(seconds) * _median(seconds) for seconds in by_made.values()) / len(times)


def _median(values: list[float]) -> float:
    """The median, at least `LEAST`: a coarse clock may measure 0 seconds, and times are divided by each other.

    `statistics.median` takes several times as long for six values.
    """
    values.sort()
    return max(LEAST, (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2)
