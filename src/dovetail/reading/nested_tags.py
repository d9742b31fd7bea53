"""`NestedTagReader`: calls whose parameters are tags named after their keys, one inside the other: MiniMax-M3.

    #<tool_call>
    #<invoke name="search">#<query>words#</query>#<tags>#<item>a#</item>#<item>b#</item>#</tags>#</invoke>
    #</tool_call>

Each `#` is a control token, `]<]minimax[>[`, so that no text ends a value. An object has a tag for each member, and an
array one for each item. The schema says what type a value without tags in it has. Where it allows an array, the values
of a tag that is repeated are a list.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from json.encoder import encode_basestring as quote
from typing import Any, ClassVar

import msgspec

from dovetail.events import Content
from dovetail.reading.alphabet import any_control
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.parameters import Parameters
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.reader import FARTHEST, ReaderOptions, Script
from dovetail.reading.two_languages import JsonInTags
from dovetail.reading.values import STRING, ParameterTypes
from dovetail.tokens import Tokenizer

#: The most tags inside one another. JSON parsers do not read deeper objects either.
_DEEPEST = 256
NAME = re.compile(r"""<(\w+)(?:\s+name)?\s*=\s*("[^"]*"|'[^']*'|[^\s"'<>]+)\s*>""")
#: A tag with attributes.
_ATTRIBUTES = re.compile(r"""<([^\s<>="']+)\s[^<>]*=[^<>]*>""")
#: A closing tag in any spelling, and the name in a call's tag without an attribute for it.
_CLOSING = re.compile(r"<\s*/+\s*(\w+)[^<>]*>")
_OTHER_ATTRIBUTES = r"""(?:\s+[\w-]+\s*[=:]\s*["']?[^\s"'<>=]*["']?)*"""
_NAMED = re.compile(rf"""<\w+{_OTHER_ATTRIBUTES}\s+name\s*[=:]\s*["']?\s*([^\s"'<>=]+)["']?{_OTHER_ATTRIBUTES}\s*/?>""")
_UNNAMED = re.compile(r"""<\w+\s*[=:]?\s*["']?([^\s"'<>=:]+)["']?\s*>""")
ATTRIBUTE = 'name="'
_EMPTY = (("object", "{}"), ("array", "[]"), ("null", "null"))
_SCALARS = frozenset(("string", "number", "integer", "boolean"))


def _is_item(text: str) -> bool:
    """Whether `text`, where an array belongs, is an item of it, and not the JSON of it or of null."""
    return not text.lstrip(WHITESPACE + "\"'").startswith(("[", "null", "None")) and not text.isspace()


class _Level(msgspec.Struct):
    """An open tag with tags in it."""

    end: str
    is_array: bool
    types: ParameterTypes
    empty: bool = True
    #: Whether the tag is around all arguments, where it does not belong.
    wraps: bool = False
    #: The tag of the last member, if one more like it is another item of a list; whether that list has begun; and where
    #: its bracket belongs among the fragments that are withheld until then.
    last: str = ""
    listed: bool = False
    bracket: int | None = None


class _Member(msgspec.Struct):
    """A tag inside another one, whose value is to be read."""

    level: _Level
    tag: str
    key: str
    #: The closing tags that end it.
    ends: tuple[str, ...]
    types: frozenset[str]
    #: The types of its own members and items.
    inside: ParameterTypes
    may_repeat: bool


