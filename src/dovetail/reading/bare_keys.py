"""`BareKeyReader`: calls whose arguments have bare keys, and markers in place of quotes, as Gemma writes them.

    <|tool_call>call:search{query:<|"|>words<|"|>,limit:3,exact:true,tags:[<|"|>a<|"|>]}<tool_call|>

The arguments are passed on as JSON while they come. Strings stream, and have no escapes.
"""

from __future__ import annotations

import re
from json.encoder import encode_basestring as quote
from typing import ClassVar, Literal, TypeAlias

import msgspec

from dovetail.reading.calls import LONGEST_HEADER, CallReader
from dovetail.reading.json_text import WHITESPACE, is_json
from dovetail.reading.parameters import from_python
from dovetail.reading.reader import FARTHEST, ReaderOptions, Script
from dovetail.reading.values import ANY, STRING, ParameterTypes
from dovetail.tokens import Tokenizer

#: The most brackets inside one another. JSON parsers do not read deeper ones either.
_DEEPEST = 256
_BRACKETS = {"{": "}", "[": "]"}
_BREAKS = (",", '"', *_BRACKETS, *_BRACKETS.values())
_GAP = f"[{WHITESPACE}]{{0,16}}"
_WORD = r"[\w.-]{1,128}"
#: The beginning of an object up to its first key, or to its end.
_FIRST_KEY = re.compile(rf"{_GAP}\{{{_GAP}(?:({_WORD}){_GAP}:|\}})")
_MAY_BE_FIRST_KEY = re.compile(rf"{_GAP}(?:\{{{_GAP}(?:{_WORD}{_GAP})?)?")
#: How arguments ended: with their bracket; at a marker of the section or the end of the output; or with something that
#: cannot be read.
_Outcome: TypeAlias = Literal["ended", "open", "broken"]


class _Level(msgspec.Struct):
    """An open bracket."""

    end: str
    #: Whether an item may come: the bracket or a comma came last.
    ready: bool = True
    empty: bool = True


