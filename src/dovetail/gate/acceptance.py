"""How likely drafts are to stand, as it was seen: of all requests, and of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.gate.costs import CONTEXTS

# Before anything was seen a draft stands with this probability, and so many drafts must be seen to say otherwise.
_PRIOR, _PRIOR_WEIGHT = 0.7, 8.0
# The latest drafts count most: as many as these, over all requests and of one.
_MEMORY, _OWN_MEMORY = 1024.0, 48.0
# How many drafts of a request must be tested at a position to outweigh what all requests say.
_OWN_WEIGHT = 6.0
_SUREST = 0.995


@dataclass(slots=True, eq=False)
class Track:
    """What the gate knows of one request: by position, how many drafts were tested lately and how many stood; of each
    step that it has not looked at yet, how many were asked for and how many stood; how many it is to draft, None as
    many as others; and how long it is."""

    tested: list[float] = field(default_factory=list)
    stood: list[float] = field(default_factory=list)
    fresh: list[tuple[int, int]] = field(default_factory=list)
    drafts: int | None = None
    context: int = 0  # an index into CONTEXTS

    def learn(self) -> None:
        """Take in what is fresh."""
        tested, stood = self.tested, self.stood
        if not self.fresh:
            return
        longest = max(self.fresh)[0]
        tested += [0.0] * (longest - len(tested))
        stood += [0.0] * (longest - len(stood))
        for (drafted, accepted), times in Counter(self.fresh).items():
            for i in range(accepted):
                tested[i] += times
                stood[i] += times
            if accepted < drafted:
                tested[accepted] += times
        self.fresh.clear()
        if tested and tested[0] > _OWN_MEMORY:
            share = _OWN_MEMORY / tested[0]
            tested[:] = [share * count for count in tested]
            stood[:] = [share * count for count in stood]

    def survivals(self, likely: Sequence[float]) -> list[float]:
        """How likely the first so many drafts are to stand, all of them: as its own did, and where few of them were
        tested as `likely`, or by as much less as those before did."""
        survivals, survives, less, known = list[float](), 1.0, 1.0, len(self.tested)
        for i, usual in enumerate(likely):
            stands = less * usual
            if i < known:
                stands = (self.stood[i] + _OWN_WEIGHT * stands) / (self.tested[i] + _OWN_WEIGHT)
            less = min(1.0, stands / usual)
            survives *= min(_SUREST, stands)
            survivals.append(survives)
        return survivals


class Acceptance:
    """How often drafts that were asked for stood where those before them did, by position and context; the latest count
    most.

    Where little was seen of a context, all contexts say what is likely; of a position, the one before it does.
    """

    def __init__(self, positions: int) -> None:
        self._positions = positions
        #: Since start, by context: how often so many were drafted; how often so many were asked for and so many stood.
        #: And what of it was learned from.
        self.drafted = [[0] * (positions + 1) for _ in CONTEXTS]
        self.seen = [self._histogram() for _ in CONTEXTS]
        self._learned = [self._histogram() for _ in CONTEXTS]
        self._tested = [[0.0] * positions for _ in CONTEXTS]
        self._stood = [[0.0] * positions for _ in CONTEXTS]
        #: By context and position, how likely a draft is to stand; above 0.
        self.likely: list[list[float]] = []
        self.learn()

    def learn(self) -> None:
        """Take in what was seen since this was last called."""
        for context, (seen, learned) in enumerate(zip(self.seen, self._learned, strict=True)):
            tested, stood = self._tested[context], self._stood[context]
            for drafted, row in enumerate(seen):
                if row == learned[drafted]:
                    continue
                for accepted, count in enumerate(row):
                    times = count - learned[drafted][accepted]
                    for i in range(min(accepted + 1, drafted)):
                        tested[i] += times
                        stood[i] += times * (i < accepted)
                learned[drafted] = row.copy()
            if tested and tested[0] > _MEMORY:
                share = _MEMORY / tested[0]
                tested[:] = [share * count for count in tested]
                stood[:] = [share * count for count in stood]
        prior, overall = _PRIOR, []
        for i in range(self._positions):
            stood_here, tested_here = sum(row[i] for row in self._stood), sum(row[i] for row in self._tested)
            prior = (stood_here + _PRIOR_WEIGHT * prior) / (tested_here + _PRIOR_WEIGHT)
            overall.append(prior)
        self.likely = [
            [(s + _PRIOR_WEIGHT * p) / (t + _PRIOR_WEIGHT) for s, t, p in zip(stood, tested, overall, strict=True)]
            for stood, tested in zip(self._stood, self._tested, strict=True)
        ]

    def totals(self, context: int) -> tuple[list[int], list[int]]:
        """How many were drafted and how many stood at each position, since start."""
        stood = [sum(times) for times in zip(*self.seen[context], strict=True)]
        drafted, accepted = (
            [sum(times[i + 1 :]) for i in range(self._positions)] for times in (self.drafted[context], stood)
        )
        return drafted, accepted

    def _histogram(self) -> list[list[int]]:
        return [[0] * (self._positions + 1) for _ in range(self._positions + 1)]
