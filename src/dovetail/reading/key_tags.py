"""`KeyTagReader`: calls whose parameters have a tag for the key and a tag for the value, as GLM writes them.

<tool_call>search
<arg_key>query</arg_key>
<arg_value>words</arg_value>
</tool_call>
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.reader import Script
from dovetail.reading.tags import ParameterReader


class KeyTagReader(ParameterReader):
    """All of the tags are control tokens, and each call is a section."""

    key: ClassVar[str]
    key_end: ClassVar[str]
    value: ClassVar[str]

    def _stops_of_values(self) -> tuple[str, ...]:
        others = (self.key, self.value, self.section, self.section_end)
        return (self.parameter_end, *others, *("\n" + other for other in others), *self.ends)

    def _section(self, opener: str) -> Script[None]:
        while True:
            yield from self._call()
            if not (yield from self._another_section()):
                return

    def _call(self) -> Script[None]:
        header, marker = yield from self._read_up_to(LONGEST_HEADER, "{", *self.controls)
        if not marker:
            self._abandon(header, "truncated_call" if marker is None else "endless_header")
            return
        self._unread()
        around = (self.section, self.section_end)
        name = header.strip()
        if name not in self._options.tools and (not name or any(map(str.isspace, name))):
            self._abandon(header, "missing_name")
            name = "" if name or marker not in (self.key, self.value) else self._only_tool() or ""
        if not name:
            marker = yield from self._between(*around, self.think, self.think_end, *self.ends)
        else:
            self._begin_call(name)
            if marker == "{":
                self._defect("json_arguments", self._id)
                marker = yield from self._json_arguments(*around, *self.ends)
                self._close_call(marker, self.section_end)
            else:
                marker = yield from self._body()
                self._close_parameters(marker, self.section_end)
        if marker not in (None, self.section_end):
            self._unread()

    def _body(self) -> Script[str | None]:
        while True:
            marker = yield from self._between(*self.controls)
            if marker == self.key:
                yield from self._parameter()
            elif marker in (self.key_end, self.value, self.parameter_end):
                self._stray_marker(marker)
            else:
                return marker

    def _parameter(self) -> Script[None]:
        key, marker = yield from self._read_up_to(LONGEST_HEADER, *self.controls)
        if not marker:
            self._abandon(key, "truncated_call" if marker is None else "endless_header")
            return
        between = ""
        if marker == self.key_end:
            between, marker = yield from self._read_up_to(LONGEST_HEADER, *self.controls)
        else:
            self._defect("missing_key_end", key)
        if marker == self.value:
            self._misplaced(between)
            yield from self._parameter_value(key.strip())
            return
        self._unread()
        if marker == self.parameter_end:
            self._defect("missing_value_start", key)
            yield from self._parameter_value(key.strip(), begun=between.removeprefix("\n"))
        else:
            self._abandon(key + between, "missing_value")
