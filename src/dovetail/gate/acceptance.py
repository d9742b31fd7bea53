"""Acceptance: the probability that drafts are accepted, observed over all requests and for each request."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from dovetail.gate.costs import CONTEXTS

# The prior probability that a draft is accepted, and how many observed drafts weigh as much as the prior.
_PRIOR, _PRIOR_WEIGHT = 0.7, 8.0
# At most about this many of the latest drafts count, over all requests and for one request.
_MEMORY, _REQUEST_MEMORY = 512.0, 48.0
# From one decision to the next, counts shrink to this share. So a position that is no longer drafted becomes uncertain.
_LEFT, _REQUEST_LEFT = 0.98, 0.95
# When a track's unit exceeds this, its counts are divided by the unit.
_LARGEST_UNIT = 1e6
# The acceptance over all requests weighs as much as this many tested drafts of the request itself.
_SHARED_WEIGHT = 6.0
# The highest estimate for one request.
_SUREST = 0.995


def per_draft(length: float, drafts: int) -> float:
    """The acceptance probability per draft that gives steps of `drafts` drafts a mean length of `length` tokens.

    It is the same at each position, and holds if the earlier drafts of the step were accepted. Returns 0 or 1 where no
    probability gives `length`.
    """
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if sum(middle**i for i in range(drafts + 1)) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@dataclass(slots=True, eq=False)
class Track:
    """What the gate knows about one request.

    `tested` and `accepted`: by position, how many drafts were tested and accepted lately, times `unit`. The unit grows
    with each decision, so that older drafts count less although their counts stay. `drafts`: the request's draft count
    by the last decision, None before the first. `context`: the range of its length, as an index into `CONTEXTS`.
    """

    tested: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    unit: float = 1.0
    drafts: int | None = None
    context: int = 0

    def count(self, asked: int, accepted: int, times: int) -> None:
        """Count `times` steps since the last decision, each with `asked` drafts asked for and `accepted` accepted."""
        tested, accepted_counts, weight = self.tested, self.accepted, times * self.unit / _REQUEST_LEFT
        if asked > len(tested):
            missing = [0.0] * (asked - len(tested))
            tested += missing
            accepted_counts += missing
        for i in range(accepted):
            tested[i] += weight
            accepted_counts[i] += weight
        if accepted < asked:
            tested[accepted] += weight

    def forget(self) -> None:
        """Lower the weight of the drafts counted so far, so that together they weigh at most `_REQUEST_MEMORY`."""
        tested, unit = self.tested, self.unit / _REQUEST_LEFT
        if tested and tested[0] > _REQUEST_MEMORY * unit:
            unit = tested[0] / _REQUEST_MEMORY
        if unit > _LARGEST_UNIT:
            tested[:] = [count / unit for count in tested]
            self.accepted[:] = [count / unit for count in self.accepted]
            unit = 1.0
        self.unit = unit

    def survivals(self, likely: Sequence[float]) -> list[float]:
        """For each position, the probability that all drafts up to it are accepted.

        `likely`: the acceptance probability by position, over all requests. The estimate follows the request's own
        drafts. At a position where few of them were tested it follows `likely`, lowered by the same factor as at the
        position before.
        """
        probabilities, factor, weight = list[float](), 1.0, _SHARED_WEIGHT * self.unit
        for shared, tested, accepted in zip(likely, self.tested, self.accepted, strict=False):
            probability = (accepted + weight * factor * shared) / (tested + weight)
            factor = probability / shared if probability < shared else 1.0
            probabilities.append(probability if probability < _SUREST else _SUREST)
        if len(probabilities) < len(likely):
            untested = likely[len(probabilities) :]
            probabilities += [p if (p := factor * shared) < _SUREST else _SUREST for shared in untested]
        return list(accumulate(probabilities, mul))


class Acceptance:
    """The probability that a draft is accepted if the earlier ones of its step were, by context range and position.

    The latest drafts count most. Where few drafts were tested, the estimate for a range of context follows the estimate
    for all contexts, and the estimate for a position follows the position before it.

    `made[context][n]`: the number of steps since start that drafted n tokens. `accepted[context][asked][n]`: the number
    of steps that asked for `asked` drafts and accepted n. `likely[context][position]`: the probability, above 0.
    `overall[position]`: the same over all contexts. `doubts[position]`: the standard deviation of the logarithm of the
    probability that all drafts up to this position are accepted.
    """

    def __init__(self, positions: int, prior: Sequence[float] = ()) -> None:
        """`prior`: the probability by position, as far as it is known at start. Later positions take its last value."""
        self._positions = positions
        self._prior = [*prior, *[prior[-1] if prior else _PRIOR] * positions][:positions]
        self.made = [[0] * (positions + 1) for _ in CONTEXTS]
        self.accepted = [self._histogram() for _ in CONTEXTS]
        # The ranges of context with at least one counted step.
        self._known: set[int] = set()
        # Steps since the last call of `learn`, by context, drafts asked for, and drafts accepted.
        self._unlearned = Counter[tuple[int, int, int]]()
        self._tested = [[0.0] * positions for _ in CONTEXTS]
        self._passed = [[0.0] * positions for _ in CONTEXTS]
        self.likely: list[list[float]] = []
        self.learn()

    def count(self, rows: Mapping[tuple[Track | None, int, int, int], int]) -> None:
        """Count drafts. Keys are track, drafts asked for, made and accepted; values are numbers of steps."""
        for (track, asked, made, accepted), times in rows.items():
            if track is not None:
                context = track.context
                self.accepted[context][asked][accepted] += times
                self.made[context][made] += times
                self._unlearned[context, asked, accepted] += times
                track.count(asked, accepted, times)

    def learn(self) -> None:
        """Update the estimates by the drafts that were counted since the last call."""
        self._known.update(context for context, _, _ in self._unlearned)
        for context in self._known:
            self._tested[context] = [_LEFT * count for count in self._tested[context]]
            self._passed[context] = [_LEFT * count for count in self._passed[context]]
        for (context, asked, accepted), times in self._unlearned.items():
            tested, passed = self._tested[context], self._passed[context]
            for i in range(accepted):
                tested[i] += times
                passed[i] += times
            if accepted < asked:
                tested[accepted] += times
        self._unlearned.clear()
        for context in self._known:
            tested = self._tested[context]
            if tested[0] > _MEMORY:
                share = _MEMORY / tested[0]
                self._tested[context] = [share * count for count in tested]
                self._passed[context] = [share * count for count in self._passed[context]]
        self._estimate()

    def _estimate(self) -> None:
        known = self._known or (0,)
        factor, overall, doubt = 1.0, list[float](), 0.0
        self.doubts: list[float] = []
        all_tested = map(sum, zip(*[self._tested[context] for context in known], strict=True))
        all_passed = map(sum, zip(*[self._passed[context] for context in known], strict=True))
        for prior, tested, passed in zip(self._prior, all_tested, all_passed, strict=True):
            weight = tested + _PRIOR_WEIGHT
            # The factor may be above 1, and the prior may grow with the position: no probability is above 1.
            probability = (passed + _PRIOR_WEIGHT * min(1.0, factor * prior)) / weight
            # The estimate at this position differs from its prior by this factor, so the next prior is scaled by it.
            factor = min(probability / prior, 1 / prior)
            overall.append(probability)
            doubt += (1 - probability + 1 / weight) / (probability + 1 / weight) / weight
            self.doubts.append(math.sqrt(doubt))
        self.overall = overall
        self.likely = [overall] * len(CONTEXTS)
        for context in self._known:
            rows = zip(self._passed[context], self._tested[context], overall, strict=True)
            self.likely[context] = [(s + _PRIOR_WEIGHT * p) / (t + _PRIOR_WEIGHT) for s, t, p in rows]

    def totals(self, context: int) -> tuple[list[int], list[int]]:
        """The numbers of tokens drafted and accepted at each position, since start."""
        passed = [sum(times) for times in zip(*self.accepted[context], strict=True)]
        drafted, accepted = (
            [sum(times[i + 1 :]) for i in range(self._positions)] for times in (self.made[context], passed)
        )
        return drafted, accepted

    def _histogram(self) -> list[list[int]]:
        return [[0] * (self._positions + 1) for _ in range(self._positions + 1)]
