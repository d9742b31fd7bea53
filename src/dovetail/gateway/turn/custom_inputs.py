"""The input of calls to custom tools: the text in the one argument of the function that stands for the tool.

The input is decoded as it comes. A call whose arguments the reader could not read has their text as its input. One
whose arguments begin in any other way than `{"input": "…` has the arguments themselves as its input, so that no text is
lost. Defects report both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from dovetail.custom_tools import INPUT
from dovetail.events import CallArguments, CallEnd, CallStart, Event
from dovetail.reading import MALFORMED
from dovetail.reading.json_string import StringDecoder

_OPENING = (("{",), (f'"{INPUT}"', f'"{MALFORMED}"'), (":",), ('"',))
_SPACE = " \t\r\n"
_LONGEST_OPENING = 1_000  # characters, white space included
#: The closing quote, or an escape, of which the second half may still be missing.
_QUOTE = re.compile(r'\\(?:.|\Z)|"', re.DOTALL)


class CustomInputs:
    """Replaces the arguments of calls to custom tools, which are JSON, by their input, which is text."""

    def __init__(self, names: frozenset[str]) -> None:
        """`names`: the names of the custom tools."""
        self._names = names
        self._open: dict[int, InputDecoder] = {}

    def feed(self, events: Iterable[Event], *, last: bool = False) -> list[Event]:
        """The events, with text in the `CallArguments` of custom tools. `last`: the answer ends here."""
        replaced: list[Event] = []
        for event in events:
            match event:
                case CallStart(index, _, name) if name in self._names:
                    self._open[index] = InputDecoder()
                    replaced.append(event)
                case CallArguments(index, fragment) if index in self._open:
                    replaced += _text(index, self._open[index].feed(fragment))
                case CallEnd(index) if index in self._open:
                    replaced += (*_text(index, self._open.pop(index).end()), event)
                case _:
                    replaced.append(event)
        if last:  # what is left are calls without an end
            replaced += (event for index in [*self._open] for event in _text(index, self._open.pop(index).end()))
        return replaced


def _text(index: int, text: str) -> list[Event]:
    return [CallArguments(index, text)] if text else []


class InputDecoder:
    """Decodes the arguments of one call, piece by piece, into the input."""

    def __init__(self) -> None:
        self._part: Literal["opening", "string", "other", "end"] = "opening"
        self._begun = ""  # of the opening, or half an escape
        self._strings = StringDecoder()

    def feed(self, fragment: str) -> str:
        """The next characters of the input."""
        if self._part == "opening":
            return self._opening(fragment)
        if self._part == "string":
            return self._string(fragment)
        return fragment if self._part == "other" else ""

    def end(self) -> str:
        """The last characters of the input. The arguments are over."""
        return self._strings.end() if self._part == "string" else self._begun

    def _opening(self, fragment: str) -> str:
        arguments = self._begun + fragment
        rest = arguments[:_LONGEST_OPENING]
        for words in _OPENING:
            rest = rest.lstrip(_SPACE)
            word = next(filter(rest.startswith, words), None)
            if word is None:
                if any(word.startswith(rest) for word in words) and len(arguments) < _LONGEST_OPENING:
                    self._begun = arguments
                    return ""
                self._part, self._begun = "other", ""
                return arguments
            rest = rest[len(word) :]
        self._part, self._begun = "string", ""
        return self._string(rest + arguments[_LONGEST_OPENING:])

    def _string(self, fragment: str) -> str:
        text, self._begun = self._begun + fragment, ""
        for match in _QUOTE.finditer(text):
            if match.group() == '"':
                self._part = "end"
                return self._strings.feed(text[: match.start()]) + self._strings.end()
            if match.group() == "\\":
                self._begun = "\\"
                return self._strings.feed(text[:-1])
        return self._strings.feed(text)
