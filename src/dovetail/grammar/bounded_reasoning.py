"""`BoundedReasoning`: a constraint that ends the model's reasoning after a number of tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from dovetail.grammar.guard import Guarded
from dovetail.grammar.matcher import Matcher
from dovetail.tokens import Tokenizer

#: A character has at most this many bytes, and a token has at least one.
_CHARACTER = 4


class Markers(NamedTuple):
    """The tokens that open and close a block of reasoning. The first closing token is a control token."""

    opening: tuple[int, ...]
    closing: tuple[int, ...]


def left_open_since(prompt: Sequence[int], markers: Markers) -> int | None:
    """How many tokens come after the last opening marker in `prompt`; None if a closing marker comes after it."""
    opening, closing = markers
    for at in reversed(range(len(prompt))):
        if prompt[at] == closing[-1] and tuple(prompt[: at + 1][-len(closing) :]) == closing:
            return None
        if prompt[at] == opening[-1] and tuple(prompt[: at + 1][-len(opening) :]) == opening:
            return len(prompt) - at - 1
    return None


class _State(NamedTuple):
    """Where a sequence is: whether a block is open, how many tokens of reasoning there were, and how many tokens of the
    closing marker still have to come."""

    open: bool
    spent: int = 0
    due: int = 0


class BoundedReasoning:
    """The `Constraint` of one sequence: the `matcher`, if any, and at most `budget` tokens of reasoning.

    After these tokens only the closing marker may come. If they end inside a character, its other bytes come first, so
    that the text stays whole. Reasoning that ends earlier is not affected. `left_open`: the prompt ends inside a block.

    Every control token ends the count, so that a model that calls a tool without closing the block is not interrupted.
    """

    def __init__(
        self, matcher: Matcher | Guarded | None, tokenizer: Tokenizer, markers: Markers, budget: int, *, left_open: bool
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._markers = markers
        self._budget = budget
        self._tokens: list[int] = []
        #: The state before the first token, and after each.
        self._states = [_State(left_open)]

    def another(self) -> BoundedReasoning:
        """The same constraint for another sequence, from its beginning."""
        return self._with(self._matcher.another() if self._matcher else None)

    def apart(self) -> BoundedReasoning:
        """As `another`, with `Matcher.apart`."""
        return self._with(self._matcher.apart() if self._matcher else None)

    def _with(self, matcher: Matcher | Guarded | None) -> BoundedReasoning:
        return BoundedReasoning(matcher, self._tokenizer, self._markers, self._budget, left_open=self._states[0].open)

    def fill(self, row: memoryview) -> None:
        required = self._required
        if required is not None:
            mask = bytearray(row.nbytes)
            mask[required // 8] = 1 << required % 8
            row.cast("B")[:] = mask
        elif self._matcher is not None:
            self._matcher.fill(row)
        else:
            row.cast("B")[:] = b"\xff" * row.nbytes

    def fill_unguarded(self, row: memoryview) -> bool:
        """See `GuardedConstraint.fill_unguarded`."""
        return isinstance(self._matcher, Guarded) and self._required is None and self._matcher.fill_unguarded(row)

    def advance(self, token: int) -> bool:
        if self._required not in (None, token) or (self._matcher is not None and not self._matcher.advance(token)):
            return False
        self._tokens.append(token)
        self._states.append(self._after(token))
        return True

    def rollback(self, count: int) -> None:
        if count:
            del self._tokens[-count:], self._states[-count:]
            if self._matcher is not None:
                self._matcher.rollback(count)

    def forced(self, limit: int) -> Sequence[int]:
        if self._required is not None:
            due = self._states[-1].due or len(self._markers.closing)
            return self._markers.closing[-due:][:limit]
        return self._matcher.forced(limit) if self._matcher is not None else ()

    @property
    def _required(self) -> int | None:
        """The only token that may come next; None if the budget says nothing about it."""
        state, closing = self._states[-1], self._markers.closing
        if state.due:
            return closing[-state.due]
        if not state.open or state.spent < self._budget or self._inside_character:
            return None
        return closing[0]

    @property
    def _inside_character(self) -> bool:
        tail = b"".join(map(self._tokenizer.token_bytes, self._tokens[-_CHARACTER:]))[-_CHARACTER:]
        return codecs.utf_8_decode(tail, "ignore")[1] < len(tail)

    def _after(self, token: int) -> _State:
        """The state after `token`, which is the last one."""
        is_open, spent, due = self._states[-1]
        opening, closing = self._markers
        if due:
            return _State(False, spent, due - 1)
        if is_open and token in self._tokenizer.control_literals:
            ends_here = token == closing[0] and spent >= self._budget
            return _State(False, spent, len(closing) - 1 if ends_here else 0)
        opens = tuple(self._tokens[-len(opening) :]) == opening
        return _State(is_open or opens, spent + is_open)
