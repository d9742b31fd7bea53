"""Acceptance: how likely drafts are to be accepted, as observed over all requests and for one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.gate.costs import CONTEXTS

# The prior probability that a draft is accepted, and how many observed drafts weigh as much as the prior.
_PRIOR, _PRIOR_WEIGHT = 0.7, 8.0
# About how many of the latest drafts are remembered, over all requests and for one request.
_MEMORY, _OWN_MEMORY = 1024.0, 48.0
# How many tested drafts of a request at a position weigh as much as the acceptance of all requests.
_OWN_WEIGHT = 6.0
_SUREST = 0.995


@dataclass(slots=True, eq=False)
class Track:
    """What the gate knows about one request.

    `tested` and `accepted`: by position, how many drafts were tested and accepted lately. `unlearned`: how many drafts
    were asked for and accepted in each step that is not yet in these. `drafts`: how many tokens it drafts by the last
    decision, None before the first. `context`: the range of its length, as an index into `CONTEXTS`.
    """

    tested: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    unlearned: list[tuple[int, int]] = field(default_factory=list)
    drafts: int | None = None
    context: int = 0

    def learn(self) -> None:
        """Add the unlearned steps to `tested` and `accepted`."""
        tested, accepted = self.tested, self.accepted
        if not self.unlearned:
            return
        longest = max(self.unlearned)[0]
        tested += [0.0] * (longest - len(tested))
        accepted += [0.0] * (longest - len(accepted))
        for (drafted, count), times in Counter(self.unlearned).items():
            for i in range(count):
                tested[i] += times
                accepted[i] += times
            if count < drafted:
                tested[count] += times
        self.unlearned.clear()
        if tested and tested[0] > _OWN_MEMORY:
            share = _OWN_MEMORY / tested[0]
            tested[:] = [share * count for count in tested]
            accepted[:] = [share * count for count in accepted]

    def survivals(self, likely: Sequence[float]) -> list[float]:
        """For each position, the probability that all drafts up to it are accepted.

        It follows the request's own drafts and, where few of them were tested, `likely`, lowered by the same factor as
        at the position before.
        """
        survivals, survives, less, known = list[float](), 1.0, 1.0, len(self.tested)
        for i, usual in enumerate(likely):
            passes = less * usual
            if i < known:
                passes = (self.accepted[i] + _OWN_WEIGHT * passes) / (self.tested[i] + _OWN_WEIGHT)
            less = min(1.0, passes / usual)
            survives *= min(_SUREST, passes)
            survivals.append(survives)
        return survivals


class Acceptance:
    """How likely a draft is to be accepted when those before it were, by range of context and by position.

    The latest drafts count most. Where little was observed, the estimate for a range of context follows that for all
    contexts, and the estimate for a position follows the position before it.

    `made[context][n]`: in how many steps n tokens were drafted, since start. `accepted[context][asked][n]`: in how many
    steps n of the tokens asked for were accepted. `likely[context][position]`: the probability, above 0.
    """

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self.made = [[0] * (positions + 1) for _ in CONTEXTS]
        self.accepted = [self._histogram() for _ in CONTEXTS]
        self._learned = [self._histogram() for _ in CONTEXTS]
        self._tested = [[0.0] * positions for _ in CONTEXTS]
        self._passed = [[0.0] * positions for _ in CONTEXTS]
        self.likely: list[list[float]] = []
        self.learn()

    def learn(self) -> None:
        """Update `likely` by what was counted since the last call."""
        for context, (seen, learned) in enumerate(zip(self.accepted, self._learned, strict=True)):
            tested, passed = self._tested[context], self._passed[context]
            for drafted, row in enumerate(seen):
                if row == learned[drafted]:
                    continue
                for accepted, count in enumerate(row):
                    times = count - learned[drafted][accepted]
                    for i in range(min(accepted + 1, drafted)):
                        tested[i] += times
                        passed[i] += times * (i < accepted)
                learned[drafted] = row.copy()
            if tested and tested[0] > _MEMORY:
                share = _MEMORY / tested[0]
                tested[:] = [share * count for count in tested]
                passed[:] = [share * count for count in passed]
        prior, overall = _PRIOR, []
        for i in range(self._positions):
            passed_here, tested_here = sum(row[i] for row in self._passed), sum(row[i] for row in self._tested)
            prior = (passed_here + _PRIOR_WEIGHT * prior) / (tested_here + _PRIOR_WEIGHT)
            overall.append(prior)
        self.likely = [
            [(s + _PRIOR_WEIGHT * p) / (t + _PRIOR_WEIGHT) for s, t, p in zip(passed, tested, overall, strict=True)]
            for passed, tested in zip(self._passed, self._tested, strict=True)
        ]

    def totals(self, context: int) -> tuple[list[int], list[int]]:
        """How many tokens were drafted and how many accepted at each position, since start."""
        passed = [sum(times) for times in zip(*self.accepted[context], strict=True)]
        drafted, accepted = (
            [sum(times[i + 1 :]) for i in range(self._positions)] for times in (self.made[context], passed)
        )
        return drafted, accepted

    def _histogram(self) -> list[list[int]]:
        return [[0] * (self._positions + 1) for _ in range(self._positions + 1)]
