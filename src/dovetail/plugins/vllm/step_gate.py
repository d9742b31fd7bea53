"""Drives the gate in an engine whose steps first verify the last step's drafts and then draft for all sequences.

The time of a step belongs to one number of drafts only if the step verifies as many drafts as it makes. Steps may
overlap: the next one may be scheduled before this one is done. Nothing here depends on vLLM.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dovetail.gate import Gate, Track


class Decoding(NamedTuple):
    """A sequence that decodes in the next step.

    `context`: the most tokens it then has. `cap`: its most drafts. `kind`: as in `Track`.
    """

    name: str
    context: int
    cap: int
    kind: str = ""


class Outcome(NamedTuple):
    """How many drafts of a sequence one step verified, and how many it accepted."""

    verified: int
    accepted: int


@dataclass(slots=True)
class _Step:
    asked: dict[str, tuple[Track, int]]
    # The number of the choice whose drafts this step verifies; None if they are of several choices, or if the step also
    # computes prompts.
    verifies: int | None
    # The number of the choice by which this step drafts.
    drafts: int


class StepGate:
    """Asks `gate` when a step is scheduled, and tells it the outcome when the step is done. `clock` returns seconds.

    `uniform`: all sequences of a step draft as many as the one that drafts most, whatever their own caps and limits,
    because a step in which they differ has no CUDA graph.
    """

    def __init__(self, gate: Gate, clock: Callable[[], float] = time.perf_counter, *, uniform: bool = False) -> None:
        self.gate = gate
        #: The most drafts that the step scheduled last makes for one sequence.
        self.depth = 0
        #: The sequences of the last choice, and the context of the shortest.
        self.names: tuple[str, ...] = ()
        self.shortest = 0
        self._clock = clock
        self._uniform = uniform
        self._tracks: dict[str, Track] = {}
        # Sequence -> drafts chosen and not verified yet.
        self._asked: dict[str, int] = {}
        # The last choice, and a number that changes with it.
        self._chosen: tuple[int, ...] = ()
        self._choice = 0
        self._steps: deque[_Step] = deque()
        # When the last step was done; None if the engine was idle after it.
        self._done: float | None = None

    def scheduled(self, names: Collection[str], decoding: Sequence[Decoding], alive: Collection[str]) -> None:
        """A step of the sequences `names` was scheduled, and drafts for `decoding`. `alive`: all unfinished ones.

        Every scheduled step must be `done` later, in the same order.
        """
        same = names and (tuple(names) == self.names or {*names} == {*self.names})
        verifies = self._choice if same else None
        asked = {
            name: (track, count)
            for name in names
            if (count := self._asked.pop(name, None)) and (track := self._tracks.get(name))
        }
        if len(self._tracks) > 2 * len(alive):
            self._tracks = {name: track for name, track in self._tracks.items() if name in alive}
            self._asked = {name: count for name, count in self._asked.items() if name in alive}
        known = self._tracks
        tracks = [known.get(each.name) or self._new_track(each) for each in decoding]
        contexts = [each.context for each in decoding]
        decision = self.gate.decide(tracks, contexts, [each.cap for each in decoding])
        self.depth = max(decision.allowed, default=0)
        allowed = (self.depth,) * len(decoding) if self._uniform else decision.allowed
        choice = tuple([each.name for each in decoding]), allowed
        if choice != (self.names, self._chosen):
            (self.names, self._chosen), self._choice = choice, self._choice + 1
        self._asked.update(zip(*choice, strict=True))
        self.shortest = min(contexts, default=0)
        self._steps.append(_Step(asked, verifies, self._choice))

    def _new_track(self, sequence: Decoding) -> Track:
        track = self._tracks[sequence.name] = Track(sequence.kind)
        return track

    def allowed(self, name: str) -> int:
        """How many drafts of a sequence the next step may verify."""
        return self._asked.get(name, 0)

    def done(self, outcomes: Mapping[str, Outcome], *, more: bool) -> None:
        """The oldest scheduled step is done. `more`: the engine goes on without a pause."""
        step, now = self._steps.popleft(), self._clock()
        plain = step.verifies == step.drafts == self._choice
        seconds = now - self._done if plain and self._done is not None else None
        self._done = now if more else None
        drafted = []
        for name, (track, asked) in step.asked.items():
            if name in outcomes:
                verified, accepted = outcomes[name]
                drafted.append((track, asked, min(verified, asked), min(accepted, asked)))
        self.gate.observe(drafted, seconds)
