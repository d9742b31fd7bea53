"""`JsonEnd`: finds where a JSON object, array or string ends, piece by piece and without parsing it."""

from __future__ import annotations

import re

_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # to a quote, to a last lone backslash, or to the end
_OUTSIDE = re.compile(r'["{}\[\]]')


class JsonEnd:
    """Counts the brackets outside of strings. The first character fed must open the value."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

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
