"""The engine's side of a constraint: which tokens may come at every position of a window.

For each constrained sequence: fill a row, take a draft, fill the next row, and so on; then roll back what was taken.
The window ends before a draft that is not allowed. Sequences without a constraint cost nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail.completion import Constraint
from dovetail.errors import reraise_exit

_BITS = torch.arange(32, dtype=torch.int32)


class MaskRows:
    """A buffer of bit rows for one step: at most `rows`, each of ``ceil(vocab_size / 32)`` words."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._words = -(-vocab_size // 32)
        self._bytes = bytearray(rows * self._words * 4)
        self._tensor = torch.frombuffer(self._bytes, dtype=torch.int32).view(rows, self._words)
        self._used = 0
        self._logit_rows: list[int] = []

    def clear(self) -> None:
        """Start a step."""
        self._used = 0
        self._logit_rows.clear()

    def fill(self, constraint: Constraint, drafts: Sequence[int], logit_row: int) -> tuple[int, bool] | None:
        """Fill rows for the logits from `logit_row` on. The constraint is left as it was.

        Returns how many drafts stay in the window, and whether there is a row behind the last of them: not where that
        ends the turn, or where the constraint is at a dead end or fails there, which is met again if the target goes
        there too. None when it allows no token at all here. What it raises here is raised, and leaves no row behind.
        """
        used = self._used
        taken = kept = 0
        try:
            behind = self._add(constraint, logit_row)
            if not behind:
                return None
            for draft in drafts:
                # It may be somebody else's code: the ids it forces are drafted before anybody has looked at them.
                if not 0 <= draft < self._vocab_size:
                    break
                try:
                    if not constraint.advance(draft):
                        break
                    taken += 1
                    behind = self._add(constraint, logit_row + kept + 1)
                except BaseException as error:
                    reraise_exit(error)
                    behind = False
                kept += 1
                if not behind:
                    break
            if taken:
                constraint.rollback(taken)
            return kept, behind
        except BaseException:
            self._used = used
            del self._logit_rows[used:]
            raise

    def apply(self, logits: Tensor) -> None:
        """Set the logits of tokens that may not come to -inf, in place; `logits` is [rows, vocab_size]."""
        if not self._used:
            return
        bits = (self._tensor[: self._used].unsqueeze(-1) >> _BITS) & 1
        refused = bits.view(self._used, -1)[:, : self._vocab_size] == 0
        if self._logit_rows == list(range(logits.shape[0])):
            logits.masked_fill_(refused, -math.inf)
        else:
            rows = torch.tensor(self._logit_rows)
            logits[rows] = logits[rows].masked_fill_(refused, -math.inf)

    def _add(self, constraint: Constraint, logit_row: int) -> bool:
        size = self._words * 4
        row = memoryview(self._bytes)[self._used * size : (self._used + 1) * size]
        row[:] = bytes(size)
        constraint.fill(row)
        if row.tobytes() == bytes(size):
            return False
        self._used += 1
        self._logit_rows.append(logit_row)
        return True
