"""Regular expressions in other people's configs, matched in bounded time, for Python's own search can take for ever.

In place of trying one way after the other, all positions that a part can end at are carried along as a set. Read are
characters, classes, escapes, groups, alternatives, repetitions and looks ahead; no backreferences, looks behind, named
groups or flags.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import lru_cache

_LONGEST = 500  # characters
_DEEPEST = 16  # groups
_MOST = 100  # times that a part is counted
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?.|\{\d*,?\d*\}|.", re.DOTALL)
_COUNTED = re.compile(r"\{(\d{1,3})(,?)(\d{0,3})\}")
_REPEATED: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_Ends = frozenset[int]
#: Where a part can end that starts at this position of the text.
_Part = Callable[[str, int], _Ends]


class UnreadPattern(Exception):
    """Why a pattern is not read."""


@lru_cache(maxsize=4096)
def matches(pattern: str, text: str) -> bool:
    """As `re.match` has it. Raises `UnreadPattern`."""
    return bool(compiled(pattern)(text, 0))


@lru_cache(maxsize=256)
def compiled(pattern: str) -> _Part:
    """Raises `UnreadPattern`."""
    if len(pattern) > _LONGEST:
        raise UnreadPattern(f"it is longer than {_LONGEST} characters")
    tokens = _TOKEN.findall(pattern)[::-1]
    part = _alternatives(tokens, 0)
    if tokens:
        raise UnreadPattern("a parenthesis is closed that was not opened")
    return part


def _alternatives(tokens: list[str], depth: int) -> _Part:
    """Up to the parenthesis that closes them, or the end. Takes `tokens` from the end of the list."""
    if depth > _DEEPEST:
        raise UnreadPattern(f"its groups are nested deeper than {_DEEPEST}")
    ways: list[list[_Part]] = [[]]
    while tokens and tokens[-1] != ")":
        token = tokens.pop()
        if token == "|":
            ways.append([])
        else:
            ways[-1].append(_repeated(_one(token, tokens, depth), tokens))
    return _remembered(lambda text, start: frozenset().union(*(_all_of(way, text, start) for way in ways)))


def _all_of(parts: list[_Part], text: str, start: int) -> _Ends:
    ends = frozenset((start,))
    for part in parts:
        ends = frozenset().union(*(part(text, at) for at in ends))
    return ends


def _one(token: str, tokens: list[str], depth: int) -> _Part:
    if token in ("(", "(?:", "(?=", "(?!"):
        inner = _alternatives(tokens, depth + 1)
        if not tokens:
            raise UnreadPattern("a parenthesis is not closed")
        tokens.pop()
        if token in ("(", "(?:"):
            return inner
        return lambda text, start: frozenset((start,) if bool(inner(text, start)) == (token == "(?=") else ())
    if token.startswith("(?") or token in ("*", "+", "?") or token[1:].isdigit():
        raise UnreadPattern(f"{token} is not read there")
    try:
        with warnings.catch_warnings(action="ignore"):  # of what a class may mean one day
            single = re.compile(token)
    except (re.error, OverflowError) as error:
        raise UnreadPattern(str(error)) from error

    def ends(text: str, start: int) -> _Ends:
        found = single.match(text, start)
        return frozenset((found.end(),) if found else ())

    return ends


def _repeated(part: _Part, tokens: list[str]) -> _Part:
    sign = tokens[-1] if tokens else ""
    counted = _COUNTED.fullmatch(sign)
    if counted:
        least = int(counted[1])
        most = int(counted[3]) if counted[3] else None if counted[2] else least
    elif sign in _REPEATED:
        least, most = _REPEATED[sign]
    else:
        return part
    tokens.pop()
    if max(least, most or 0) > _MOST:
        raise UnreadPattern(f"{sign} is more than {_MOST} times")
    if tokens and tokens[-1] == "?":  # as few as possible, which is no other match
        tokens.pop()

    def ends(text: str, start: int) -> _Ends:
        here = frozenset((start,))
        for _ in range(least):
            here = frozenset().union(*(part(text, at) for at in here))
        found, times = here, least
        while here and (most is None or times < most):
            here = frozenset().union(*(part(text, at) for at in here)) - found
            found, times = found | here, times + 1
        return found

    return _remembered(ends)


def _remembered(part: _Part) -> _Part:
    """Nested repetitions ask for the same again and again."""
    return lru_cache(maxsize=1024)(part)
