"""Acceptance: the probability that drafts are accepted, over all requests, by kind of request, and for each request.

All estimates are counts of tested and accepted drafts. Only drafts change them: while nothing is drafted, the gate
keeps what it knew. Old drafts count less when there are many newer ones, and hardly at all when the newer ones
contradict them (`_left`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.gate.costs import CONTEXTS

# The prior probability that a draft is accepted, and how many tested drafts weigh as much as the prior.
_PRIOR, _PRIOR_WEIGHT = 0.7, 2.0
# At most about this many of the latest drafts count, over all requests and for one request.
_MEMORY, _REQUEST_MEMORY = 512.0, 48.0
# How many tested drafts weigh as much as the estimate one level above: for a kind the estimate for all requests, for a
# kind in one range of context the estimate for the kind, for a request the estimate for its kind and context.
_WEIGHT, _REQUEST_WEIGHT = 8.0, 6.0
# New drafts contradict the old ones if they are e ** _SURPRISE times likelier by their own share of accepted drafts. At
# most `_INDEPENDENT` of them count as independent of each other.
_SURPRISE, _INDEPENDENT = 4.0, 32.0
# Then the old ones weigh this part of the new ones: of these some may have been drafted before the change.
_CONTRADICTED = 8.0
# The highest estimate for one request.
_SUREST = 0.995

#: The kind of a sequence whose last tokens occurred earlier in it too, and what followed there is likely.
LONG_MATCH = "long match"
# Kind -> the least estimate for a request of which no more than `_TRIED` drafts were tested.
_AT_LEAST, _TRIED = {LONG_MATCH: 0.8}, 12


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


def surprising(tested: float, accepted: float, probability: float) -> bool:
    """Whether `accepted` of `tested` drafts contradict `probability`."""
    if abs(accepted - tested * probability) < 0.9:  # most cases, without a logarithm
        return False
    p = min(max(probability, 0.002), 0.998)
    evidence = accepted * math.log(accepted / tested / p) if accepted else 0.0
    if accepted < tested:
        evidence += (tested - accepted) * math.log((1 - accepted / tested) / (1 - p))
    # Many drafts are of requests that differ, so they say less than as many tosses of one coin.
    return evidence * min(1.0, _INDEPENDENT / tested) > _SURPRISE


def _left(tested: float, accepted: float, new: float, new_accepted: float) -> float:
    """The share of the old drafts that still counts: less than 1 if `new` drafts contradict them.

    `new_accepted`: how many of these were accepted.
    """
    most = new / _CONTRADICTED
    return most / tested if tested > most and surprising(new, new_accepted, accepted / tested) else 1.0


class Record:
    """Numbers of drafts by position in a step: those tested, and those accepted."""

    __slots__ = ("accepted", "tested")

    def __init__(self, positions: int) -> None:
        self.tested = [0.0] * positions
        self.accepted = [0.0] * positions

    def add(self, tested: Sequence[float], accepted: Sequence[float]) -> bool:
        """Add newer drafts, at each position. Returns whether they contradict the old ones."""
        left = _left(self.tested[0], self.accepted[0], tested[0], accepted[0])
        for i, (new, stood) in enumerate(zip(tested, accepted, strict=True)):
            whole = left * self.tested[i] + new
            share = min(1.0, _MEMORY / max(whole, 1.0))
            self.tested[i] = share * whole
            self.accepted[i] = share * (left * self.accepted[i] + stood)
        return left < 1

    def below(self, above: Sequence[float]) -> list[float]:
        """The probability by position, if `above` is the estimate one level above."""
        rows = zip(self.accepted, self.tested, above, strict=True)
        return [(s + _WEIGHT * p) / (t + _WEIGHT) for s, t, p in rows]


@dataclass(slots=True, eq=False)
class Track:
    """What the gate knows about one request.

    `kind`: what it has in common with others whose drafts are accepted about as often. `tested` and `accepted`: by
    position, how many drafts were tested and accepted lately. `new`: steps that are not in them yet, as drafts asked
    for, drafts accepted, and how many such steps. `drafts`: the request's draft count by the last decision, None before
    the first. `context`: the range of its length, as an index into `CONTEXTS`.
    """

    kind: str = ""
    tested: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    new: list[tuple[int, int, int]] = field(default_factory=list)
    drafts: int | None = None
    context: int = 0

    @property
    def tried(self) -> bool:
        """Whether enough drafts of the request itself were tested to go by them."""
        return bool(self.tested) and self.tested[0] > _TRIED

    def learn(self) -> None:
        """Add the new steps. The drafts before them lose weight (`_left`)."""
        if not self.new:
            return
        tested, accepted_counts, new, stood = self.tested, self.accepted, 0, 0
        for _, accepted, times in self.new:
            new += times
            if accepted:
                stood += times
        if tested and (left := _left(tested[0], accepted_counts[0], new, stood)) < 1:
            tested[:] = [left * count for count in tested]
            accepted_counts[:] = [left * count for count in accepted_counts]
        for asked, accepted, times in self.new:
            if asked > len(tested):
                missing = [0.0] * (asked - len(tested))
                tested += missing
                accepted_counts += missing
            for i in range(accepted):
                tested[i] += times
                accepted_counts[i] += times
            if accepted < asked:
                tested[accepted] += times
        self.new = []
        for i, count in enumerate(tested):
            if count > _REQUEST_MEMORY:
                tested[i] = _REQUEST_MEMORY
                accepted_counts[i] *= _REQUEST_MEMORY / count

    def survivals(self, likely: Sequence[float]) -> list[float]:
        """For each position, the probability that all drafts up to it are accepted.

        `likely`: the acceptance probability by position, for requests of this kind. The estimate follows the request's
        own drafts. At a position where few of them were tested it follows `likely`, lowered by the same factor as at
        the position before.
        """
        survivals: list[float] = []
        survival = factor = 1.0
        for shared, tested, accepted in zip(likely, self.tested, self.accepted, strict=False):
            probability = (accepted + _REQUEST_WEIGHT * factor * shared) / (tested + _REQUEST_WEIGHT)
            factor = probability / shared if probability < shared else 1.0
            survival *= probability if probability < _SUREST else _SUREST
            survivals.append(survival)
        for shared in likely[len(survivals) :]:
            probability = factor * shared
            survival *= probability if probability < _SUREST else _SUREST
            survivals.append(survival)
        return survivals


class Acceptance:
    """The probability that a draft is accepted if the earlier ones of its step were, by kind, context and position.

    Where few drafts were tested, the estimate for a kind in a range of context follows the estimate for the kind, that
    one follows the estimate for all requests, and the estimate for a position follows the position before it.

    `made[context][n]`: the number of steps since start that drafted n tokens. `accepted[context][asked][n]`: the number
    of steps that asked for `asked` drafts and accepted n. `overall[position]`: the probability over all requests, above
    0. `doubts[position]`: the standard deviation of the logarithm of the probability that all drafts up to this
    position are accepted.
    """

    def __init__(self, positions: int, prior: Sequence[float] = ()) -> None:
        """`prior`: the probability by position, as far as it is known at start. Later positions take its last value."""
        self._positions = positions
        self._prior = [*prior, *[prior[-1] if prior else _PRIOR] * positions][:positions]
        self.made = [[0] * (positions + 1) for _ in CONTEXTS]
        self.accepted = [self._histogram() for _ in CONTEXTS]
        # Steps since the last call of `learn`, by kind, context, drafts asked for, and drafts accepted.
        self._unlearned = Counter[tuple[str, int, int, int]]()
        self._all = Record(positions)
        self._kinds: dict[str, Record] = {}
        self._cells: dict[tuple[str, int], Record] = {}
        self._likely: dict[tuple[str, int, bool], list[float]] = {}
        self._estimate()

    def count(self, rows: Mapping[tuple[Track | None, int, int, int], int]) -> None:
        """Count drafts. Keys are track, drafts asked for, made and accepted; values are numbers of steps."""
        for (track, asked, made, accepted), times in rows.items():
            if track is not None:
                context = track.context
                self.accepted[context][asked][accepted] += times
                self.made[context][made] += times
                self._unlearned[track.kind, context, asked, accepted] += times
                track.new.append((asked, accepted, times))

    def learn(self) -> bool:
        """Update the estimates by the drafts that were counted since the last call.

        Returns whether these contradict what was known.
        """
        if not self._unlearned:
            return False
        new = dict[tuple[str, int] | str | None, tuple[list[float], list[float]]]()
        for (kind, context, asked, accepted), times in self._unlearned.items():
            for place in (kind, context), kind, None:
                if place not in new:
                    new[place] = [0.0] * self._positions, [0.0] * self._positions
                tested, passed = new[place]
                for i in range(accepted):
                    tested[i] += times
                    passed[i] += times
                if accepted < asked:
                    tested[accepted] += times
        self._unlearned.clear()
        contradicted = [self._record(place).add(tested, passed) for place, (tested, passed) in new.items()]
        self._estimate()
        return any(contradicted)

    def likely(self, kind: str, context: int, *, tried: bool = False) -> list[float]:
        """The probability by position for a request of this kind, in this range of context.

        `tried`: whether drafts of this request itself were tested. Otherwise it is at least `_AT_LEAST`.
        """
        place = kind, context, tried or kind not in _AT_LEAST
        if place not in self._likely:
            above = self._kinds[kind].below(self.overall) if kind in self._kinds else self.overall
            cell = self._cells.get((kind, context))
            estimate = above if cell is None else cell.below(above)
            self._likely[place] = estimate if place[2] else [max(_AT_LEAST[kind], each) for each in estimate]
        return self._likely[place]

    def _record(self, place: tuple[str, int] | str | None) -> Record:
        if place is None:
            return self._all
        if isinstance(place, str):
            return self._kinds.setdefault(place, Record(self._positions))
        return self._cells.setdefault(place, Record(self._positions))

    def _estimate(self) -> None:
        self._likely.clear()
        factor, overall, doubt = 1.0, list[float](), 0.0
        self.doubts: list[float] = []
        for prior, tested, passed in zip(self._prior, self._all.tested, self._all.accepted, strict=True):
            weight = tested + _PRIOR_WEIGHT
            # The factor may be above 1, and the prior may grow with the position: no probability is above 1.
            probability = (passed + _PRIOR_WEIGHT * min(1.0, factor * prior)) / weight
            # The estimate at this position differs from its prior by this factor, so the next prior is scaled by it.
            factor = min(probability / prior, 1 / prior)
            overall.append(probability)
            doubt += (1 - probability + 1 / weight) / (probability + 1 / weight) / weight
            self.doubts.append(math.sqrt(doubt))
        self.overall = overall

    def totals(self, context: int) -> tuple[list[int], list[int]]:
        """The numbers of tokens drafted and accepted at each position, since start."""
        passed = [sum(times) for times in zip(*self.accepted[context], strict=True)]
        drafted, accepted = (
            [sum(times[i + 1 :]) for i in range(self._positions)] for times in (self.made[context], passed)
        )
        return drafted, accepted

    def _histogram(self) -> list[list[int]]:
        return [[0] * (self._positions + 1) for _ in range(self._positions + 1)]