class NestedTagReader(JsonInTags):
    #: What is in front of each tag.
    mark: ClassVar[str]
    #: The end of a section, the opening tag of a call up to its name and its end, and the name of an item's tag.
    section_end: str
    call: ClassVar[str]
    call_end: ClassVar[str]
    item: ClassVar[str]
    #: What opens a section if its tag lacks the first bracket.
    unbracketed: ClassVar[str]
    #: Other spellings of what opens a section, and of what ends it.
    other_sections_begin: ClassVar[tuple[str, ...]] = ()
    other_sections_end: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._levels: list[_Level] = []
        self._keys: set[str] = set()
        self._last_end = ""  # of the tag that was closed last
        self._marked = False  # whether a mark is in front of it
        self._beside = ""  # what stands in front of the next tag, where only tags belong
        self._begun = ""  # the bracket that opens the arguments, until the first of them comes
        self._withheld: list[str] = []  # fragments, until it is known whether a tag is repeated
        self._withheld_length = 0
        self._value_writer = Parameters(ParameterTypes(None), self._write, self._defect)
        super().__init__(options, tokenizer)
        self._mark_in_input = self.in_alphabet(self.mark)

    def _section(self, opener: str) -> Script[None]:
        before = self._index
        tag: str | None = None
        in_section = opener in (self.section, self.unbracketed, *self.other_sections_begin)
        if opener in self.other_sections_begin:
            self._defect("misspelled_marker", opener)
        elif not in_section:
            self._defect("missing_section")
            self._unread()
        elif opener == self.unbracketed:
            self._defect("unclosed_tag", opener)
        if in_section and (yield from self._json_section()):
            return
        while True:
            if tag is None:
                tag = yield from self._next_tag()
            if tag is None:
                self._defect("missing_section_end")
                return
            if tag.startswith(self.call):
                tag = yield from self._call(tag)
                if not in_section and tag is None:
                    return
                continue
            if tag == self.section_end:
                if self._index == before:
                    self._defect("empty_section")
                if not (yield from self._another_section(self.section)):
                    return
                before, in_section = self._index, True
            elif tag == self.call_end:
                self._stray_marker(tag)
            elif self.mark + tag == self.section and self._index == before:
                self._stray_marker(self.section)
            elif self.mark + tag == self.section:
                self._defect("missing_section_end")
                before = self._index
            else:
                self._misplaced(tag)
            tag = None

    def _next_tag(self) -> Script[str | None]:
        """Read the next tag between calls; None if none comes."""
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
            self._misplaced(self._taken_text())

    def _next_in_call(self) -> Script[str | None]:
        """The same inside a call, where text in front of the tag is kept as `_beside`."""
        while True:
            limit = max(0, FARTHEST - len(self._beside))
            text, marker = yield from self._read_up_to(limit, self.mark, self.think, self.think_end, *self.ends)
            self._beside += text
            if marker == self.mark:
                tag = yield from self._tag()
                if tag is not None:
                    return tag
                continue
            if marker == "" and self._marked and (key := self._only_key()):
                tag = yield from self._unopened_value(key)
                if tag is not None:
                    return tag
                continue
            self._misplaced(self._taken_text())
            if marker != "":
                if marker is not None:
                    self._unread()
                return None

    def _tag(self) -> Script[str | None]:
        """Read a tag after its mark; None for other text, which is added to `_beside`."""
        text, stop = yield from self._read_up_to(LONGEST_HEADER, ">", *self.controls)
        if stop == ">":
            text += ">"
            if text.startswith("<"):
                return self._meant_tag(text)
            if self._is_tag("<" + text):
                self._defect("unclosed_tag", text)
                return "<" + text
        elif stop:
            self._unread()
        elif stop is None and self._cut_off and self._begins_tag(text):
            # No part of it is content.
            self._defect("unclosed_tag" if self._levels else "truncated_call", text)
            return None
        self._defect("unclosed_tag", text)
        if stop != "" and text.startswith("<") and "<" not in text[1:]:
            tag = self._meant_tag(text.strip() + ">", report=False)
            if self._is_tag(tag) and (tag.startswith("</") or (stop and self._names_tool(tag))):
                return tag
        self._marked = not self._beside.strip()
        self._beside += text
        return None

    def _meant_tag(self, tag: str, *, report: bool = True) -> str:
        """The tag that `tag` is a spelling of; `tag` itself if it is one that may come, or is unlike any.

        `report`: whether that is a Defect.
        """
        meant = tag
        word = self.call[1:].strip()
        if (closing := _CLOSING.fullmatch(tag)) is not None:
            if not self._is_tag(tag):
                meant = self._meant_end(closing[1]) or tag
        elif tag[1 : len(word) + 1].casefold() == word and not tag[len(word) + 1 : len(word) + 2].isalnum():
            if tag == f"<{word}>" and self._levels and not self._levels[-1].types.has_member(word):
                meant = self.call_end
            elif NAME.fullmatch(tag) is None or not tag.startswith(self.call):
                named = _NAMED.fullmatch(tag) or _UNNAMED.fullmatch(tag)
                if named is not None and self._tool(named[1]) in self._options.tools:
                    meant = f'{self.call}name="{named[1]}">'
        if meant != tag and report:
            self._defect("misspelled_marker", tag)
        return meant

    def _names_tool(self, tag: str) -> bool:
        match = NAME.fullmatch(tag)
        return match is not None and self._tool(match[2].strip("\"'").strip()) in self._options.tools

    def _meant_end(self, word: str) -> str | None:
        """The closing tag whose name is `word`, but for its case or its last letters; None if no such tag may come."""
        ends = [*(level.end for level in reversed(self._levels)), self._last_end, self.call_end, self.section_end]
        if any(f"</{word}>" == end for end in self.other_sections_end):
            return self.section_end
        if f"</{word}>" in ends:
            return f"</{word}>"
        if any(level.types.has_member(word) for level in self._levels):
            return None
        plain = word.casefold()
        stems = (plain, plain.rstrip("0123456789"), plain.removesuffix("s"), plain.partition("_")[0])
        return next((end for end in ends if end[2:-1].casefold() in stems), None)

    def _begins_tag(self, text: str) -> bool:
        """Whether `text` is the beginning of a tag that may come next."""
        if text.startswith(self.call):
            attribute = text.removeprefix(self.call)
            return ATTRIBUTE.startswith(attribute) or self._begins_call(attribute)
        tags = [self.call, self.section_end, self.call_end, self._last_end, *(level.end for level in self._levels)]
        if self._levels:
            tags += (f"<{key}>" for key in self._levels[0].types.own_keys())
        return any(tag.startswith(text) for tag in tags)

    def _is_tag(self, tag: str) -> bool:
        """Whether `tag`, whose first bracket is missing, can be no text."""
        if tag.startswith(self.call):
            return NAME.fullmatch(tag) is not None
        ends = (self.section_end, self.call_end, self._last_end, *(level.end for level in self._levels))
        if tag in ends or self.mark + tag == self.section:
            return True
        return bool(self._levels) and self._levels[-1].types.has_member(tag[1:-1])

    def _taken_text(self) -> str:
        text, self._beside, self._marked = self._beside, "", False
        return text

    # -- one call -----------------------------------------------------------------------------------------------------

    def _call(self, tag: str) -> Script[str | None]:
        """Read a call after its tag. Returns the tag that ended it in place of its own end."""
        match = NAME.fullmatch(tag)
        name = "" if match is None else match[2].strip("\"'").strip()
        if not name:
            self._defect("missing_name", tag)
            self._misplaced(tag)
            return None
        if match is not None and match[2][0] != '"':
            self._defect("attribute_quotes", tag)
        self._begin_call(name)
        tag_left: str | None = None
        while self._levels:
            tag_left = tag_left or (yield from self._next_in_call())
            if tag_left == "":
                return None
            if tag_left is None:
                complete = len(self._levels) == 1 and self._has_required()
                if (self._cut_off and not complete) or (self._begun and (yield from self._turn_ends())):
                    self._cut_off_call()
                    return None
                self._defect("truncated_call" if self._cut_off else "missing_call_end", self._id)
                self._close(0)
                break
            tag_left = yield from self._in_level(self._levels[-1], tag_left)
            if tag_left == "":
                return None
        self._end_call()
        return tag_left

    def _begin_call(self, name: str) -> None:
        name = self._open_call(name)
        self._keys = set()
        self._levels = [_Level(self.call_end, False, self._types_of(name))]
        self._last_end = ""
        self._begun = "{"

    def _has_required(self) -> bool:
        """Whether the tool requires parameters, and the call has all of these."""
        required = self._levels[0].types.required
        return bool(required) and required <= self._keys

    def _turn_ends(self) -> Script[bool]:
        """Whether the turn ends here. After the call's tag alone, the call is as good as cut off."""
        if (yield from self._peek()) not in ("", *self.ends):
            return False
        if self._trial is not None and self._trial.kind is Content and self._trial.known:
            self._certain()
        return True

    def _cut_off_call(self) -> None:
        self._show_withheld()
        self._levels = []
        self._truncated_call()

    def _in_level(self, level: _Level, tag: str) -> Script[str | None]:
        """Take a tag inside of another. Returns a tag that comes next; "" if the call was cut off."""
        # A mention of a call may be followed by the mention of an end, but not by a mark and text.
        certain = self._marked or self._trial is None or (yield from self._peek()) == self.mark
        text = self._taken_text()
        if text.strip() and certain and tag.startswith("</") and self._lacks_opener(level, tag):
            self._unopened_member(level, tag, text)
            return None
        self._misplaced(text)
        if tag.startswith("</") or (tag.startswith(self.call) and NAME.fullmatch(tag)):
            return self._take_end(tag)
        key, end = tag[1:-1].strip(), ""
        if match := NAME.fullmatch(tag):  # `<parameter name="key">`
            self._defect("foreign_markup", tag)
            key, end = match[2].strip("\"'").strip(), f"</{match[1]}>"
        elif match := _ATTRIBUTES.fullmatch(tag):
            self._defect("extra_attributes", tag)
            key = match[1]
        if not key or (level.is_array and key != self.item) or len(self._levels) > _DEEPEST:
            self._misplaced(tag)
            return None
        return (yield from self._tagged_member(level, tag, key, end or f"</{key}>"))

    def _lacks_opener(self, level: _Level, tag: str) -> bool:
        """Whether `tag`, a closing tag with text in front, closes a member or an item that was not opened."""
        if tag == self._last_end or any(tag == other.end for other in self._levels):
            return False
        return tag == f"</{self.item}>" if level.is_array else level.types.has_member(tag[2:-1])

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

    def _open_level(self, member: _Member, first: str | None) -> None:
        """Open the value of `member`, which has tags in it. `first`: the first of them, if it is known."""
        is_array = self._is_array(member.types, first)
        self._write("[" if is_array else "{")
        self._levels.append(_Level(member.ends[0], is_array, member.inside))

    def _close(self, at: int) -> None:
        """Close the levels from `at` on."""
        while len(self._levels) > at:
            level = self._levels[-1]
            self._is_repeated(level, "")
            self._levels.pop()
            self._last_end = level.end
            self._write("" if level.wraps else "]" if level.is_array else "}")

    # -- one value ----------------------------------------------------------------------------------------------------

    def _head(self, level: _Level, key: str) -> str:
        """The JSON in front of the value of a member or an item."""
        head = "" if level.empty else ", "
        level.empty = False
        if level.is_array:
            return head
        if len(self._levels) == 1:
            if key in self._keys:
                self._defect("duplicate_parameter", key)
            self._keys.add(key)
        return f"{head}{quote(key)}: "

    def _unopened_member(self, level: _Level, tag: str, text: str) -> None:
        """Write a member or an item whose opening tag is missing."""
        key = tag[2:-1]
        self._is_repeated(level, "")
        self._defect("missing_key_start", key)
        self._last_end = tag
        types = level.types.of_items() if level.is_array else level.types[key]
        self._value_writer.begin(self._head(level, key), key, types)(text)
        self._value_writer.close()

    def _only_key(self) -> str:
        """The only parameter that the open call lacks and that may be a string; "" if there are several, or none."""
        if len(self._levels) > 1:
            return ""
        types = self._levels[0].types
        keys = [key for key in types.own_keys() if key not in self._keys and "string" in types[key]]
        return keys[0] if len(keys) == 1 else ""

    def _unopened_value(self, key: str) -> Script[str | None]:
        """Read the rest of a long value whose opening tag is missing. Returns as `_in_level` does."""
        level = self._levels[0]
        self._is_repeated(level, "")
        self._defect("missing_key_start", key)
        self._last_end = end = f"</{key}>"
        self._write(self._head(level, key))
        member = _Member(level, f"<{key}>", key, (end,), level.types[key], level.types.inside(key), False)
        return (yield from self._text_value(member, self._taken_text()))

    def _tagged_member(self, level: _Level, tag: str, key: str, end: str) -> Script[str | None]:
        """Read a member or an item after its tag. Returns as `_in_level` does."""
        wraps = len(self._levels) == 1 and level.empty and level.types.is_wrapper(key)
        inside = level.types.inside(None if level.is_array else key)
        if self._is_repeated(level, tag):
            head, types, inside = ", ", inside.of_items(), inside.inside(None)
        else:
            head = self._head(level, key)
            types = level.types.of_items() if level.is_array else level.types[key]
        may_repeat = "array" in types and not (level.is_array or level.listed or wraps)
        member = _Member(level, tag, key, (end, f"</{key}>"), types, inside, may_repeat)
        self._last_end = end
        space = (yield from self._skip(WHITESPACE, MOST_SPACE)) if types != STRING else ""
        if (yield from self._next_is(self.mark)):
            first = yield from self._tag()
            if wraps and first is not None and not first.startswith("</"):
                self._defect("wrapped_arguments", key)
                self._levels.append(_Level(end, False, level.types, wraps=True))
                return first
            self._write(head)
            if first is None and types & _SCALARS:  # a mark too many
                return (yield from self._text_value(member, self._taken_text()))
            if first is not None and not self._begins_inside(member, first, after_text=False):
                self._write(self._empty(types, key))
                return self._after_value(member, first)
            if may_repeat and first not in (None, f"<{self.item}>"):
                self._may_repeat(member)
            self._open_level(member, first)
            return first
        self._write(head)
        if member.types & _SCALARS:
            if may_repeat:
                self._may_repeat(member)
            return (yield from self._text_value(member, space))
        return (yield from self._text_of_container(member, space))

    def _text_value(self, member: _Member, begun: str) -> Script[str | None]:
        """Read a value without tags in it, of which `begun` was read before. Returns as `_in_level` does."""
        write = self._value_writer.begin("", member.key, member.types)
        if begun:
            write(begun)
        while (marker := (yield from self._up_to_tag(member, write))) is not None:
            tag = yield from self._after_text(marker)
            if self._beside:
                write(self.mark + self._taken_text())  # a mark without a tag is text
            elif tag is not None and tag.startswith("</") and (yield from self._goes_on(member.ends[0])):
                write(self.mark + tag)
            else:
                self._value_writer.close()
                return self._after_value(member, tag)
        self._value_writer.cut()
        self._cut_off_call()
        return ""

    def _goes_on(self, end: str) -> Script[bool]:
        """Whether a value goes on after a closing tag: text follows, and its own closing tag, `end`, comes after it.

        It does not come again for this value if the value's opening tag comes before.
        """
        again, opening = self._mark_in_input + end, self._mark_in_input + end.replace("/", "", 1)
        while True:
            following = self._input[self._at : self._at + FARTHEST]
            text = following.lstrip(WHITESPACE)
            if any_control.match(text):
                return False
            if (at := following.find(again)) >= 0:
                return opening not in following[:at]
            if len(following) == FARTHEST or self._over:
                return False
            yield

    def _text_of_container(self, member: _Member, begun: str) -> Script[str | None]:
        """Read the value of an object or an array where text comes first: its JSON, or text beside the tags in it."""
        pieces = [begun]
        marker = yield from self._up_to_tag(member, pieces.append)
        tag = None if marker is None else (yield from self._after_text(marker))
        text = "".join(pieces)
        if tag is not None and not text.lstrip().startswith(("{", "[")) and self._begins_inside(member, tag):
            self._open_level(member, tag)
            self._beside = text + self._beside
            return tag
        if marker is not None and member.may_repeat and _is_item(text):
            self._may_repeat(member)
        self._value_writer.begin("", member.key, member.types)(text)
        if marker is None:
            self._value_writer.cut()
            self._cut_off_call()
            return ""
        self._value_writer.close()
        return self._after_value(member, tag)

    def _up_to_tag(self, member: _Member, write: Callable[[str], Any]) -> Script[str | None]:
        weigh = functools.partial(self._weigh, member.ends[0])
        return (yield from self._value(write, self.mark, *self.ends, weigh=weigh))

    def _after_text(self, marker: str) -> Script[str | None]:
        """The tag that `marker` begins. Another marker is put back."""
        if marker == self.mark:
            return (yield from self._tag())
        self._unread()
        return None

    def _after_value(self, member: _Member, tag: str | None) -> str | None:
        """Take the tag after a value. Returns it if it is not the value's own end."""
        if tag in member.ends:
            return None
        self._defect("missing_parameter_end", member.key)
        return tag

    def _begins_inside(self, member: _Member, tag: str, *, after_text: bool = True) -> bool:
        """Whether `tag` stands in a value, and not after it. `after_text`: whether it comes after text."""
        if tag in member.ends or member.types == STRING:
            return False
        if not after_text and not tag.startswith("</"):
            return True
        key = tag.strip("</>")
        if self._is_array(member.types, tag):
            return key == self.item
        if tag.startswith("</"):
            return member.inside.has_member(key) and not any(tag == level.end for level in self._levels)
        return member.inside.has_member(key) or not member.level.types.has_member(key)

    # -- repeated tags ------------------------------------------------------------------------------------------------

    def _may_repeat(self, member: _Member) -> None:
        """If the tag of `member` comes again, its value, which comes now, is the first one of a list."""
        level = member.level
        level.last = member.tag
        if member.types & (_SCALARS | {"object"}):
            level.bracket = len(self._withheld)
            self._withheld.append("")
            return
        self._defect("unlisted_items", member.key)
        level.listed = True
        self._write("[")
        member.types, member.inside = member.inside.of_items(), member.inside.inside(None)

    def _is_repeated(self, level: _Level, tag: str) -> bool:
        """Whether `tag` is the last one of `level` again, so that its value belongs to a list, which ends otherwise."""
        again = tag == level.last != ""
        if level.bracket is not None:
            if again:
                self._defect("unlisted_items", tag)
                self._withheld[level.bracket] = "["
                level.listed = True
            level.bracket = None
            if all(other.bracket is None for other in self._levels):
                self._show_withheld()
        elif level.listed and not again:
            self._write("]")
            level.listed = False
        if not again:
            level.last = ""
        return again and level.listed

    def _show_withheld(self) -> None:
        fragment = "".join(self._withheld)
        self._withheld, self._withheld_length = [], 0
        for level in self._levels:
            level.bracket = None
        self._write(fragment)

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
        if not text:
            return
        text, self._begun = self._begun + text, ""
        if self._withheld:
            self._withheld.append(text)
            self._withheld_length += len(text)
            if self._withheld_length > FARTHEST:
                self._show_withheld()
            return
        if self._options.repair_arguments:
            self._arguments.feed(text)
        self._emit_fragment(text)
