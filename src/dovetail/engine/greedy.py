"""A greedy window under a constraint, mostly without a mask.

When the constraint allows the likeliest token of all, that is also the likeliest token that it allows. So the model's
choice is tried on the constraint first, and a mask is made only at a position where the constraint refuses it. The
tokens are the same as with a mask at every position.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from torch import Tensor

from dovetail.completion import Constraint, GuardedConstraint
from dovetail.engine.masks import constraint_failed, likeliest, take
from dovetail.errors import EngineError, guarded


class GreedyConstraint:
    """The constraint of one greedy window. Call `choose` or `forget` once.

    `__init__` advances the constraint by the drafts that it accepts, of which there are `drafts` (see `masks.take`).
    `error`: why the request has to end after the chosen tokens, or None.
    """

    def __init__(self, constraint: Constraint, drafts: Sequence[int], vocab_size: int) -> None:
        self._constraint = constraint
        self._drafts = drafts
        self.drafts, self._taken = take(constraint, drafts, vocab_size)
        self.error: EngineError | None = None
        #: How many tokens the guard of the constraint refused.
        self.guarded = 0

    def forget(self) -> None:
        """Choose nothing in this step, and leave the constraint as it was before the window."""
        try:
            guarded(self._back_to, 0)
        except Exception as error:
            self.error = constraint_failed(error)

    def choose(self, best: Sequence[int], logits: Tensor, first: int, rows: int, ends: Container[int]) -> list[int]:
        """The new tokens of the window: the accepted drafts and, if `rows` go on after them, one more.

        The constraint has advanced by these tokens. `best[i]`: the model's choice at row ``first + i`` of `logits`
        [rows, vocab]. `rows`: at how many rows a token may be chosen. The tokens end with the first one in `ends`.
        """
        new: list[int] = []
        try:
            guarded(self._choose, new, best, logits[first:], rows, ends)
        except Exception as error:  # a caller's code, which must not end the other requests
            self.error = constraint_failed(error)
        return new

    def _choose(self, new: list[int], best: Sequence[int], logits: Tensor, rows: int, ends: Container[int]) -> None:
        for row in range(rows):
            token, draft = best[row], self._drafts[row] if row < self.drafts else None
            if token != draft or row >= self._taken:
                self._back_to(row)
                if not self._constraint.advance(token):
                    token = self._masked(logits[row])
                self._taken = row + 1
            new.append(token)
            if token != draft or token in ends:
                break
        self._back_to(len(new))

    def _masked(self, logits: Tensor) -> int:
        """The likeliest token that the constraint takes, and which it has taken."""
        token = likeliest(self._constraint, logits)
        if self._constraint.advance(token):
            return token
        if isinstance(self._constraint, GuardedConstraint):
            self.guarded += 1
            token = likeliest(self._constraint, logits, under_guard=True)
            if self._constraint.advance(token):
                return token
        raise EngineError(f"the constraint refused token {token}, which its own mask allowed")

    def _back_to(self, count: int) -> None:
        """Roll the constraint back to the first `count` tokens of this window."""
        if self._taken > count:
            self._constraint.rollback(self._taken - count)
            self._taken = count
