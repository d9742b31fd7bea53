"""Masks: which tokens a constraint allows at every position of a window.

A step calls, in this order:

1. `clear`;
2. `enter` for each constrained window: its constraint advances by the drafts, up to the first that it refuses, so that
   the model does not compute refused drafts;
3. `fill`, which may run in another thread while the model computes: every constraint is rolled back, draft by draft,
   to where it was, and writes a mask at each position;
4. `apply`.

Sequences without a constraint cost nothing here. Greedy sequences rarely need a mask: see `GreedyConstraint`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dovetail.completion import Constraint, GuardedConstraint
from dovetail.errors import EngineError, guarded

# For each byte of a mask, eight booleans in one number of eight bytes, true where the token is refused. 64 masks of
# 136,000 tokens become booleans in 0.5 ms by this table, and in 31 ms by shifting bits.
_REFUSED = torch.tensor([[not byte >> i & 1 for i in range(8)] for byte in range(256)]).view(torch.int64).flatten()


@dataclass(slots=True)
class MaskEntry:
    """The mask rows of one window.

    - `drafts`: how many drafts stay in the window. `taken`: by how many of them the constraint advanced: all, or all
      but the last, if it failed at that one.
    - `slot`: the first of the window's mask rows.
    - `rows`: from how many rows a token may be drawn, known after `fill`: one more than `taken`, or fewer where the
      constraint is at a dead end or fails. If the target gets there too, the error shows there.
    - `error`: why the request has to end, known after `fill`.
    - `guard`: the constraint, if it has a guard. `guarded`: by row, what the guard allows where the mask of that row is
      the one without the guard.
    """

    constraint: Constraint
    drafts: int
    taken: int
    slot: int
    guard: GuardedConstraint | None = None
    guarded: dict[int, bytes] = field(default_factory=dict)
    rows: int = 0
    error: EngineError | None = None

    def refuses(self, row: int, token: int) -> bool:
        """Whether the guard refuses a token that was drawn at a row of the window."""
        mask = self.guarded.get(row)
        return mask is not None and not mask[token // 8] >> token % 8 & 1


class MaskRows:
    """A buffer of bit rows for one step: at most `rows`, each of ``ceil(vocab_size / 32)`` words."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._size = -(-vocab_size // 32) * 4
        self._nothing, self._everything = bytes(self._size), b"\xff" * self._size
        self._bytes = bytearray(rows * self._size)
        self._tensor = torch.frombuffer(self._bytes, dtype=torch.uint8)
        self._entries: list[MaskEntry] = []
        self._logit_rows: list[int] = []
        self._refused: Tensor | None = None
        self._row_seconds = 0.0

    @property
    def seconds(self) -> float:
        """About how many seconds `fill` will take."""
        return self._row_seconds * len(self._logit_rows)

    def clear(self) -> None:
        """Start a step."""
        self._entries.clear()
        self._logit_rows.clear()
        self._refused = None

    def enter(self, constraint: Constraint, drafts: Sequence[int], logit_row: int) -> MaskEntry:
        """Add the rows of a window whose logits begin at `logit_row`.

        This advances the constraint by the drafts that it accepts; `fill` must follow, which rolls it back.
        """
        count, taken = take(constraint, drafts, self._vocab_size)
        # Where a draft was refused, the token is drawn from what remains of it, under the guard.
        guard = constraint if count == len(drafts) and isinstance(constraint, GuardedConstraint) else None
        entry = MaskEntry(constraint, count, taken, len(self._logit_rows), guard)
        self._entries.append(entry)
        self._logit_rows += range(logit_row, logit_row + count + 1)
        return entry

    def fill(self) -> None:
        """Write all rows, and leave every constraint as it was before `enter`."""
        if not self._entries:
            return
        start = time.thread_time()  # without the time in which another thread has the interpreter
        for entry in self._entries:
            self._fill(entry)
        count = len(self._logit_rows)
        bits = self._tensor[: count * self._size].int()
        refused = torch.index_select(_REFUSED, 0, bits).view(torch.bool)
        self._refused = refused.view(count, -1)[:, : self._vocab_size]
        self._row_seconds += ((time.thread_time() - start) / count - self._row_seconds) / 8

    def apply(self, logits: Tensor) -> None:
        """Set the logits of refused tokens to -inf, in place; `logits` is [rows, vocab_size]."""
        if self._refused is None:
            return
        if self._logit_rows == list(range(logits.shape[0])):
            logits.masked_fill_(self._refused, -math.inf)
        else:
            rows = torch.tensor(self._logit_rows)
            logits[rows] = logits[rows].masked_fill_(self._refused, -math.inf)

    def under_guard(self, entry: MaskEntry, row: int, logits: Tensor) -> Tensor:
        """`logits` [1, vocab] of a row of the window without the tokens that the guard refuses."""
        bits = torch.frombuffer(bytearray(entry.guarded[row]), dtype=torch.uint8).int()
        refused = torch.index_select(_REFUSED, 0, bits).view(torch.bool)
        return logits.masked_fill(refused[: self._vocab_size], -math.inf)

    def _fill(self, entry: MaskEntry) -> None:
        """Fill the rows of one window, from the last to the first.

        A row from which no token is drawn allows everything, so that its probabilities are numbers.
        """
        rows = memoryview(self._bytes)[entry.slot * self._size : (entry.slot + entry.drafts + 1) * self._size]
        rows[:] = self._everything * (entry.drafts + 1)
        entry.rows = entry.taken + 1
        for i in range(entry.taken, -1, -1):
            row = rows[i * self._size : (i + 1) * self._size]
            failure: EngineError | None = None
            row[:] = strict = self._nothing
            try:
                guarded(entry.constraint.fill, row)
                strict = row.tobytes()
                if entry.guard is not None and guarded(entry.guard.fill_unguarded, row):
                    entry.guarded[i] = strict
            except Exception as error:
                failure = constraint_failed(error)
            if failure is not None or strict == self._nothing:
                row[:] = self._everything
                entry.rows = i
                if i == 0:
                    entry.error = failure or EngineError("the constraint allows no token here")
            if i:
                try:
                    guarded(entry.constraint.rollback, 1)
                except Exception as error:
                    entry.rows, entry.error = 0, constraint_failed(error)
                    return


