"""The arguments of one call that the model writes as JSON. They are passed on at once, and checked when they end."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence

from dovetail.reading.json_end import JsonEnd
from dovetail.reading.values import WRAPPERS

WHITESPACE = " \t\r\n"
_SPACE = f"[{WHITESPACE}]{{0,16}}"
_KEY = r'[^"\\]{0,128}'
#: Arguments in a wrapper: its key, the inner bracket, and the first key after that.
_WRAPPED = re.compile(rf'\{{{_SPACE}"({"|".join(WRAPPERS)})"{_SPACE}:{_SPACE}(\{{){_SPACE}(?:"({_KEY})"{_SPACE}:|\}})')
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[{}\[\]]', re.DOTALL)


def _beginnings(parts: Sequence[str]) -> str:
    """A pattern for every beginning of what `parts` match one after another."""
    return functools.reduce(lambda rest, part: f"(?:{part}{rest})?", reversed(parts), "")


_MAY_BE_WRAPPED = re.compile(
    "|".join(
        _beginnings((r"\{", _SPACE, '"', *key, '"', _SPACE, ":", _SPACE, r"\{", _SPACE, '"', _KEY, '"', _SPACE))
        for key in WRAPPERS
    )
)


class JsonArguments:
    """Splits the text after a call's header into JSON fragments to pass on, and the text after the JSON.

    `unwraps`: whether arguments `{"KEY": {"FIRST": …}}` are the inner object, because the tool has no parameter KEY but
    one called FIRST ("" for an empty object). It is asked if KEY is one of `WRAPPERS`.
    """

    def __init__(self, unwraps: Callable[[str, str], bool] | None = None) -> None:
        self._fragments: list[str] = []
        self._end: JsonEnd | None = None
        self._unwraps = unwraps
        self._begun = ""  # the beginning of the arguments, until it is known whether they are wrapped
        self._wrapped = False  # whether they are
        self._unwrapped = False  # whether the inner object has ended
        self.complete = False  # whether the closing bracket was read

    def feed(self, text: str) -> tuple[str, str]:
        """(fragment, rest): the next piece of the arguments, and the text after their closing bracket."""
        if self.complete:
            return "", text
        if self._unwrapped:
            return "", self._after_inner(text)
        if not self._fragments:
            text = self._beginning(text)
            if not text:
                return "", ""
        # A value without brackets (null, a string, nonsense) lasts until the call's end marker.
        end = self._end.feed(text) if self._end is not None else None
        rest = ""
        if end is not None:
            text, rest = text[:end], text[end:]
            self._unwrapped, self.complete = self._wrapped, not self._wrapped
            if self._wrapped:
                rest = self._after_inner(rest)
        self._fragments.append(text)
        return text, rest

    def goes_on(self, text: str) -> bool:
        """Take text that changes no bracket and no string, which is the usual case; False if it is not such text."""
        end = self._end
        if end is None or self.complete or self._unwrapped or not end.goes_on(text):
            return False
        self._fragments.append(text)
        return True

    def _beginning(self, text: str) -> str:
        """The beginning of the arguments, with `text`; "" while it is open what belongs to it."""
        text = self._begun + text if self._begun else text.lstrip(WHITESPACE)
        if text[:1] not in ("{", "["):
            return text
        if self._unwraps is not None and (match := _WRAPPED.match(text)):
            self._wrapped = self._unwraps(match[1], match[3] or "")
            if self._wrapped:
                text = text[match.start(2) :]
        elif self._unwraps is not None and _MAY_BE_WRAPPED.fullmatch(text):
            self._begun = text
            return ""
        self._end = JsonEnd()
        return text

    def _after_inner(self, text: str) -> str:
        """The text after the bracket that closes the wrapper."""
        text = text.lstrip(WHITESPACE)
        self.complete = bool(text)
        return text.removeprefix("}")

    def flush(self) -> str:
        """The beginning of arguments that broke off there; nothing can be fed after it."""
        if self._begun and not self._fragments:
            self._fragments.append(self._begun)
            return self._begun
        return ""

    def weigh(self, text: str, at: int) -> int | None:
        """Whether a stop that ends at `at` in the unread text is inside a string: see `reading.reader.Weigh`."""
        return -1 if self._end is None or self.complete else self._end.weigh(text, at)

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
