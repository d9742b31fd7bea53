"""The arguments of one call that the model writes as JSON. They are passed on at once, and checked when they end."""

from __future__ import annotations

import json
import re

from dovetail.reading.json_end import JsonEnd

WHITESPACE = " \t\r\n"
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[{}\[\]]', re.DOTALL)


class JsonArguments:
    """Splits the text after a call's header into JSON fragments to pass on, and the text after the JSON."""

    def __init__(self) -> None:
        self._fragments: list[str] = []
        self._end: JsonEnd | None = None
        self.complete = False  # whether the closing bracket was read

    def feed(self, text: str) -> tuple[str, str]:
        """(fragment, rest): the next piece of the arguments, and the text after their closing bracket."""
        if self.complete:
            return "", text
        if not self._fragments:
            text = text.lstrip(WHITESPACE)
            if not text:
                return "", ""
            if text[0] in "{[":
                self._end = JsonEnd()
        # A value without brackets (null, a string, nonsense) lasts until the call's end marker.
        end = self._end.feed(text) if self._end is not None else None
        rest = ""
        if end is not None:
            self.complete = True
            text, rest = text[:end], text[end:]
        self._fragments.append(text)
        return text, rest

    @property
    def empty(self) -> bool:
        return not self._fragments

    def valid(self) -> bool:
        """Whether the fragments together are a JSON object. This parses all of them."""
        return bool(self._fragments) and self._fragments[0][0] == "{" and is_json("".join(self._fragments))

    def closing(self) -> str:
        """The text that closes the open strings and brackets, if that makes the fragments an object; else ""."""
        if not self._fragments or self._fragments[0][0] != "{":
            return ""
        return closing("".join(self._fragments)) or ""


def closing(text: str) -> str | None:
    """The text that closes the open strings and brackets of `text`, if that makes it JSON; else None."""
    closers: list[str] = []
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "{[":
            closers.append("}" if mark == "{" else "]")
        elif mark in "}]":
            closers[-1:] = []
        elif not token[1]:
            closers.append('"')
    ends = "".join(reversed(closers))
    return ends if is_json(text + ends) else None


def is_json(text: str) -> bool:
    """Whether `text` is one JSON value. NaN and infinities are not JSON."""
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