def take(constraint: Constraint, drafts: Sequence[int], vocab_size: int) -> tuple[int, int]:
    """Advance `constraint` by `drafts`, up to the first that it refuses.

    Returns how many drafts stay in the window, and by how many the constraint advanced: by all of these, or by all but
    the last, if it failed at that one.
    """
    count = taken = 0
    try:
        for draft in drafts:
            # Forced tokens come from a caller's code and are drafted unchecked, so an id may be out of range.
            if not 0 <= draft < vocab_size or not guarded(constraint.advance, draft):
                break
            count = taken = taken + 1
    except Exception:
        count += 1  # the constraint failed and did not refuse it
    return count, taken


def likeliest(constraint: Constraint, logits: Tensor, *, under_guard: bool = False) -> int:
    """The likeliest token by `logits` [vocab] that `constraint` allows, or allows but for its guard, if it has one.

    Raises `EngineError` where it allows none, and what the constraint raises.
    """
    masks = MaskRows(1, logits.shape[0])
    entry = masks.enter(constraint, (), 0)
    masks.fill()
    if entry.error is not None:
        raise entry.error
    allowed = logits.clone().unsqueeze(0)
    masks.apply(allowed)
    if under_guard and entry.guarded:
        allowed = masks.under_guard(entry, 0, allowed)
    return int(allowed.argmax())


def constraint_failed(error: Exception) -> EngineError:
    """The error that ends a request whose constraint raised `error`."""
    return error if isinstance(error, EngineError) else EngineError(f"the constraint failed: {error}")


class GreedyConstraint:
    """The constraint of one greedy window, mostly without a mask. Call `choose` or `forget` once.

    When the constraint allows the likeliest token of all, that is also the likeliest token that it allows. So the
    model's choice is tried on the constraint first, and a mask is made only at a position where the constraint refuses
    it. The tokens are the same as with a mask at every position.

    `__init__` advances the constraint by the drafts that it accepts, of which there are `drafts` (see `take`).
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
