"""Acceptance: how likely drafts are to be accepted, as observed over all requests and for one request."""

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
# About how many of the latest drafts are remembered, over all requests and for one request.
_MEMORY, _OWN_MEMORY = 512.0, 48.0
# What is left of it from one decision to the next. So what is not drafted for long is in doubt again.
_LEFT, _OWN_LEFT = 0.98, 0.95
# A unit above this is made 1 again.
_LARGEST_UNIT = 1e6
# How many tested drafts of a request at a position weigh as much as the acceptance of all requests.
_OWN_WEIGHT = 6.0
_SUREST = 0.995


def per_draft(length: float, drafts: int) -> float:
    """The probability that a draft is accepted when those before it were, the same at each position, with which steps
    of so many `drafts` make `length` tokens on average. 0 and 1 where no probability does."""
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

    `tested` and `accepted`: by position, how many drafts were tested and accepted lately, times `unit`. The unit grows,
    so that what is older counts less without being touched. `drafts`: how many tokens it drafts by the last decision,
    None before the first. `context`: the range of its length, as an index into `CONTEXTS`.
    """

    tested: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    unit: float = 1.0
    drafts: int | None = None
    context: int = 0

    def count(self, asked: int, accepted: int, times: int) -> None:
        """Count steps since the last decision: in so many, so many drafts were asked for and so many accepted."""
        tested, passed, weight = self.tested, self.accepted, times * self.unit / _OWN_LEFT
        if asked > len(tested):
            missing = [0.0] * (asked - len(tested))
            tested += missing
            passed += missing
        for i in range(accepted):
            tested[i] += weight
            passed[i] += weight
        if accepted < asked:
            tested[accepted] += weight

    def forget(self) -> None:
        """Forget a part of what was counted before the last decision, and more of it if there is much."""
        tested, unit = self.tested, self.unit / _OWN_LEFT
        if tested and tested[0] > _OWN_MEMORY * unit:
            unit = tested[0] / _OWN_MEMORY
        if unit > _LARGEST_UNIT:
            tested[:] = [count / unit for count in tested]
            self.accepted[:] = [count / unit for count in self.accepted]
            unit = 1.0
        self.unit = unit

    def survivals(self, likely: Sequence[float]) -> list[float]:
        """For each position, the probability that all drafts up to it are accepted.

        It follows the request's own drafts and, where few of them were tested, `likely`, lowered by the same factor as
        at the position before.
        """
        passed, less, weight = list[float](), 1.0, _OWN_WEIGHT * self.unit
        for usual, tested, accepted in zip(likely, self.tested, self.accepted, strict=False):
            passes = (accepted + weight * less * usual) / (tested + weight)
            less = passes / usual if passes < usual else 1.0
            passed.append(passes if passes < _SUREST else _SUREST)
        if len(passed) < len(likely):
            rest = likely[len(passed) :]
            passed += [passes if (passes := less * usual) < _SUREST else _SUREST for usual in rest]
        return list(accumulate(passed, mul))


class Acceptance:
    """How likely a draft is to be accepted when those before it were, by range of context and by position.

    The latest drafts count most. Where little was observed, the estimate for a range of context follows that for all
    contexts, and the estimate for a position follows the position before it.

    `made[context][n]`: in how many steps n tokens were drafted, since start. `accepted[context][asked][n]`: in how many
    steps n of the tokens asked for were accepted. `likely[context][position]`: the probability, above 0.
    """

    def __init__(self, positions: int, prior: Sequence[float] = ()) -> None:
        """`prior`: by position, how likely a draft is to be accepted as far as that is known before; the last one is
        also that of the positions after it."""
        self._positions = positions
        self._prior = [*prior, *[prior[-1] if prior else _PRIOR] * positions][:positions]
        self.made = [[0] * (positions + 1) for _ in CONTEXTS]
        self.accepted = [self._histogram() for _ in CONTEXTS]
        # The ranges of context in which anything was drafted.
        self._known: set[int] = set()
        # By context, how many drafts were asked for and accepted in each step since the last call of `learn`.
        self._unlearned = Counter[tuple[int, int, int]]()
        self._tested = [[0.0] * positions for _ in CONTEXTS]
        self._passed = [[0.0] * positions for _ in CONTEXTS]
        self.likely: list[list[float]] = []
        self.learn()

    def count(self, rows: Mapping[tuple[Track | None, int, int, int], int]) -> None:
        """Count drafts: track, how many were asked for, made and accepted; and in how many steps that was so."""
        for (track, asked, made, accepted), times in rows.items():
            if track is not None:
                context = track.context
                self.accepted[context][asked][accepted] += times
                self.made[context][made] += times
                self._unlearned[context, asked, accepted] += times
                track.count(asked, accepted, times)

    def learn(self) -> None:
        """Update `likely` by what was counted since the last call."""
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
        less, overall, doubt = 1.0, list[float](), 0.0
        self.doubts: list[float] = []
        all_tested = map(sum, zip(*[self._tested[context] for context in known], strict=True))
        all_passed = map(sum, zip(*[self._passed[context] for context in known], strict=True))
        for prior, tested, passed in zip(self._prior, all_tested, all_passed, strict=True):
            weight = tested + _PRIOR_WEIGHT
            # Where the prior grows with the position, it may not be raised above certainty.
            passes = (passed + _PRIOR_WEIGHT * min(1.0, less * prior)) / weight
            # As much likelier than before at this position as at the one before it.
            less = min(passes / prior, 1 / prior)
            overall.append(passes)
            doubt += (1 - passes + 1 / weight) / (passes + 1 / weight) / weight
            self.doubts.append(math.sqrt(doubt))
        self.overall = overall
        self.likely = [overall] * len(CONTEXTS)
        for context in self._known:
            rows = zip(self._passed[context], self._tested[context], overall, strict=True)
            self.likely[context] = [(s + _PRIOR_WEIGHT * p) / (t + _PRIOR_WEIGHT) for s, t, p in rows]

    def totals(self, context: int) -> tuple[list[int], list[int]]:
        """How many tokens were drafted and how many accepted at each position, since start."""
        passed = [sum(times) for times in zip(*self.accepted[context], strict=True)]
        drafted, accepted = (
            [sum(times[i + 1 :]) for i in range(self._positions)] for times in (self.made[context], passed)
        )
        return drafted, accepted

    def _histogram(self) -> list[list[int]]:
        return [[0] * (self._positions + 1) for _ in range(self._positions + 1)]