class BareKeyReader(CallReader):
    #: What ends a section, what comes before a call's name, and what is around a string.
    section_end: ClassVar[str]
    before_name: ClassVar[str]
    string: ClassVar[str]
    string_end: ClassVar[str]

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._levels: list[_Level] = []
        self._keys: set[str] = set()
        #: Whether a bracket around all arguments is open.
        self._unwrapping = False
        self._outside = (self.section, self.section_end, *self.ends)
        super().__init__(options, tokenizer)
        self._closing = self.in_alphabet(self.string_end)

    def _section(self, opener: str) -> Script[None]:
        while True:
            yield from self._call()
            if not (yield from self._another_section(self.section)):
                return

    def _call(self) -> Script[None]:
        header, marker = yield from self._read_up_to(LONGEST_HEADER, "{", *self.controls)
        if not marker:
            self._abandon(header, "truncated_call" if marker is None else "endless_header")
            return
        name = header.strip().removeprefix(self.before_name).strip()
        known = self._tool(name) in self._options.tools
        if not known and (marker != "{" or not name or any(map(str.isspace, name))):
            self._unread()
            self._abandon(header, "unreadable_call" if name else "missing_name")
            yield from self._end_of_section()
            return
        if not header.strip().startswith(self.before_name):
            self._defect("missing_prefix", name)
        name = self._open_call(name)
        if marker != "{":
            self._unread()
            self._defect("missing_arguments", self._id)
            self._write("{}")
        elif not (yield from self._arguments_of(name)):
            return
        if not (yield from self._end_of_section()):
            self._defect("missing_call_end", self._id)
        self._end_call()

    def _end_of_section(self) -> Script[bool]:
        """Read up to the end of the section; whether it came."""
        marker = yield from self._between(*self._outside, self.think, self.think_end)
        if marker not in (None, self.section_end):
            self._unread()
        return marker == self.section_end

    # -- arguments ----------------------------------------------------------------------------------------------------

    def _arguments_of(self, name: str) -> Script[bool]:
        """Pass on the arguments of the open call, after their bracket; whether they are an object."""
        types = self._types_of(name)
        self._keys = set()
        self._levels = [_Level("}")]
        self._unwrapping = False
        self._write("{")
        outcome = yield from self._items(types)
        if outcome == "ended":
            return True
        if not (yield from self._peek()):
            self._truncated_call()
            return False
        if outcome == "open":
            self._defect("missing_bracket", self._id)
            self._write("".join(level.end for level in reversed(self._levels)))
            return True
        self._defect("invalid_arguments", self._id)
        marker = yield from self._value(self._write, *self._outside)
        if marker not in (None, self.section_end):
            self._unread()
        return False

    def _items(self, types: ParameterTypes) -> Script[_Outcome]:
        while self._levels:
            level = self._levels[-1]
            yield from self._skip(WHITESPACE)
            if self._unwrapping and len(self._levels) == 1 and (yield from self._next_is("}")):
                self._unwrapping = False
            elif (yield from self._next_is(level.end)):
                if level.ready and not level.empty:
                    self._defect("stray_separator", ",")
                self._levels.pop()
                self._write(level.end)
            elif not level.ready and (yield from self._next_is(",")):
                level.ready = True
            else:
                following = yield from self._peek()
                if following in ("", *self._outside):
                    return "open"
                if following in _BRACKETS.values() or not (yield from self._item(level, types)):
                    return "broken"
        return "ended"

    def _item(self, level: _Level, types: ParameterTypes) -> Script[bool]:
        """Read an item of an array, or a member of an object."""
        if not level.ready:
            self._defect("missing_comma", self._id)
        first = level.empty
        self._write("" if first else ", ")
        level.ready = level.empty = False
        allowed = ANY
        if level.end == "}":
            key = yield from self._key()
            if key is None:
                return False
            if first and len(self._levels) == 1 and (yield from self._is_wrapper(key, types)):
                self._defect("wrapped_arguments", key)
                level.ready = level.empty = True
                return True
            if len(self._levels) == 1:
                if key in self._keys:
                    self._defect("duplicate_parameter", key)
                self._keys.add(key)
                allowed = types[key]
            self._write(f"{quote(key)}: ")
            yield from self._skip(WHITESPACE)
        return (yield from self._any_value(allowed))

    def _is_wrapper(self, key: str, types: ParameterTypes) -> Script[bool]:
        """Read the bracket after `key` if all arguments are inside of it, and the tool has no such parameter."""
        if self._unwrapping or not types.is_wrapper(key):
            return False
        match = yield from self._look(_FIRST_KEY, _MAY_BE_FIRST_KEY)
        if match is None or not (match[1] is None or types.declares(match[1])):
            return False
        yield from self._skip(WHITESPACE)
        yield from self._skip("{", 1)
        self._unwrapping = True
        return True

    def _key(self) -> Script[str | None]:
        """Read a key and its colon; None if none comes. Then what came is written."""
        opener = yield from self._next_is(self.string, '"')
        if opener is None:
            key, stop = yield from self._read_up_to(LONGEST_HEADER, ":", *_BREAKS, *self.controls)
            if stop == ":" and key.strip():
                return key.strip()
        else:
            self._defect("attribute_quotes", opener)
            end = self.string_end if opener == self.string else opener
            key, stop = yield from self._read_up_to(LONGEST_HEADER, end, *self.controls)
            if stop == end:
                yield from self._skip(WHITESPACE)
                if (yield from self._next_is(":")):
                    return key
                self._write(key)
                return None
        self._unread()
        self._write(key)
        return None

    def _any_value(self, types: frozenset[str]) -> Script[bool]:
        if (yield from self._next_is(self.string)):
            yield from self._string(types)
            return True
        if (yield from self._next_is('"')):
            return (yield from self._quoted())
        if (bracket := (yield from self._next_is(*_BRACKETS))) is not None:
            self._write(bracket)
            self._levels.append(_Level(_BRACKETS[bracket]))
            return len(self._levels) <= _DEEPEST
        text, stop = yield from self._read_up_to(LONGEST_HEADER, *_BREAKS, *self.controls)
        self._unread()
        is_value = bool(text.strip()) and stop in (",", "}", "]", *self._outside)
        self._write(self._scalar(text.strip(), types) if is_value else text)
        return is_value

    def _scalar(self, text: str, types: frozenset[str]) -> str:
        if types != STRING:
            if is_json(text):
                return text
            if is_json(python := from_python(text)):
                self._defect("python_value", text)
                return python
        self._defect("unquoted_value", text)
        return quote(text)

    def _string(self, types: frozenset[str]) -> Script[None]:
        """Read a string after its opening marker."""
        stops = (self.string_end, *self._outside)
        if "string" in types:
            self._write('"')
            marker = yield from self._value(lambda text: self._write(quote(text)[1:-1]), *stops, weigh=self._weigh)
            self._write('"' if marker is not None else "")
        else:
            pieces: list[str] = []
            marker = yield from self._value(pieces.append, *stops, weigh=self._weigh)
            self._write(self._from_string("".join(pieces)))
        if marker not in (None, self.string_end):
            self._defect("missing_parameter_end", self._id)
            self._unread()

    def _weigh(self, text: str, at: int) -> int | None:
        """Whether a marker in a string, which ends at `at`, only spells one: see `reading.reader.Weigh`.

        It does if the string's own end comes later, with a comma or a bracket after it.
        """
        if text.startswith(self._closing, self._at):
            return -1
        limit = at + FARTHEST
        end = text.find(self._closing, at, limit)
        if end < 0:
            return None if len(text) < limit else FARTHEST - len(self._closing)
        following = text[end + len(self._closing) : limit].lstrip(WHITESPACE)[:1]
        if not following:
            return None if len(text) < limit else end - at
        return end - at if following in ",}]" else -1

    def _from_string(self, text: str) -> str:
        """The value of a string that should be of another type."""
        for value in (text.strip(), from_python(text.strip())):
            if is_json(value):
                self._defect("mistyped_value", text)
                return value
        self._defect("invalid_value", text)
        return quote(text)

    def _quoted(self) -> Script[bool]:
        """Read a string in JSON's quotes, after the first one."""
        pieces = ['"']
        escapes = ("\\\\", '\\"')
        while (mark := (yield from self._value(pieces.append, '"', *escapes, *self._outside))) in escapes:
            pieces.append(mark)
        if mark != '"':
            self._unread()
            self._write("".join(pieces))
            return False
        self._defect("attribute_quotes", '"')
        text = "".join(pieces) + '"'
        self._write(text if is_json(text) else quote(text[1:-1]))
        return True

    def _write(self, text: str) -> None:
        if text:
            if self._options.repair_arguments:
                self._arguments.feed(text)
            self._emit_fragment(text)
