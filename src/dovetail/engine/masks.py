"""The engine's side of a constraint: which tokens may come at every position of a window.

A step calls, in this order:

1. `clear`;
2. `enter` for each constrained window: its constraint takes the drafts, up to the first that it refuses, so that what
   is refused is not computed;
3. `fill`, which may run in another thread while the model computes: every constraint is taken back, draft by draft,
   to where it was, and says at each place what may come there;
4. `apply`.

Sequences without a constraint cost nothing here. Greedy ones need no mask where the constraint takes what the model
would say anyway, which it nearly always does: see greedy.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.completion import Constraint
from dovetail.errors import EngineError, guarded

# For each byte of a mask eight booleans, true where the token may not come, in one number of eight bytes: of 64 masks
# of 136,000 tokens, shifting bits makes booleans in 31 ms, looking bytes up in 0.5.
_REFUSED = torch.tensor([[not byte >> i & 1 for i in range(8)] for byte in range(256)]).view(torch.int64).flatten()


@dataclass(slots=True)
class Entry:
    """A window's rows: what is filled in is known after `fill`.

    `drafts` of the window's drafts stand, of which the constraint has `taken` all but perhaps the last, on which it
    failed. Tokens may be drawn from the first `rows` rows: one more than were taken, or fewer, where the constraint
    turned out to be at a dead end or fails there. Both are met again if the target goes there too. `error`: why the
    request cannot go on.
    """

    constraint: Constraint
    drafts: int
    taken: int
    slot: int
    rows: int = 0
    error: EngineError | None = None


class MaskRows:
    """A buffer of bit rows for one step: at most `rows`, each of ``ceil(vocab_size / 32)`` words."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._size = -(-vocab_size // 32) * 4
        self._nothing, self._everything = bytes(self._size), b"\xff" * self._size
        self._bytes = bytearray(rows * self._size)
        self._tensor = torch.frombuffer(self._bytes, dtype=torch.uint8)
        self._entries: list[Entry] = []
        self._logit_rows: list[int] = []
        self._refused: Tensor | None = None
        self._row_seconds = 0.0

    @property
    def seconds(self) -> float:
        """About how long `fill` will take."""
        return self._row_seconds * len(self._logit_rows)

    def clear(self) -> None:
        """Start a step."""
        self._entries.clear()
        self._logit_rows.clear()
        self._refused = None

    def enter(self, constraint: Constraint, drafts: Sequence[int], logit_row: int) -> Entry:
        """Make room for the rows of a window whose logits begin at `logit_row`. `fill` must follow, since until then
        the constraint has taken the drafts that stand."""
        kept, taken = take(constraint, drafts, self._vocab_size)
        entry = Entry(constraint, kept, taken, len(self._logit_rows))
        self._entries.append(entry)
        self._logit_rows += range(logit_row, logit_row + kept + 1)
        return entry

    def fill(self) -> None:
        """Write all rows, and leave every constraint as it was before `enter`."""
        if not self._entries:
            return
        start = time.thread_time()  # not what passes while another thread has the interpreter
        for entry in self._entries:
            self._fill(entry)
        count = len(self._logit_rows)
        bits = self._tensor[: count * self._size].int()
        refused = torch.index_select(_REFUSED, 0, bits).view(torch.bool)
        self._refused = refused.view(count, -1)[:, : self._vocab_size]
        self._row_seconds += ((time.thread_time() - start) / count - self._row_seconds) / 8

    def apply(self, logits: Tensor) -> None:
        """Set the logits of tokens that may not come to -inf, in place; `logits` is [rows, vocab_size]."""
        if self._refused is None:
            return
        if self._logit_rows == list(range(logits.shape[0])):
            logits.masked_fill_(self._refused, -math.inf)
        else:
            rows = torch.tensor(self._logit_rows)
            logits[rows] = logits[rows].masked_fill_(self._refused, -math.inf)

    def _fill(self, entry: Entry) -> None:
        """From the last row to the first. Where nothing is drawn a row allows everything: what is computed of it stays
        numbers."""
        rows = memoryview(self._bytes)[entry.slot * self._size : (entry.slot + entry.drafts + 1) * self._size]
        rows[:] = self._everything * (entry.drafts + 1)
        entry.rows = entry.taken + 1
        for i in range(entry.taken, -1, -1):
            row = rows[i * self._size : (i + 1) * self._size]
            failure: EngineError | None = None
            row[:] = self._nothing
            try:
                guarded(entry.constraint.fill, row)
            except Exception as error:
                failure = constraint_failed(error)
            if failure is not None or row.tobytes() == self._nothing:
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
    """Let `constraint` take `drafts` up to the first that it refuses: how many stand, and how many it took: all of
    these but perhaps the last, on which it failed."""
    kept = taken = 0
    try:
        for draft in drafts:
            # It may be somebody else's code: the ids it forces are drafted before anybody has looked at them.
            if not 0 <= draft < vocab_size or not guarded(constraint.advance, draft):
                break
            kept = taken = taken + 1
    except Exception:
        kept += 1  # nobody said that it may not come
    return kept, taken


def likeliest(constraint: Constraint, logits: Tensor) -> int:
    """Of the tokens that may come, the likeliest by `logits` [vocab]. Raises `EngineError` where none may, and what
    the constraint raises."""
    masks = MaskRows(1, logits.shape[0])
    entry = masks.enter(constraint, (), 0)
    masks.fill()
    if entry.error is not None:
        raise entry.error
    allowed = logits.clone().unsqueeze(0)
    masks.apply(allowed)
    return int(allowed.argmax())


def constraint_failed(error: Exception) -> EngineError:
    """The error that ends a request whose constraint raised `error`."""
    return error if isinstance(error, EngineError) else EngineError(f"the constraint failed: {error}")
