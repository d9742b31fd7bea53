"""The cost model: the seconds of a step as a sum of a few parts, with their uncertainty.

A step takes ``parameters · features`` seconds. Only ratios of step times decide how much to draft, so the model learns
ratios while it serves: it compares steps with one number of drafts and steps with another, close to them in time. A
machine that becomes slower as a whole changes no ratio. `covariance` is the uncertainty of the parameters, which gives
every forecast a spread. The filter is Kalman's (https://doi.org/10.1115/1.3662552), with noise that grows for outliers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from operator import mul
from typing import Self

import msgspec

#: The lower ends of the ranges of context, in acceptance and in metrics.
CONTEXTS = (0, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

#: The parts of a step's time, in the order of `Features`.
PARTS = ("step", "token", "rows", "drafting", "pass", "draft", "draft rows", "beyond the knee")
# The prior of each part and its standard deviation, in steps of one sequence without drafts.
_PRIOR = (0.9, 0.05, 0.03, 0.1, 0.1, 0.02, 0.005, 0.0)
_PRIOR_SPREAD = (0.3, 0.15, 0.1, 0.15, 0.2, 0.1, 0.05, 0.05)
# The drift of a part from one learned ratio to the next: a share of itself, and at least a share of a step.
_DRIFT, _LEAST_DRIFT = 0.03, 0.002
# The error of the sum of parts where every part is known, relative to a step.
_MISFIT = 0.03
# An error of more than this many standard deviations is an outlier.
_OUTLIER = 2.5
# Beyond this many tokens in a step, each further token may take longer.
_KNEE = 32
#: `NEAR`: the number of steps in a comparison, before and after. `_NOISE`: the prior noise of their medians.
NEAR, _NOISE, LEAST_NOISE = 6, 0.2, 0.02
# The range of seconds that a model allows for a step.
LEAST, _LONGEST = 1e-7, 1e6

Features = tuple[float, ...]
"""The amount of each part in a step."""


def features(drafts: Sequence[int], contexts: Sequence[float]) -> Features:
    """The features of a step in which sequence i has ``contexts[i]`` tokens and drafts ``drafts[i]``."""
    rows = sum(map(mul, drafts, contexts)) / 1024
    return of_totals(len(drafts), sum(contexts), max(drafts), sum(drafts), rows)


def of_totals(batch: int, context: float, depth: int, drafts: int, draft_rows: float) -> Features:
    """The features of a step with these totals over all sequences.

    `depth`: the most drafts of a sequence. `draft_rows`: drafts times context, in units of 1,024.
    """
    beyond = max(0, batch + drafts - max(_KNEE, batch))
    return (1.0, batch + drafts, context / 1024, float(depth > 0), depth, drafts, draft_rows, beyond)


class Rounds(msgspec.Struct, frozen=True):
    """Timed steps of `batch` sequences of `context` tokens each.

    ``seconds[i][j]``: the step of round i in which every sequence drafted ``drafts[j]`` tokens; ``drafts[0]`` is 0.
    Steps of one round follow one another, so that their ratios are reliable.
    """

    batch: int
    context: int
    drafts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def step(self, drafts: int) -> Features:
        """The features of a step in which every sequence drafts `drafts` tokens."""
        return features([drafts] * self.batch, [float(self.context)] * self.batch)

    def ratios(self) -> dict[int, list[float]]:
        """For each number of drafts above 0, the ratio to the seconds without drafts, round by round."""
        return {
            k: [max(LEAST, row[j]) / max(LEAST, row[0]) for row in self.seconds] for j, k in enumerate(self.drafts) if j
        }


class CostModel(msgspec.Struct):
    """Seconds of each of `PARTS`, with their covariance.

    `noise`: the standard deviation of the logarithm of the ratio of two medians, of `NEAR` steps and of the next `NEAR`
    equal steps. `acceptance[i]`: the last known probability that draft i is accepted.
    """

    parameters: list[float]
    covariance: list[list[float]]
    noise: float = _NOISE
    acceptance: list[float] = []

    def __post_init__(self) -> None:
        """Raises `ValueError` for an inconsistent model, which a file may contain."""
        size = len(PARTS)
        if len(self.parameters) != size or [len(row) for row in self.covariance] != [size] * size:
            raise ValueError(f"a cost model has {size} parameters and their covariance")
        if not all(0 <= value <= _LONGEST for value in self.parameters) or self.parameters[0] < LEAST:
            raise ValueError(f"a step must take from {LEAST} to {_LONGEST} seconds")
        if not all(abs(value) <= _LONGEST**2 for row in self.covariance for value in row):
            raise ValueError("the covariance must be finite")
        if not all(self.covariance[i][i] >= 0 for i in range(size)):
            raise ValueError("variances must not be negative")
        if not LEAST_NOISE <= self.noise < math.inf:
            raise ValueError(f"noise must be within {LEAST_NOISE} and any number")
        if not all(0 <= value <= 1 for value in self.acceptance):
            raise ValueError("acceptance must be within 0 and 1")

    @classmethod
    def unmeasured(cls, step: float = 1.0) -> Self:
        """The model before any measurement, if a step of one sequence takes `step` seconds."""
        step = min(max(LEAST / _PRIOR[0], step), _LONGEST / 2)
        size = range(len(PARTS))
        variances = [(step * spread) ** 2 for spread in _PRIOR_SPREAD]
        return cls([step * part for part in _PRIOR], [[variances[i] * (i == j) for j in size] for i in size])

    @classmethod
    def fit(cls, measured: Sequence[Rounds]) -> Self:
        """The model of timed steps, from at least one round in each group."""
        model = cls.unmeasured(statistics.median(row[0] for row in measured[0].seconds) / measured[0].batch ** 0.5)
        uncertain = model.covariance
        # Twice, because outliers are recognised only by a model that is roughly right.
        for _ in range(2):
            model.covariance = uncertain
            for group in measured:
                model._learn_rounds(group)
        by_count = [ratios for group in measured for ratios in group.ratios().values()]
        deviations = [abs(math.log(each / statistics.median(ratios))) for ratios in by_count for each in ratios]
        # The noise of medians of `NEAR` steps follows from single steps. Few rounds agree by chance: more noise then.
        widened = 1 + 4 / len(measured[0].seconds)
        model.noise = max(LEAST_NOISE, widened * 1.48 * statistics.median(deviations) * 1.25 / NEAR**0.5)
        return model

    def _learn_rounds(self, group: Rounds) -> None:
        base, times = group.step(0), [row[0] for row in group.seconds]
        self.learn_seconds(base, statistics.median(times), _spread_of_median(times))
        for drafts, ratios in group.ratios().items():
            self.learn_ratio(base, group.step(drafts), statistics.median(ratios), _spread_of_median(ratios))

    def seconds(self, step: Features) -> float:
        return float(sum(map(mul, self.parameters, step)))

    def marginal(self, batch: int, tokens: int) -> tuple[float, float]:
        """Seconds of one more draft in a step of `batch` sequences and `tokens` tokens: fixed, and per 1,024 rows."""
        _, token, _, _, _, draft, rows, beyond = self.parameters
        return token + draft + beyond * (tokens > max(_KNEE, batch)), rows

    def spread(
        self, one: Features, other: Features, seconds: float | None = None, others: float | None = None
    ) -> float:
        """The standard deviation of the logarithm of the ratio of two steps' times.

        `seconds`, `others`: their times by this model, where the caller has computed them already.
        """
        a, b = seconds or self.seconds(one), others or self.seconds(other)
        return math.sqrt(max(0.0, self._variance([x / a - y / b for x, y in zip(one, other, strict=True)])))

    def learn_seconds(self, step: Features, seconds: float, spread: float) -> None:
        """Learn that a step like `step` took `seconds`. `spread`: the standard deviation of the logarithm."""
        self._learn([x / seconds for x in step], 1.0, spread)

    def learn_ratio(self, one: Features, other: Features, ratio: float, spread: float) -> None:
        """Learn that steps like `other` took `ratio` times as long as steps like `one`, close to them in time.

        `spread`: the standard deviation of the logarithm of the ratio.
        """
        if not 1e-3 < ratio < 1e3:
            return
        size = max(self.seconds(other), ratio * self.seconds(one))
        self._learn([(y - ratio * x) / size for x, y in zip(one, other, strict=True)], 0.0, spread)

    def try_on(self, group: Rounds) -> bool:
        """Scale a model of an earlier start to newly timed steps. Returns False if their ratios contradict it."""
        base = group.step(0)
        for drafts, ratios in group.ratios().items():
            spread, step = _spread_of_median(ratios), group.step(drafts)
            error = math.log(statistics.median(ratios) * self.seconds(base) / self.seconds(step))
            if abs(error) > max(0.15, 2 * math.hypot(spread, self.spread(base, step))):
                return False
        self.scale(statistics.median(row[0] for row in group.seconds) / self.seconds(base))
        return True

    def drift(self, share: float = _DRIFT) -> None:
        """Make every part less certain: it may have changed by this share. So the next measurements count more."""
        least = _LEAST_DRIFT * self.parameters[0]
        for i, value in enumerate(self.parameters):
            most = (_PRIOR_SPREAD[i] * self.parameters[0]) ** 2
            row = self.covariance[i]
            row[i] = max(row[i], min(row[i] + (share * value + least) ** 2, most))

    def scale(self, factor: float) -> None:
        """Multiply all times by `factor`: the machine as a whole became slower or faster."""
        if self.parameters[0] * factor > LEAST and sum(self.parameters) * factor < _LONGEST:
            self.parameters = [value * factor for value in self.parameters]
            self.covariance = [[value * factor**2 for value in row] for row in self.covariance]

    def _learn(self, direction: list[float], value: float, spread: float) -> None:
        """Learn that ``direction · parameters`` was measured as `value`, with the standard deviation `spread`."""
        noise, size = spread**2 + _MISFIT**2, range(len(PARTS))
        covariance = self.covariance
        while True:
            towards = [sum(map(mul, row, direction)) for row in covariance]
            error = value - sum(map(mul, self.parameters, direction))
            # An outlier gets a larger noise: the least noise by which it lies within `_OUTLIER` standard deviations.
            total = max(sum(map(mul, towards, direction)) + noise, (error / _OUTLIER) ** 2)
            if covariance is self.covariance:
                self.covariance = [
                    [old - gain * each / total for old, each in zip(row, towards, strict=True)]
                    for row, gain in zip(covariance, towards, strict=True)
                ]
            moved = [old + each / total * error for old, each in zip(self.parameters, towards, strict=True)]
            # No part may be negative. A part that would be is set to 0, and the update is done by the other parts.
            below = [i for i in size if moved[i] < (LEAST if i == 0 else 0.0) and direction[i]]
            if not below:
                break
            for i in below:
                self.parameters[i] = 0.0 if i else LEAST
            if len(below) == sum(map(bool, direction)):
                return
            value -= sum(direction[i] * self.parameters[i] for i in below)
            direction = [0.0 if i in below else each for i, each in enumerate(direction)]
        self.parameters = [min(max(0.0, new), _LONGEST) for new in moved]
        self.parameters[0] = max(LEAST, self.parameters[0])

    def _variance(self, direction: Sequence[float]) -> float:
        # Written out, because a decision computes several variances, and sums of products take twice as long.
        d0, d1, d2, d3, d4, d5, d6, d7 = direction
        variance = 0.0
        for factor, (c0, c1, c2, c3, c4, c5, c6, c7) in zip(direction, self.covariance, strict=True):
            variance += factor * (c0 * d0 + c1 * d1 + c2 * d2 + c3 * d3 + c4 * d4 + c5 * d5 + c6 * d6 + c7 * d7)
        return variance


def _spread_of_median(values: Sequence[float]) -> float:
    """The standard deviation of the median of these values, relative to the median; 0.5 for a single value."""
    if len(values) < 2:
        return 0.5
    middle = statistics.median(values)
    deviation = statistics.median(abs(value - middle) for value in values) / middle
    # Few values agree by chance. So their spread is at least the spread on a quiet machine, and widened for few values.
    return max(1.85 * deviation, 0.03) * (1 + 2 / len(values)) / math.sqrt(len(values))
