"""Step times: what steps with one number of drafts took in relation to steps with another, close to them in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dovetail.gate.costs import LEAST, LEAST_NOISE, NEAR, PARTS, CostModel, Features

# The features that no longer context changes.
_COUNTS = [i for i, part in enumerate(PARTS) if "rows" not in part]
# How fast noise is learned, and how many comparisons weigh as much as what is known of it at first.
_LEARN, _FIRST = 0.1, 2
# The median of fewer steps follows an outlier.
_LEAST_STEPS = 3
# A difference beyond this many of them counts as no more.
_OUTLIER = 3.0
# A difference of more than this where nothing changed puts in doubt what the parts take.
_JUMP = 0.3


class _Block(NamedTuple):
    step: Features
    seconds: float
    steps: int
    end: int


class StepTimes:
    """Learns `costs` from the steps of one decision after another."""

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self._last: _Block | None = None
        self._compared = 0

    def learn(self, step: Features, times: Sequence[tuple[int, float]], end: int) -> None:
        """Consecutive steps like `step`: draft tokens made, and seconds. `end`: the number of the last one."""
        if len(times) < _LEAST_STEPS:
            return
        before = _typical(times[:NEAR])
        if self._last is not None and end - len(times) - self._last.end <= 4 * NEAR:
            self._compare(self._last, _Block(step, before, min(len(times), NEAR), end))
        for at in range(NEAR, len(times) - NEAR + 1, NEAR):
            after = _typical(times[at : at + NEAR])
            self._differ(math.log(after / before))
            before = after
        self._last = _Block(step, _typical(times[-NEAR:]), min(len(times), NEAR), end)

    def _compare(self, before: _Block, block: _Block) -> None:
        ratio = block.seconds / before.seconds
        if all(before.step[i] == block.step[i] for i in _COUNTS):
            self._differ(math.log(ratio))
        else:
            few = (NEAR / before.steps + NEAR / block.steps) / 2
            self.costs.drift()
            self.costs.learn_ratio(before.step, block.step, ratio, self.costs.noise * math.sqrt(few))

    def _differ(self, error: float) -> None:
        noise = self.costs.noise
        if abs(error) > max(_JUMP, _OUTLIER * noise):
            self.costs.drift(_JUMP)  # the whole machine is slower, or a part of the step
        square = min(abs(error), _OUTLIER * noise) ** 2
        self._compared += 1
        share = max(_LEARN, 1 / (_FIRST + self._compared))
        self.costs.noise = max(LEAST_NOISE, math.sqrt(noise**2 + share * (square - noise**2)))


def _typical(times: Sequence[tuple[int, float]]) -> float:
    """What a step took: the median of steps that made as many drafts, since some steps meet something else; the mean
    over numbers of drafts made, since a lookup finds something only now and then."""
    made = times[0][0]
    if all(own == made for own, _ in times):
        return _median([seconds for _, seconds in times])
    by_made: dict[int, list[float]] = {}
    for made, seconds in times:
        by_made.setdefault(made, []).append(seconds)
    return sum(len(own) * _median(own) for own in by_made.values()) / len(times)


def _median(values: list[float]) -> float:
    """As `statistics.median`, which takes several times as long for six values. At least `LEAST`: no step takes no
    time, but a clock may say so, and ratios of times are compared."""
    values.sort()
    return max(LEAST, (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2)
