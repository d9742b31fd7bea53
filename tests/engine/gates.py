"""A gate with random decisions, for tests: no output may depend on it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dovetail.engine.core import LLMCore
from dovetail.gate import Decision, Gate, Limits, Track


class Fickle(Gate):
    """Allows each sequence all drafts, fewer or none, at random and for some steps each."""

    def __init__(self, limits: Limits, drafts: int, seed: int, longest: int = 40) -> None:
        super().__init__(None, limits, drafts)
        self._most = drafts
        self._random = random.Random(seed)
        self._longest = longest
        self._moods: dict[int, list[int]] = {}

    def decide(self, tracks: Sequence[Track], contexts: Sequence[int], caps: Sequence[int]) -> Decision:
        decision = super().decide(tracks, contexts, caps)
        fewer = tuple(min(most, self._mood(track)) for track, most in zip(tracks, decision.allowed, strict=True))
        return decision._replace(allowed=fewer)

    def _mood(self, track: Track) -> int:
        drafts, steps = self._moods.get(id(track), [0, 0])
        if not steps:
            drafts = self._random.choice((0, 0, self._most, self._random.randint(0, self._most)))
            steps = self._random.randint(1, self._longest)
        self._moods[id(track)] = [drafts, steps - 1]
        return drafts


def fickle(core: LLMCore, seed: int, limits: Limits | None = None, longest: int = 40) -> LLMCore:
    """Let a `Fickle` gate decide in `core`."""
    core.scheduler.gate = Fickle(limits or Limits(), core.info.draft_tokens, seed, longest)
    return core
