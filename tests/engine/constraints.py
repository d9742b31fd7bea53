"""Toy constraints: automata over token ids."""

from __future__ import annotations

import random
from collections.abc import Container, Sequence

from dovetail.completion import Constraint


class Automaton:
    """`moves[state]` maps an allowed token to the next state."""

    def __init__(self, moves: list[dict[int, int]]) -> None:
        self._moves = moves
        self._states = [0]

    @classmethod
    def sample(cls, seed: int, states: int = 5, vocab: int = 97) -> Automaton:
        """A random automaton that allows some 12 tokens in each state, one in its first."""
        rng = random.Random(seed)
        moves = [{t: rng.randrange(states) for t in rng.sample(range(2, vocab), 12)} for _ in range(states)]
        moves[0] = {rng.randrange(2, vocab): 1}
        return cls(moves)

    @classmethod
    def ending(cls, seed: int, end: int, length: int, vocab: int = 97) -> Automaton:
        """It allows `length` tokens, any two to five or `end` at each place, and then `end` alone."""
        rng = random.Random(seed)
        moves = [dict.fromkeys((end, *rng.sample(range(2, vocab), rng.randint(1, 4))), i + 1) for i in range(length)]
        return cls([*moves, {end: length}])

    def accepts(self, tokens: list[int]) -> bool:
        return all(self.advance(token) for token in tokens)

    def fill(self, row: memoryview) -> None:
        for token in self._moves[self._states[-1]]:
            row[token // 8] |= 1 << token % 8

    def advance(self, token: int) -> bool:
        if token not in self._moves[self._states[-1]]:
            return False
        self._states.append(self._moves[self._states[-1]][token])
        return True

    def rollback(self, count: int) -> None:
        assert 0 < count < len(self._states)
        del self._states[-count:]

    def forced(self, limit: int) -> list[int]:
        forced: list[int] = []
        state = self._states[-1]
        while len(forced) < limit and len(self._moves[state]) == 1:
            ((token, state),) = self._moves[state].items()
            forced.append(token)
        return forced


class Watched(Automaton):
    """An automaton with a guard, which refuses `refused` until `length` tokens have come."""

    def __init__(self, moves: list[dict[int, int]], refused: Container[int], length: int) -> None:
        super().__init__(moves)
        self._refused, self._length = refused, length

    @property
    def _watching(self) -> bool:
        return len(self._states) <= self._length

    def fill(self, row: memoryview) -> None:
        for token in self._moves[self._states[-1]]:
            if not self._watching or token not in self._refused:
                row[token // 8] |= 1 << token % 8

    def fill_unguarded(self, row: memoryview) -> bool:
        if self._watching:
            super().fill(row)
        return self._watching

    def advance(self, token: int) -> bool:
        return not (self._watching and token in self._refused) and super().advance(token)


class Counted:
    """Passes calls on and remembers which tokens stayed taken."""

    def __init__(self, inner: Constraint) -> None:
        self._inner = inner
        self.taken: list[int] = []

    def fill(self, row: memoryview) -> None:
        self._inner.fill(row)

    def advance(self, token: int) -> bool:
        taken = self._inner.advance(token)
        if taken:
            self.taken.append(token)
        return taken

    def rollback(self, count: int) -> None:
        self._inner.rollback(count)
        del self.taken[-count:]

    def forced(self, limit: int) -> Sequence[int]:
        return self._inner.forced(limit)
