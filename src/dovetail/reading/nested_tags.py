"""`NestedTagReader`: calls whose parameters are tags named after their keys, one inside the other: MiniMax-M3.

    #<tool_call>
    #<invoke name="search">#<query>words#</query>#<tags>#<item>a#</item>#<item>b#</item>#</tags>#</invoke>
    #</tool_call>

Each `#` is a control token, `]<]minimax[>[`, so that no text ends a value. An object has a tag for each member, and an
array one for each item. The schema says what type a value without tags in it has.
"""

from __future__ import annotations

import functools
import re
from json.encoder import encode_basestring as quote
from typing import ClassVar

import msgspec

from dovetail.reading.calls import LONGEST_HEADER, CallReader
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.parameters import Parameters
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.reader import FARTHEST, ReaderOptions, Script
from dovetail.reading.values import STRING, ParameterTypes
from dovetail.tokens import Tokenizer

#: The most tags inside one another. JSON parsers do not read deeper objects either.
_DEEPEST = 256
_NAME = re.compile(r"""<(\w+)\s+name\s*=\s*("[^"]*"|'[^']*'|[^\s"'<>]+)\s*>""")
_EMPTY = (("object", "{}"), ("array", "[]"), ("null", "null"))


class _Level(msgspec.Struct):
    """An open tag with tags in it."""

    end: str
    is_array: bool
    types: ParameterTypes
    empty: bool = True
    #: Whether the tag is around all arguments, where it does not belong.
    wraps: bool = False


