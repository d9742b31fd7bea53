"""A greedy window under a constraint: what the model would say is offered to the constraint, which mostly takes it.

The likeliest token of all is the likeliest of those that may come, if it may come. So a mask is made only at a place
where the constraint refuses it, and the tokens are those that masks for all places would give.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from torch import Tensor

from dovetail.completion import Constraint
from dovetail.engine.masks import constraint_failed, likeliest, take
from dovetail.errors import EngineError, guarded


class Offered:
    """A window's constraint, which has taken the drafts that stand; then `choose`, or `forget`, which leaves it as it
    was.

    `drafts` of the window's drafts stand: `masks.take`.
    """

    def __init__(self, constraint: Constraint, drafts: Sequence[int], vocab_size: int) -> None:
        self._constraint = constraint
        self._drafts = drafts
        self.drafts, self._taken = take(constraint, drafts, vocab_size)
        #: Why the request cannot go on behind what was chosen.
        self.error: EngineError | None = None

    def forget(self) -> None:
        """Nothing is chosen in this step."""
        try:
            guarded(self._back_to, 0)
        except Exception as error:
            self.error = constraint_failed(error)

    def choose(
        self, best: Sequence[int], logits: Tensor, first: int, drafts: int, closed: bool, ends: Container[int]
    ) -> list[int]:
        """New tokens, which the constraint has then taken: the first of `drafts` drafts that stand, and one more, but
        behind the last where nothing may be drawn (`closed`), and none behind one of `ends`.

        `best` is the model's choice at each of ``drafts + 1`` rows of `logits` [rows, vocab] from row `first` on.
        """
        new: list[int] = []
        try:
            guarded(self._choose, new, best, logits[first:], drafts if closed else drafts + 1, drafts, ends)
        except Exception as error:  # a caller's code, which must not end the others' requests
            self.error = constraint_failed(error)
        return new

    def _choose(
        self, new: list[int], best: Sequence[int], logits: Tensor, rows: int, drafts: int, ends: Container[int]
    ) -> None:
        for row in range(rows):
            token, draft = best[row], self._drafts[row] if row < drafts else None
            if token != draft or row >= self._taken:
                self._back_to(row)
                if not self._constraint.advance(token):
                    token = likeliest(self._constraint, logits[row])
                    if not self._constraint.advance(token):
                        raise EngineError(f"the constraint refused token {token}, which its own mask allowed")
                self._taken = row + 1
            new.append(token)
            if token != draft or token in ends:
                break
        self._back_to(len(new))

    def _back_to(self, count: int) -> None:
        """To where it had taken `count` tokens of this window."""
        if self._taken > count:
            self._constraint.rollback(self._taken - count)
            self._taken = count
