"""`JsonEnd`: finds where a JSON object, array or string ends, piece by piece and without parsing it.

`appending` collects such a value, and what models write in place of one: a string in single quotes, or a bare word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dovetail.reading.reader import FARTHEST

_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # to a quote, to a last lone backslash, or to the end
#: The inside of a string, without a control character, a quote or a backslash that ends the text.
_INSIDE = re.compile(r'[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*+")
_BARE_END = re.compile(r"""[\s,:{}\[\]"']""")
_OUTSIDE = re.compile(r'["{}\[\]]')


class JsonEnd:
    """Counts the brackets outside of strings. The first character fed must open the value."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def weigh(self, text: str, at: int) -> int | None:
        """Whether a stop that ends at `at` is inside a string: see `reading.reader.Weigh`.

        It is one if it comes where no string is open, or if the string does not go on as JSON strings do.
        """
        return string_goes_on(text, at) if self._in_string else -1

    def feed(self, text: str) -> int | None:
        """The offset in `text` after the value's last bracket or quote; None while the value is open."""
        at = 0
        if self._escaped and text:
            self._escaped = False
            at = 1
        while at < len(text):
            if self._in_string:
                at = _STRING.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
                if at == len(text):
                    return None
                if text[at] == "\\":
                    self._escaped = True
                    return None
                self._in_string = False
                at += 1
                if self._depth == 0:
                    return at
                continue
            match = _OUTSIDE.search(text, at)
            if match is None:
                return None
            at = match.end()
            mark = match.group()
            if mark == '"':
                self._in_string = True
            elif mark in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return at
        return None


def string_goes_on(text: str, at: int) -> int | None:
    """How many of the characters from `at` on continue an open JSON string; -1 if they cannot; None if that is open."""
    limit = at + FARTHEST
    end = _INSIDE.match(text, at, limit).end()  # type: ignore[union-attr]  # it matches everywhere
    if end == limit or (end == limit - 1 and text[end : end + 1] == "\\"):
        return end - at
    if end == len(text) or text[end:] == "\\":
        return None
    following = _SPACE.match(text, end + 1, limit).end()  # type: ignore[union-attr]  # it matches everywhere
    if text[end] == '"' and following < limit and following == len(text):
        return None
    return end - at if text[end] == '"' and (following == limit or text[following] in ",:}]") else -1


# -- takers (see `Reader._until`) --------------------------------------------------------------------------------------


def appending(first: str, *into: list[str]) -> Callable[[str], int | None]:
    """A taker (see `Reader._until`) of a value that begins with `first`, which appends the text to each of `into`."""
    return to_end(_end_of_value(first), into)


def to_end(end: Callable[[str], int | None], into: Sequence[list[str]]) -> Callable[[str], int | None]:
    def take(text: str) -> int | None:
        at = end(text)
        for pieces in into:
            pieces.append(text[:at])
        return at

    return take


def _end_of_value(first: str) -> Callable[[str], int | None]:
    """A function that finds, in pieces of a value that begins with `first`, the offset where the value ends."""
    if first in ("{", "[", '"'):
        return JsonEnd().feed
    if first == "'":
        return _QuoteEnd().feed
    return _bare_end


class _QuoteEnd:
    """Finds the end of a string in single quotes, which is no JSON but is meant as such. It has no escapes."""

    def __init__(self) -> None:
        self._quotes = 0

    def feed(self, text: str) -> int | None:
        at = -1
        while self._quotes < 2 and (at := text.find("'", at + 1)) >= 0:
            self._quotes += 1
        return at + 1 if self._quotes == 2 else None


def _bare_end(text: str) -> int | None:
    match = _BARE_END.search(text)
    return match.start() if match is not None else None
