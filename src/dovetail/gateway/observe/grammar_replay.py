"""What the grammar allowed at each token of an answer, computed after the answer for its recording.

The engine computes few masks: a greedy sequence needs one only where the grammar refuses the model's choice. So nothing
is counted while it decodes (docs/decisions/0038-what-a-recording-computes-later.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from dovetail.errors import guarded
from dovetail.gateway.turn.turn import AnswerConstraint

T = TypeVar("T")


class MaskBudget:
    """The masks that one recording may still compute: their number, and the seconds that they may take."""

    def __init__(self, masks: int, seconds: float) -> None:
        self._masks = masks
        self._until = time.monotonic() + seconds
        #: Whether a mask was left out.
        self.exceeded = False

    def take(self) -> bool:
        """Whether there is room for one more mask, which counts from now on."""
        self.exceeded = self.exceeded or not self._masks or time.monotonic() > self._until
        self._masks -= not self.exceeded
        return not self.exceeded


class Allowed(NamedTuple):
    """One step under the grammar.

    `counts`: how many tokens the grammar allowed at the place of each token; None where that is not known. `refuses`:
    whether it refuses the first draft that did not stand; None where that is not known, or where there is none.
    """

    counts: tuple[int | None, ...]
    refuses: bool | None


class GrammarReplay:
    """Takes the constraint of one choice through its tokens again.

    `constraint`: the one that the engine enforced, in any state. `vocab_size`: the number of token ids.
    """

    def __init__(self, constraint: AnswerConstraint, vocab_size: int, budget: MaskBudget) -> None:
        self._constraint: AnswerConstraint | None = constraint
        self._constraint = self._tried(lambda constraint: constraint.apart())
        self._row = bytearray(-(-vocab_size // 32) * 4)
        self._vocab_size = vocab_size
        self._vocabulary = (1 << vocab_size) - 1
        self._budget = budget

    def step(self, ids: Sequence[int], accepted: int, drafts: Sequence[int]) -> Allowed:
        """The step that added `ids`, of which the first `accepted` are the first of `drafts`.

        From a token on that the grammar does not allow, as after an engine that did not enforce it, nothing is known.
        """
        counts: list[int | None] = []
        refuses = None
        for place, token in enumerate(ids):
            if place == accepted < len(drafts):
                refuses = self._refuses(drafts[accepted])
            counts.append(self._count())
            self._advance(token)
        if len(ids) <= accepted < len(drafts):
            refuses = self._refuses(drafts[accepted])
        return Allowed(tuple(counts), refuses)

    def _refuses(self, draft: int) -> bool | None:
        if not 0 <= draft < self._vocab_size:
            return True
        accepted = self._tried(lambda constraint: constraint.advance(draft))
        if accepted:
            self._tried(lambda constraint: constraint.rollback(1))
        return None if accepted is None else not accepted

    def _count(self) -> int | None:
        if self._constraint is None or not self._budget.take():
            return None
        if self._tried(lambda constraint: constraint.fill(memoryview(self._row)) is None) is None:
            return None
        return (int.from_bytes(self._row, "little") & self._vocabulary).bit_count()

    def _advance(self, token: int) -> None:
        if not self._tried(lambda constraint: constraint.advance(token)):
            self._constraint = None

    def _tried(self, call: Callable[[AnswerConstraint], T]) -> T | None:
        """What `call` returns for the constraint; None without one, or if its library gives up, for good."""
        if self._constraint is None:
            return None
        try:
            return guarded(call, self._constraint)
        except Exception:  # as it may have in the engine
            self._constraint = None
            return None
