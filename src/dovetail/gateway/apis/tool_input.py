"""The arguments of a call as the input of a `tool_use` block, whose pieces every client parses as they come.

Clients parse the pieces so far as the beginning of a JSON object, and fail if they are not. So only text that may begin
an object is passed on. A call that ends has valid arguments. One that does not, because the output was cut off or is
not JSON, keeps the input that its valid beginning has.
"""

from __future__ import annotations

import re

from dovetail.reading.json_prefix import JsonPrefix, is_whole_scalar

_TOKEN = re.compile(r'\s*(?:("[^"\\]*+(?:\\.[^"\\]*+)*+")|([{}\[\],:])|([^\s"{}\[\],:]++))', re.DOTALL)


class ToolInput:
    """Splits the arguments of one call into pieces that a client can parse."""

    def __init__(self) -> None:
        self._prefix = JsonPrefix()
        self._pieces: list[str] = []
        self._unread: list[str] = []  # from the first character on that cannot follow

    def feed(self, fragment: str) -> str:
        """The part of `fragment` to pass on now."""
        if self._unread:
            self._unread.append(fragment)
            return ""
        if not self._pieces:
            fragment = fragment.lstrip()
            if fragment[:1] not in ("", "{"):
                self._unread.append(fragment)
                return ""
        if fragment and not self._prefix.feed(fragment):
            fragment, rest = self._split(fragment)
            self._unread.append(rest)
        if fragment:
            self._pieces.append(fragment)
        return fragment

    def _split(self, fragment: str) -> tuple[str, str]:
        """`fragment` up to the first character that cannot follow, and the rest."""
        prefix = JsonPrefix()
        prefix.feed("".join(self._pieces))
        at = next(i for i, character in enumerate(fragment) if not prefix.feed(character))
        return fragment[:at], fragment[at:]

    def end(self) -> str:
        """The rest to pass on at the end of a call, whose arguments are valid after all."""
        rest = "".join(self._unread)
        self._unread.clear()
        self._pieces.append(rest)
        return rest

    def json(self, *, ended: bool) -> str:
        """The input as JSON. `ended`: whether the call has ended; else it is the object that the pieces begin."""
        text = "".join(self._pieces)
        return text if ended else begun_object(text)


def begun_object(text: str) -> str:
    """The JSON object that `text` begins, without a last key or value that may not be complete; {} for no text."""
    closers: list[str] = []
    at = end = 0
    expects_key = False
    while token := _TOKEN.match(text, at):
        at = token.end()
        string, mark, scalar = token.groups()
        if mark == ",":
            expects_key = closers[-1] == "}"
        elif mark == ":":
            expects_key = False
        elif mark in ("{", "["):
            closers.append("}" if mark == "{" else "]")
            expects_key = mark == "{"
            end = at
        elif mark:
            closers.pop()
            expects_key = False
            end = at
        elif (string and not expects_key) or (scalar and is_whole_scalar(scalar)):
            end = at
    return text[:end] + "".join(reversed(closers)) if end else "{}"
