"""The gate for an engine whose steps end in drafts for all: asked after a step was scheduled, told when it is done.

Step s tests the drafts that step s - 1 ended with, and ends with new ones, so what step s takes belongs to one number
of drafts only where the choices before and after it were the same. Steps may overlap: s + 1 can be scheduled before s
is done. Nothing here knows vLLM.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dovetail.gate import Gate, Track


class Decoding(NamedTuple):
    """A sequence that decodes in the next step, may be `context` tokens long then, and may draft `cap` at most."""

    name: str
    context: int
    cap: int


class Outcome(NamedTuple):
    """Of a sequence's drafts in a step: how many were tested, and stood."""

    made: int
    accepted: int


@dataclass(slots=True)
class _Step:
    asked: dict[str, tuple[Track, int]]
    # Which choice its drafts are from, None where not all of them are or it does other things besides; and which one
    # it ends with.
    tests: int | None
    makes: int


class StepGate:
    """Surrounds `gate`; `clock` gives seconds."""

    def __init__(self, gate: Gate, clock: Callable[[], float] = time.perf_counter) -> None:
        self.gate = gate
        #: How many drafts the step that was scheduled last ends with, for whoever has most.
        self.depth = 0
        #: Of which sequences the last choice was, and how long the shortest of them may be.
        self.names: tuple[str, ...] = ()
        self.shortest = 0
        self._clock = clock
        self._tracks: dict[str, Track] = {}
        # What was chosen for drafts that were not tested yet.
        self._asked: dict[str, int] = {}
        # The last choice, by a number that changes with it.
        self._chosen: tuple[int, ...] = ()
        self._choice = 0
        self._steps: deque[_Step] = deque()
        # When the step before was done, None where nothing was to be done after it.
        self._done: float | None = None

    def scheduled(self, names: Collection[str], decoding: Sequence[Decoding], alive: Collection[str]) -> None:
        """A step of the sequences `names` was scheduled, after which `decoding` have drafts; `alive` are all that there
        are. Every step that is scheduled must be `done` later, in the same order."""
        tests = self._choice if names and len(names) == len(self.names) and set(names) == {*self.names} else None
        asked = {
            name: (self._tracks[name], count)
            for name in names
            if (count := self._asked.pop(name, None)) and name in self._tracks
        }
        if len(self._tracks) > 2 * len(alive):
            self._tracks = {name: track for name, track in self._tracks.items() if name in alive}
            self._asked = {name: count for name, count in self._asked.items() if name in alive}
        tracks = [self._tracks.setdefault(each.name, Track()) for each in decoding]
        chosen = self.gate.choose(tracks, [each.context for each in decoding], [each.cap for each in decoding])
        what = tuple(each.name for each in decoding), tuple(chosen)
        if what != (self.names, self._chosen):
            (self.names, self._chosen), self._choice = what, self._choice + 1
        self._asked.update(zip(*what, strict=True))
        self.depth = max(chosen, default=0)
        self.shortest = min((each.context for each in decoding), default=0)
        self._steps.append(_Step(asked, tests, self._choice))

    def allowed(self, name: str) -> int:
        """How many drafts the next step may test of a sequence that was `scheduled` as decoding."""
        return self._asked.get(name, 0)

    def done(self, outcomes: Mapping[str, Outcome], *, more: bool) -> None:
        """The step that was scheduled first of those not done is; `more`: there is something to do at once."""
        step, now = self._steps.popleft(), self._clock()
        plain = step.tests == step.makes == self._choice
        seconds = now - self._done if plain and self._done is not None else None
        self._done = now if more else None
        drafted = []
        for name, (track, asked) in step.asked.items():
            if name in outcomes:
                made, accepted = outcomes[name]
                drafted.append((track, asked, min(made, asked), min(accepted, asked)))
        self.gate.tell(drafted, seconds)