class NestedTagReader(CallReader):
    #: What is in front of each tag.
    mark: ClassVar[str]
    #: The end of a section, the opening tag of a call up to its name and its end, and the name of an item's tag.
    section_end: ClassVar[str]
    call: ClassVar[str]
    call_end: ClassVar[str]
    item: ClassVar[str]

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._levels: list[_Level] = []
        self._keys: set[str] = set()
        self._last_end = ""  # of the tag that was closed last
        self._types: dict[str, ParameterTypes] = {}  # by tool, filled when it is called
        self._value_writer = Parameters(ParameterTypes(None), self._write, self._defect)
        super().__init__(options, tokenizer)
        self._mark_in_input = self.in_alphabet(self.mark)

    def _section(self, opener: str) -> Script[None]:
        before = self._index
        tag: str | None = None
        if opener != self.section:
            self._defect("missing_section")
            self._unread()
        while True:
            if tag is None:
                tag = yield from self._next_tag()
            if tag is None:
                if opener == self.section:
                    self._defect("missing_section_end")
                return
            if tag.startswith(self.call):
                tag = yield from self._call(tag)
                if opener != self.section and tag is None:
                    return
                continue
            if tag == self.section_end:
                if self._index == before:
                    self._defect("empty_section")
                if not (yield from self._another_section(self.section)):
                    return
                before = self._index
            elif tag == self.call_end:
                self._stray_marker(tag)
            elif self.mark + tag == self.section:
                self._defect("missing_section_end")
            else:
                self._misplaced(tag)
            tag = None

    def _next_tag(self) -> Script[str | None]:
        """Read the next tag where no text belongs; None if none comes."""
        while True:
            marker = yield from self._between(self.mark, self.think, self.think_end, *self.ends)
            if marker is None:
                return None
            if marker != self.mark:
                self._unread()
                return None
            tag = yield from self._tag()
            if tag is not None:
                return tag

    def _tag(self) -> Script[str | None]:
        """Read a tag after its mark; None for other text, which is content then."""
        text, stop = yield from self._read_up_to(LONGEST_HEADER, ">", *self.controls)
        if stop == ">" and text.startswith("<"):
            return f"{text}>"
        if stop == ">":
            text += ">"
        elif stop:
            self._unread()
        self._defect("unclosed_tag", text)
        self._misplaced(text)
        return None

    def _misplaced(self, text: str) -> None:
        self._stray = False
        self._stray_text(text)

    # -- one call -----------------------------------------------------------------------------------------------------

    def _call(self, tag: str) -> Script[str | None]:
        """Read a call after its tag. Returns the tag that ended it in place of its own end."""
        match = _NAME.fullmatch(tag)
        name = "" if match is None else match[2].strip("\"'").strip()
        if not name:
            self._defect("missing_name", tag)
            self._misplaced(tag)
            return None
        if match is not None and match[2][0] != '"':
            self._defect("attribute_quotes", tag)
        name = self._open_call(name)
        if name not in self._types:
            self._types[name] = ParameterTypes(self._options.tools.get(name))
        self._keys = set()
        self._levels = [_Level(self.call_end, False, self._types[name])]
        self._write("{")
        tag_left: str | None = None
        while self._levels:
            tag_left = tag_left or (yield from self._next_tag())
            if tag_left is None:
                if self._cut_off:
                    self._truncated_call()
                    return None
                self._defect("missing_call_end", self._id)
                self._close(0)
                break
            tag_left = yield from self._in_level(self._levels[-1], tag_left)
            if tag_left == "":
                return None
        self._end_call()
        return tag_left

    def _in_level(self, level: _Level, tag: str) -> Script[str | None]:
        """Take a tag inside of another. Returns a tag that comes next; "" if the call was cut off."""
        if tag.startswith("</"):
            return self._take_end(tag)
        if tag.startswith(self.call) and _NAME.fullmatch(tag):
            return self._take_end(tag)
        key = tag[1:-1].strip()
        if not key or (level.is_array and key != self.item) or len(self._levels) > _DEEPEST:
            self._misplaced(tag)
            return None
        return (yield from self._member(level, key))

    def _take_end(self, tag: str) -> str | None:
        """Take an end of this level or of one around it, or the tag that begins what comes after the call."""
        at = next((i for i in range(len(self._levels) - 1, -1, -1) if self._levels[i].end == tag), None)
        if at is None and tag == self._last_end:
            self._stray_marker(tag)
            return None
        if at is None and tag != self.section_end and not tag.startswith(self.call):
            self._misplaced(tag)
            return None
        if at is not None:
            if at < len(self._levels) - 1:
                self._defect("missing_parameter_end", self._id)
            self._close(at)
            return None
        self._defect("missing_call_end", self._id)
        self._close(0)
        return tag

    def _close(self, at: int) -> None:
        """Close the levels from `at` on."""
        while len(self._levels) > at:
            level = self._levels.pop()
            self._last_end = level.end
            self._write("" if level.wraps else "]" if level.is_array else "}")

    # -- one value ----------------------------------------------------------------------------------------------------

    def _member(self, level: _Level, key: str) -> Script[str | None]:
        """Read a member or an item after its tag. Returns as `_in_level` does."""
        wraps = len(self._levels) == 1 and level.empty and level.types.is_wrapper(key)
        head = "" if level.empty else ", "
        level.empty = False
        if not level.is_array:
            if len(self._levels) == 1 and key in self._keys:
                self._defect("duplicate_parameter", key)
            self._keys.update([key] if len(self._levels) == 1 else [])
            head += f"{quote(key)}: "
        types = level.types.of_items() if level.is_array else level.types[key]
        self._last_end = end = f"</{key}>"
        space = ""
        if types != STRING:
            space = yield from self._skip(WHITESPACE, MOST_SPACE)
            if (yield from self._next_is(self.mark)):
                tag = yield from self._tag()
                if wraps and tag is not None and not tag.startswith("</"):
                    self._defect("wrapped_arguments", key)
                    self._levels.append(_Level(end, False, level.types, wraps=True))
                    return tag
                if tag is None or not tag.startswith("</"):
                    is_array = self._is_array(types, tag)
                    self._write(head + ("[" if is_array else "{"))
                    inside = level.types.inside(None if level.is_array else key)
                    self._levels.append(_Level(end, is_array, inside))
                    return tag
                self._write(head + self._empty(types, key))
                if tag != end:
                    self._defect("missing_parameter_end", key)
                    return tag
                return None
        write = self._value_writer.begin(head, key, types)
        if space:
            write(space)
        marker = yield from self._value(write, self.mark, *self.ends, weigh=functools.partial(self._weigh, end))
        if marker is None:
            self._value_writer.cut()
            self._truncated_call()
            return ""
        self._value_writer.close()
        tag = (yield from self._tag()) if marker == self.mark else None
        if tag == end:
            return None
        self._defect("missing_parameter_end", key)
        if marker != self.mark:
            self._unread()
        return tag

    def _weigh(self, end: str, text: str, at: int) -> int | None:
        """Whether a marker in a value, which ends at `at`, only spells one: see `reading.reader.Weigh`.

        It does if the value's own end, `end`, is the next tag.
        """
        if text.startswith(self._mark_in_input, self._at):
            return -1
        limit = at + FARTHEST
        tag = text.find(self._mark_in_input, at, limit)
        if tag < 0:
            return None if len(text) < limit else FARTHEST
        begin = tag + len(self._mark_in_input)
        if len(text) < begin + len(end) and end.startswith(text[begin:]):
            return None
        return tag - at if text.startswith(end, begin) else -1

    def _empty(self, types: frozenset[str], key: str) -> str:
        """The value of a tag with nothing in it."""
        if "string" not in types:
            for kind, empty in _EMPTY:
                if kind in types:
                    return empty
            self._defect("missing_value", key)
        return '""'

    def _is_array(self, types: frozenset[str], tag: str | None) -> bool:
        if ("array" in types) != ("object" in types):
            return "array" in types
        return tag == f"<{self.item}>"

    def _write(self, text: str) -> None:
        if text:
            if self._options.repair_arguments:
                self._arguments.feed(text)
            self._emit_fragment(text)
