"""`NamedCallReader`: calls whose name stands before their arguments, which are JSON: `NAME<args>{…}`."""

from __future__ import annotations

from typing import ClassVar

from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_calls import JsonCallReader
from dovetail.reading.json_objects import CALL_ID_TEXT
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.reader import Script


class NamedCallReader(JsonCallReader):
    #: What opens a call, and what ends it; "" where the section's opener or the end of the arguments does.
    call: ClassVar[str] = ""
    call_end: ClassVar[str] = ""
    #: What a call has before its arguments, "name" and perhaps "id", each with the literal that ends it.
    header: ClassVar[tuple[tuple[str, str], ...]]
    #: The markers of sections and calls, and the control tokens that begin none of them.
    marks: ClassVar[tuple[str, ...]]
    #: Whether a section ends with its first call.
    ends_with_call: ClassVar[bool] = False

    def _section(self, opener: str) -> Script[None]:
        call = self.call or self.section
        if opener == self.call and self.section:
            self._defect("missing_section")
        marker: str | None = opener if opener == call else ""
        in_section = opener == self.section
        while True:
            if marker == "":
                marker = yield from self._between(*self.marks)
            if marker == call:
                marker = yield from self._named_call()
                if marker == "" and self.ends_with_call:
                    return
            elif marker == self.section:
                if in_section:
                    self._stray_marker(marker)
                in_section, marker = True, ""
            elif marker == self.call_end or any(marker == end for _, end in self.header):
                self._stray_marker(marker or "")
                marker = ""
            else:
                break
        if marker is not None and marker == self.section_end:
            yield from self._after_calls()
            return
        if self.section_end:
            self._defect("missing_section_end")
        if marker is not None:
            self._unread()

    def _named_call(self) -> Script[str | None]:
        """Read a call whose opener was read before. Returns "" after it, or the marker that came in place of its end.

        None is the end of the output.
        """
        raw, read = "", {"name": "", "id": ""}
        last = self.header[-1][1]
        marker: str | None = last
        for slot, end in self.header:
            text, marker = yield from self._read_up_to(LONGEST_HEADER, *dict.fromkeys((end, "{", *self.marks)))
            raw += text
            read[slot] = text.strip()
            if marker != end:
                break
        name = read["name"]
        if defect := self._header_defect(name, marker, last):
            self._abandon(raw, defect)
            if marker == "{":
                self._unread()
            return "" if marker in ("{", last, self.call_end) else marker
        if read["id"] and not CALL_ID_TEXT.fullmatch(read["id"]):
            self._abandon(read["id"], "unreadable_id")
            read["id"] = ""
        self._open_call(name, read["id"] or None)
        if marker == "{":
            self._defect("missing_separator", self._id)
            self._unread()
        elif marker == last:
            yield from self._skip(WHITESPACE)
            if self.call_end and (yield from self._next_is(self.call_end)) is not None:
                marker = self.call_end
        if marker not in ("{", last):
            self._close_call(marker, marker)
        else:
            marker = yield from self._rest_of_call()
        return "" if marker == self.call_end else marker

    def _header_defect(self, name: str, marker: str | None, last: str) -> str:
        """Why what was read up to `marker` is no call; "" if it is one."""
        if marker not in ("{", last) and (name not in self._options.tools or not marker):
            return {None: "truncated_call", "": "endless_header"}.get(marker, "call_without_arguments")
        if not name:
            return "missing_name"
        blank = any(character.isspace() for character in name) and self._tool(name) not in self._options.tools
        return "unreadable_call" if blank else ""

    def _rest_of_call(self) -> Script[str | None]:
        """Read the open call's arguments, and its end, which is returned as in `_named_call`."""
        marker = yield from self._arguments_alone(*self.marks)
        if marker == "" and self.call_end:
            marker = yield from self._between(*self.marks)
            if marker != self.call_end:
                self._defect("missing_call_end", self._id)
        return marker
