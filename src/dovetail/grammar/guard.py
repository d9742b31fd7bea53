"""`Guarded`: a constraint under which no answer ends before it says something."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.grammar.matcher import Matcher


class Guarded:
    """The `GuardedConstraint` of one sequence: answers of `speaking`, each of which says something.

    `silent` allows the same answers and those that say nothing. What only `silent` allows is what the guard refuses.
    Once an answer may end under `speaking`, the two allow the same, and `silent` is asked alone.
    """

    def __init__(self, speaking: Matcher, silent: Matcher) -> None:
        self._speaking, self._silent = speaking, silent
        self._count = 0
        #: After how many tokens the answer had said something; None if it has not.
        self._said: int | None = None

    @property
    def lark(self) -> str:
        """The grammar as the library has it."""
        return self._speaking.lark

    def another(self) -> Guarded:
        """The same constraint for another sequence, from its beginning."""
        return Guarded(self._speaking.another(), self._silent.another())

    def apart(self) -> Guarded:
        """As `another`, with `Matcher.apart`."""
        return Guarded(self._speaking.apart(), self._silent.apart())

    def fill(self, row: memoryview) -> None:
        (self._speaking if self._said is None else self._silent).fill(row)

    def fill_unguarded(self, row: memoryview) -> bool:
        """See `GuardedConstraint.fill_unguarded`."""
        if self._said is not None:
            return False
        self._silent.fill(row)
        return True

    def advance(self, token: int) -> bool:
        if self._said is None and not self._speaking.advance(token):
            return False
        if not self._silent.advance(token):
            if self._said is None:
                self._speaking.rollback(1)
            return False
        self._count += 1
        if self._said is None and self._speaking.may_end:
            self._said = self._count
        return True

    def rollback(self, count: int) -> None:
        self._silent.rollback(count)
        kept = self._count - count
        if self._said is None:
            self._speaking.rollback(count)
        elif kept < self._said:
            self._speaking.rollback(self._said - kept)
            self._said = None
        self._count = kept

    def forced(self, limit: int) -> Sequence[int]:
        return (self._speaking if self._said is None else self._silent).forced(limit)
