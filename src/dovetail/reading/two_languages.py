"""Readers of both languages that models write between the same markers: JSON objects, and tags with names in them.

    <tool_call>{"name": "search", "arguments": {…}}</tool_call>
    <tool_call><function=search><parameter=query>words</parameter></function></tool_call>

Models were trained on one of them, and some write the other.
"""

from __future__ import annotations

from dovetail.reading.json_calls import JsonCallReader
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.reader import Script
from dovetail.reading.tags import EqualsTagReader


class JsonInTags(JsonCallReader):
    def _json_section(self) -> Script[bool]:
        """Read the open section if it holds JSON; whether it did."""
        yield from self._skip(WHITESPACE)
        if not (yield from self._begins_json()):
            return False
        self._defect("other_syntax", self.section)
        yield from JsonCallReader._section(self, self.section)
        return True


class JsonAfterNames(JsonInTags):
    """The same in families whose own syntax is a name before a bracket."""

    def _begins_json(self) -> Script[bool]:
        return (yield from self._peek()) in ("{", "[")


class TagOrJsonReader(EqualsTagReader, JsonInTags):
    """Reads tags, and JSON in place of them."""

    _other_language = JsonInTags._json_section


class JsonOrTagReader(JsonCallReader, EqualsTagReader):
    """Reads JSON, and Qwen3-Coder's tags in place of it."""

    call, call_end, call_in_text = "<function", "</function>", "<function="
    parameter, parameter_end, parameter_in_text = "<parameter", "</parameter>", "<parameter="
    newline_before_value = True
    other_openers = ()

    def _section(self, opener: str) -> Script[None]:
        yield from self._skip(WHITESPACE)
        if (yield from self._peek()) == "<":
            self._defect("other_syntax", opener)
            yield from EqualsTagReader._section(self, opener)
        else:
            yield from super()._section(opener)

    def _another_section(self, opener: str) -> Script[bool]:
        # It may be in the other language.
        yield from self._after_calls()
        return False
