"""Whether a text ends in a loop: the same lines, or the same piece of a line, over and over to its end."""

from __future__ import annotations

from typing import NamedTuple

#: The fewest characters of a period that is less than a line, of repeats, and of characters in all repeats.
_PERIOD, _REPEATS, _LENGTH = 20, 4, 1000
#: The most characters from the end that are looked at.
_MOST = 32_768


class Loop(NamedTuple):
    """`period`: what is repeated. `length`: how many characters the repeats fill."""

    period: str
    length: int


def loop_at_end(text: str) -> Loop | None:
    """The exact repetition in which `text` ends, perhaps in the middle of the period; None if there is none.

    The period is the shortest one, so a row of dashes or blanks is no loop of twenty of them.
    """
    backwards = text[: -_MOST - 1 : -1]
    for period, agrees in enumerate(_agreements(backwards)):
        length = period + agrees
        if period and length >= max(_LENGTH, _REPEATS * period):
            repeated = backwards[:period][::-1]
            return Loop(repeated, length) if period >= _PERIOD or "\n" in repeated else None
    return None


def _agreements(text: str) -> list[int]:
    """For each place, how many characters from there on are those that `text` begins with (the Z function)."""
    n = len(text)
    agrees = [0] * n
    left = right = 0  # the rightmost stretch that agrees with the beginning
    for i in range(1, n):
        k = min(right - i, agrees[i - left]) if i < right else 0
        while i + k < n and text[k] == text[i + k]:
            k += 1
        agrees[i] = k
        if i + k > right:
            left, right = i, i + k
    return agrees
