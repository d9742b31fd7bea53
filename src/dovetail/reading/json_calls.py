"""`JsonCallReader`: sections of calls that are JSON objects, one after another or in a list.

`KeyedCallReader` is the same for objects whose only key is the tool's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from dovetail.events import Content
from dovetail.reading.json_objects import Envelope, JsonObjectReader
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.reader import Script

_PUNCTUATION = ("{", "}", "[", "]")
_SEPARATORS = ",;"
_FENCE = "```"
#: What opens a code fence around calls, and every beginning of that.
_OPEN_FENCE = re.compile(rf"{_FENCE}(?:json)?[ \t\r\n]{{0,16}}(?=[{{\[])")
_MAY_OPEN_FENCE = re.compile(r"`{1,3}|```j(?:s(?:o)?)?|```(?:json)?[ \t\r\n]{0,16}")
#: The name in a call's object that lacks its bracket, and every beginning of that.
_KEY = re.compile(r'"name"[ \t\r\n]{0,16}:[ \t\r\n]{0,16}"[^"]{1,128}"[ \t\r\n]{0,16},')
_MAY_BE_KEY = re.compile(
    r'"(?:n|na|nam|name|name"[ \t\r\n]{0,16}(?::[ \t\r\n]{0,16}(?:"[^"]{0,128}(?:"[ \t\r\n]{0,16})?)?)?)?'
)
#: A name in front of its arguments, and every beginning of that.
_NAMED = re.compile(r"""([\w.-]{1,128})[ \t\r\n]{0,16}(?:[:(][ \t\r\n]{0,16})?(?=\{[ \t\r\n]{0,16}["'}])""")
_MAY_BE_NAMED = re.compile(r"[\w.-]{1,128}[ \t\r\n]{0,16}(?:[:(][ \t\r\n]{0,16})?(?:\{[ \t\r\n]{0,16})?")


class JsonCallReader(JsonObjectReader):
    #: What opens and ends a section. `section_end` is "" where the section ends with the calls or the turn.
    section: str = ""
    section_end: str = ""
    #: Whether each call has a section of its own.
    one_call_in_section: bool = False
    #: The three of each other layout of sections, by what opens it.
    other_sections: ClassVar[Mapping[str, tuple[str, str, bool]]] = {}
    #: Whether the family writes its calls as a JSON list.
    in_list: ClassVar[bool] = False
    #: Ordinary text that some models write to end a section, although the family has no token for it.
    text_end: ClassVar[str] = ""

    def _section(self, opener: str) -> Script[None]:
        before = self._index
        own = type(self).section, type(self).section_end, type(self).one_call_in_section
        self.section, self.section_end, self.one_call_in_section = self.other_sections.get(opener, own)
        stops = tuple(filter(None, (self.section, self.section_end, *self.ends)))
        marker = yield from self._calls(*stops, lists=opener.endswith("["))
        if marker == "" and self._index == before:
            self._defect("unreadable_call")
            marker = yield from self._prose(Content, *stops)
        elif marker == "":
            marker = yield from self._pass(self._stray_text, self._stray_marker, stops)
        if marker and marker in (self.section_end, self.text_end):
            yield from self._after_calls()
        elif marker is not None:
            self._unread()

    def _begins_json(self) -> Script[bool]:
        """Whether calls in JSON come next."""
        first = yield from self._peek()
        if first in ("{", "["):
            return True
        pattern, begun = (_KEY, _MAY_BE_KEY) if first == '"' else (_OPEN_FENCE, _MAY_OPEN_FENCE)
        if (yield from self._look(pattern, begun)) is not None:
            return True
        return (yield from self._name_before_arguments()) is not None

    def _calls(self, *stops: str, read: int = 0, lists: int = 0) -> Script[str | None]:
        """Read calls up to one of `stops`, which is returned; None at the end of the output.

        Returns "" at text that is no call, which stays unread. `read`: how many calls of the section came before.
        `lists`: how many brackets were read before.
        """
        fenced = False
        while True:
            gap = yield from self._gap(read)
            separators = gap.strip()
            first = yield from self._peek()
            if first not in _PUNCTUATION or (first == "[" and self.text_end):
                marker = yield from self._next_is(*stops, *filter(None, (self.text_end,)))
                if marker is not None or not first:
                    if separators:
                        self._text_after(gap, read)
                    self._section_ends(marker, read, lists)
                    return marker
            match first:
                case "{":
                    if len(separators) > 1:
                        self._defect("stray_separator", separators)
                    if read and self.one_call_in_section and not lists:
                        self._defect("missing_call_end", self._id)
                    read += 1
                    yield from self._skip("{", 1)
                    marker = yield from self._object(["{"], *stops)
                    if marker != "":
                        return marker
                case "[":
                    yield from self._skip("[", 1)
                    space = yield from self._skip(WHITESPACE, MOST_SPACE)
                    commas = yield from self._skip(_SEPARATORS, MOST_SPACE)
                    more = (yield from self._skip(WHITESPACE, MOST_SPACE)) if commas else ""
                    first = yield from self._peek()
                    if first not in ("{", "[", "]") and not (
                        first == '"' and (yield from self._look(_KEY, _MAY_BE_KEY))
                    ):
                        self._text_after(f"{gap}[{space}{commas}{more}", read)
                        return ""
                    if commas:
                        self._defect("stray_separator", commas)
                    if not self.in_list:
                        self._defect("list_of_calls")
                    lists += 1
                case "`" if fenced and (yield from self._next_is(_FENCE)):
                    fenced = False
                case "`" if not read and (match := (yield from self._look(_OPEN_FENCE, _MAY_OPEN_FENCE))):
                    self._at = match.end()
                    self._defect("fenced_arguments")
                    fenced = True
                case '"' if (lists or not read) and (yield from self._look(_KEY, _MAY_BE_KEY)):
                    read += 1
                    self._defect("missing_bracket")
                    marker = yield from self._object([], *stops)
                    if marker != "":
                        return marker
                case _ if not (lists or read) and (match := (yield from self._name_before_arguments())):
                    read += 1
                    self._at, name = match.end(), match[1]
                    self._defect("foreign_markup", name)
                    self._open_call(name)
                    marker = yield from self._arguments_alone(*stops)
                    if marker != "":
                        return marker
                    yield from self._after_space(")")
                case "]" if lists:
                    if separators:
                        self._defect("stray_separator", separators)
                    yield from self._skip("]", 1)
                    lists -= 1
                case "]" | "}" if read and not separators:
                    yield from self._skip(first, 1)
                    self._defect("stray_bracket", first)
                case _ if lists:
                    yield from self._text_in_list(gap, *stops)
                case _:
                    self._text_after(gap, read)
                    return ""

    def _name_before_arguments(self) -> Script[re.Match[str] | None]:
        """The name of a tool, if it comes next and in front of an object."""
        match = yield from self._look(_NAMED, _MAY_BE_NAMED)
        return match if match is not None and self._tool(match[1]) in self._options.tools else None

    def _gap(self, read: int) -> Script[str]:
        """Whitespace and separators after a call: markup if another call follows, and text otherwise."""
        if not read:
            yield from self._skip(WHITESPACE)  # after the opener it is markup, whatever follows
            return ""
        # In a section with an end, whitespace is markup however much there is.
        space = yield from self._skip(WHITESPACE, None if self.section_end else MOST_SPACE)
        separators = yield from self._skip(_SEPARATORS, MOST_SPACE)
        more = (yield from self._skip(WHITESPACE, MOST_SPACE)) if separators else ""
        return space + separators + more

    def _text_after(self, text: str, read: int) -> None:
        """`text` comes after the calls. It is content, and misplaced where the section has not ended yet."""
        self._stray = not (read and self.section_end)
        if text:
            self._stray_text(text)

    def _text_in_list(self, text: str, *stops: str) -> Script[None]:
        """Pass over text between the calls of a list, of which `text` was read before."""
        self._stray = False
        self._stray_text(text)
        yield from self._pass(self._stray_text, self._stray_marker, ("{", "]", *stops))
        self._unread()

    def _after_calls(self) -> Script[None]:
        """Whitespace after a call is markup before a marker or the end, and content before text."""
        space = yield from self._skip(WHITESPACE, MOST_SPACE)
        if self.text_end and (yield from self._next_is(self.text_end)) is not None:
            space = yield from self._skip(WHITESPACE, MOST_SPACE)
        if self._wrapped and self.wrapper_end and (yield from self._next_is(self.wrapper_end)) is not None:
            self._unread()
        elif space and self.text_openers and (yield from self._next_is(*self._unindented_openers())) is not None:
            self._unread()  # another section, whose opener is ordinary text
        elif space and len((yield from self._peek())) == 1:
            self._events.append(Content(space))

    def _section_ends(self, marker: str | None, read: int, lists: int) -> None:
        if not read:
            cut = marker is None and self._cut_off
            self._defect("truncated_call" if cut else "empty_section")
        elif lists:
            self._defect("missing_bracket")
        elif self.section_end and marker != self.section_end:
            if self.one_call_in_section:
                self._defect("missing_call_end", self._id)
            else:
                self._defect("missing_section_end")


class KeyedCallReader(JsonCallReader):
    """Calls that are objects whose key is the tool's name: `{"ping": {"host": "a"}}`."""

    def _member_value(self, envelope: Envelope, key: str, first: str, stops: tuple[str, ...]) -> Script[None]:
        name, usual = key.strip(), any(key in keys for keys in self.keys)
        if (
            not name
            or first != "{"
            or envelope.name
            or envelope.has_arguments
            or (usual and name not in self._options.tools)
        ):
            yield from super()._member_value(envelope, key, first, stops)
            return
        envelope.name, envelope.has_arguments = name, True
        self._start(envelope)
        envelope.member.clear()
        yield from self._stream_arguments(first, stops)
