"""`OlderTagReader`: the calls of `nested_tags.py`, and calls as the family's earlier models write them, without marks.

<minimax:tool_call>
<invoke name="search"><parameter name="query">words</parameter></invoke>
</minimax:tool_call>
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.events import Content
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.nested_tags import ATTRIBUTE, NAME, NestedTagReader
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.reader import Script


class OlderTagReader(NestedTagReader):
    #: The tags of a section and of a parameter.
    older_section: ClassVar[str]
    older_section_end: ClassVar[str]
    older_parameter: ClassVar[str]
    older_parameter_end: ClassVar[str]

    def _section(self, opener: str) -> Script[None]:
        if opener == self.older_section or opener in self._unopened():
            yield from self._older_section(opener)
        else:
            yield from super()._section(opener)

    def _older_section(self, opener: str) -> Script[None]:
        self._defect("foreign_markup", opener)
        in_section = opener == self.older_section
        while True:
            space = yield from self._skip(WHITESPACE, MOST_SPACE)
            if (yield from self._next_is(self.call)):
                yield from self._older_call()
            elif in_section and (yield from self._next_is(self.older_section_end)):
                return
            else:
                if in_section:
                    self._defect("missing_section_end")
                if space and len((yield from self._peek())) == 1:
                    self._events.append(Content(space))
                return

    def _older_call(self) -> Script[None]:
        header, stop = yield from self._read_up_to(LONGEST_HEADER, ">", *self.controls)
        match = NAME.fullmatch(f"{self.call}{header}>")
        name = "" if match is None else match[2].strip("\"'").strip()
        if stop is None and self._cut_off and self._begins_tag(self.call + header):
            self._defect("truncated_call", header)
            return
        if stop != ">" or self._tool(name) not in self._options.tools:
            if stop:
                self._unread()
            self._abandon(self.call + header, "missing_name" if stop else "truncated_call")
            return
        self._begin_call(name)
        while True:
            yield from self._skip(WHITESPACE)
            marker = yield from self._next_is(self.older_parameter, self.call_end)
            if marker != self.older_parameter:
                break
            if not (yield from self._older_member()):
                return
        if marker is None and self._begun and self._trial is not None and not self._cut_off:
            self._abandon(header, "call_without_arguments")
        if marker is None and (self._begun or self._cut_off):
            self._cut_off_call()
            return
        if marker is None:
            self._defect("missing_call_end", self._id)
        self._close(0)
        self._end_call()

    def _older_member(self) -> Script[bool]:
        """Read a parameter after the beginning of its tag; False if the call was cut off."""
        header, stop = yield from self._read_up_to(LONGEST_HEADER, ">", *self.controls)
        match = NAME.fullmatch(f"{self.older_parameter}{header}>")
        if stop != ">" or match is None:
            if stop:
                self._unread()
            if stop is not None or not (self._cut_off and self._begins_attribute(header)):
                self._misplaced(self.older_parameter + header)
            return True
        level, key = self._levels[0], match[2].strip("\"'").strip()
        self._write(self._head(level, key))
        write = self._value_writer.begin("", key, level.types[key])
        if (yield from self._value(write, self.older_parameter_end, *self.ends)) is None:
            self._value_writer.cut()
            self._cut_off_call()
            return False
        if self._last_marker() != self.older_parameter_end:
            self._defect("missing_parameter_end", key)
            self._unread()
        self._value_writer.close()
        return True

    def _begins_attribute(self, text: str) -> bool:
        """Whether `text` is the beginning of the attribute with the name of a parameter."""
        keys = self._levels[0].types.own_keys()
        return any(f"{ATTRIBUTE}{key}".startswith(text) for key in keys)
