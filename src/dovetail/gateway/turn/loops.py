"""Loops: text that an answer repeats, token for token, without end.

A loop is a period of at most `MOST_PERIOD` tokens that comes `REPEATS` times or more, over `TOKENS` tokens or more. A
period without a letter (zeros, rules, dots) is one only from `PLAIN_TOKENS` tokens on: tables and lists of numbers have
such runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from dovetail.tokens import Tokenizer

MOST_PERIOD = 512
REPEATS = 4
TOKENS = 256
PLAIN_TOKENS = 2048
#: After how many tokens loops are looked for again.
STRIDE = 32
#: The most tokens of a loop when it is found.
_KEPT = PLAIN_TOKENS + STRIDE


class Loop(NamedTuple):
    """The length of a period in tokens, and how many times it came."""

    period: int
    times: int


class LoopDetector:
    """Finds the loops of one answer. What it finds does not depend on how many tokens come at once.

    After every `STRIDE` tokens, and at the end, it looks for the last of these in the tokens before them: each place
    where they are is a period, and is checked. Tokens are characters here, because strings are compared and searched
    fastest.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        #: The last tokens before `_new`, which is less than a stride.
        self._seen = ""
        self._new = ""
        #: The period of the loop that the last tokens are in, and how many tokens it has so far.
        self._period = self._length = 0
        self._loops: list[Loop] = []

    def feed(self, ids: Sequence[int]) -> int | None:
        """Take the next tokens. Returns after how many of them a loop was found; None if none was."""
        found: int | None = None
        tokens = self._new + "".join(map(chr, ids))
        start = 0
        for start in range(STRIDE, len(tokens) + 1, STRIDE):
            if self._take(tokens[start - STRIDE : start]) and found is None:
                found = start - len(self._new)
        self._new = tokens[start:]
        return found

    def finish(self) -> list[Loop]:
        """All loops of the answer, which has no more tokens."""
        self._take(self._new)
        if self._period:
            self._close()
        return self._loops

    def _take(self, stride: str) -> bool:
        """Take a stride, or what comes last. Returns whether a loop was found at its end."""
        if self._period and not self._go_on(stride):
            self._close()
        self._seen = (self._seen + stride)[-_KEPT:]
        if self._period:
            return False
        self._period = self._found()
        self._length = self._run(self._period) if self._period else 0
        return self._period > 0

    def _go_on(self, tokens: str) -> bool:
        """Add to the loop the `tokens` that continue it. Returns whether all do."""
        before = self._seen[-self._period :]
        expected = (before * (len(tokens) // self._period + 1))[: len(tokens)]
        same = len(tokens) if tokens == expected else _equal(tokens, expected)
        self._length += same
        return same == len(tokens)

    def _close(self) -> None:
        self._loops.append(Loop(self._period, self._length // self._period))
        self._period = 0

    def _found(self) -> int:
        """The shortest period of a loop that ends here; 0 if there is none."""
        seen, end = self._seen, len(self._seen)
        last, first = seen[-STRIDE:], max(0, end - STRIDE - MOST_PERIOD)
        plain: list[int] = []  # periods without a letter, whose multiples have none either
        at = seen.rfind(last, first, end - 1)
        while at >= 0:
            period = end - STRIDE - at
            if not any(period % shorter == 0 for shorter in plain) and self._repeats(period, TOKENS):
                if self._has_letter(seen[-period:]) or self._repeats(period, PLAIN_TOKENS):
                    return period
                plain.append(period)
            at = seen.rfind(last, first, at + STRIDE - 1)
        return 0

    def _repeats(self, period: int, least: int) -> bool:
        """Whether at least `least` tokens, and at least `REPEATS` periods, have this period."""
        least = max(least, REPEATS * period)
        return len(self._seen) >= least and self._seen[-least:-period] == self._seen[period - least :]

    def _run(self, period: int) -> int:
        """How many of the last tokens have this period."""
        backwards = self._seen[::-1]
        return period + _equal(backwards[period:], backwards)

    def _has_letter(self, tokens: str) -> bool:
        # Twice, because the period may begin inside a character.
        text = b"".join(self._tokenizer.token_bytes(ord(token)) for token in tokens * 2)
        return any(character.isalpha() for character in text.decode("utf-8", "ignore"))


def _equal(one: str, other: str) -> int:
    """How many characters of the two are equal, from the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
