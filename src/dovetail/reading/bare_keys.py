"""`BareKeyReader`: calls whose arguments have bare keys, and markers in place of quotes, as Gemma writes them.

    <|tool_call>call:search{query:<|"|>words<|"|>,limit:3,exact:true,tags:[<|"|>a<|"|>]}<tool_call|>

The arguments are passed on as JSON while they come. Strings stream, and have no escapes.

A string in other quotes, or without one of its markers, ends where the next argument or the end of the call follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring as quote
from typing import ClassVar, Literal, TypeAlias

import msgspec

from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_text import WHITESPACE, closing, is_json
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.python_text import from_python
from dovetail.reading.reader import FARTHEST, MALFORMED, Abandoned, ReaderOptions, Script, Weigh
from dovetail.reading.two_languages import JsonAfterNames
from dovetail.reading.values import ANY, STRING, ParameterTypes
from dovetail.tokens import Tokenizer

#: The most brackets inside one another. JSON parsers do not read deeper ones either.
_DEEPEST = 256
_BRACKETS = {"{": "}", "[": "]"}
#: The same, and one that the family does not have.
_OPENING = _BRACKETS | {"(": ")"}
_QUOTES = ('"', "'")
_CLOSERS = (*_BRACKETS.values(), ")")
_BREAKS = (",", *_QUOTES, *_BRACKETS, *_BRACKETS.values())
_GAP = f"[{WHITESPACE}]{{0,16}}"
_WORD = r"[\w.-]{1,128}"
#: The beginning of an object up to its first key, or to its end.
_FIRST_KEY = re.compile(rf"{_GAP}\{{{_GAP}(?:({_WORD}){_GAP}:|\}})")
_MAY_BE_FIRST_KEY = re.compile(rf"{_GAP}(?:\{{{_GAP}(?:{_WORD}{_GAP})?)?")
_CONTROL = "[\ud800-\udfff]"
#: A key and its colon, after the comma in front of them, and what may become that.
_KEY = re.compile(rf"{_GAP}(?:[\"']|{_CONTROL})?({_WORD})(?:[\"']|{_CONTROL})?{_GAP}[:=]")
_MAY_BE_KEY = re.compile(rf"{_GAP}(?:[\"']|{_CONTROL})?(?:{_WORD})?(?:[\"']|{_CONTROL})?{_GAP}")
_COMMA = re.compile(rf"{_GAP},")
#: What follows the last bracket of a call, and what may become that.
_AFTER_CALL = re.compile(rf"[{WHITESPACE}}}\])]{{0,16}}{_CONTROL}")
_MAY_BE_AFTER_CALL = re.compile(rf"[{WHITESPACE}}}\])]{{0,16}}")
#: What follows a value other than a comma and a key.
_AFTER_VALUE = re.compile(rf"{_GAP}(?:,{_GAP})?(?:[}}\])]|{_CONTROL})")
_MAY_BE_AFTER_VALUE = re.compile(rf"{_GAP}(?:,{_GAP})?")
#: The next call in a section, up to its name, and what may become that.
_BEFORE_CALL = re.compile(rf"{_GAP}[,;]?{_GAP}")
#: A bracket too many, and what may become that.
_STRAY = re.compile(rf"{_GAP}[}}\])]")
_MAY_BE_STRAY = re.compile(_GAP)
#: A name of a tool that the request may not have.
_NAME = re.compile(r"[\w.:/-]+")
#: A name space in front of a name.
_NAME_SPACE = re.compile(r"\w+[:./\s]+")
_ESCAPE = re.compile(r'["\\/bfnrt]|u[0-9a-fA-F]{4}')
_MAY_BE_ESCAPE = re.compile(r"(?:u[0-9a-fA-F]{0,3})?")
#: The most parameters of a tool that are looked for in a string without its end, and characters of a name.
_MOST_KEYS, _LONGEST_KEY = 64, 128
#: How arguments ended: with their bracket; at a marker of the section or the end of the output; or with something that
#: cannot be read.
_Outcome: TypeAlias = Literal["ended", "open", "broken"]


class _Level(msgspec.Struct):
    """An open bracket. `end`: what closes it. `close`: what closes it in JSON."""

    end: str
    close: str
    #: Whether an item may come: the bracket or a comma came last.
    ready: bool = True
    empty: bool = True


class BareKeyReader(JsonAfterNames):
    #: What ends a section, what comes before a call's name, and what is around a string.
    section_end: str
    before_name: ClassVar[str]
    string: ClassVar[str]
    string_end: ClassVar[str]
    #: Other spellings of what ends a section.
    other_ends: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._levels: list[_Level] = []
        #: The open call's arguments, if they may have to be repaired.
        self._written: list[str] = []
        #: Text that cannot be read, and the JSON that stands for it.
        self._unread_text = self._in_its_place = ""
        self._keys: set[str] = set()
        #: Whether a bracket around all arguments is open.
        self._unwrapping = False
        #: Whether a round bracket may end the arguments.
        self._round = False
        #: A value that should be a string, if it is open: its text.
        self._held: list[str] | None = None
        #: Whether nothing opened the section, so that only its end shows that it is one.
        self._unopened_section = False
        #: Whether a word is one of the tool's parameters, and what would begin the next argument inside a string.
        self._is_key: Callable[[str], bool] = bool
        self._next_keys: tuple[str, ...] = ()
        self._outside = (self.section, self.section_end, *self.ends)
        super().__init__(options, tokenizer)
        self._closing = self.in_alphabet(self.string_end)
        #: A marker of a string that comes twice, with what follows it; the same for its end; and what may become that.
        marker = re.escape(self._closing)
        self._doubled = re.compile(
            rf"(?:{marker}|{re.escape(self.in_alphabet(self.string))})[^\s,;:}}\])\ud800-\udfff]"
        )
        self._doubled_end = re.compile(rf"{marker}{_GAP}(?:[,;}}\])]|(?!{marker}){_CONTROL})")
        self._may_be_doubled = re.compile(rf"(?:{marker}{_GAP}|{re.escape(self.in_alphabet(self.string))})?")
        call = re.escape(self.before_name)
        begun = "|".join(re.escape(self.before_name[:n]) for n in range(len(self.before_name)))
        self._next_call = (
            re.compile(rf"{_BEFORE_CALL.pattern}{call}{_GAP}{_WORD}{_GAP}[{{(\[]"),
            re.compile(rf"{_BEFORE_CALL.pattern}(?:{begun}|{call}{_GAP}(?:{_WORD}{_GAP})?)"),
        )

    def _read(self) -> Script[None]:
        yield from self._thinks_without_opener()
        yield from super()._read()

    def _thinks_without_opener(self) -> Script[None]:
        """Read what comes after the control token that opens reasoning, if the output begins with it."""
        control = next((control for control in self.controls if self.think.startswith(control)), "")
        word = self.think.removeprefix(control).lstrip()
        if not control or not word:
            return
        if not self._options.thinking:
            end = self.in_alphabet(self.think_end.strip())
            reasoning = re.compile(rf"{re.escape(word)}[^{end}]{{0,{FARTHEST}}}{end}")
            begun = "|".join(re.escape(word[:n]) for n in range(len(word)))
            if (yield from self._look(reasoning, re.compile(rf"{begun}|{re.escape(word)}[^{end}]*"))) is None:
                return
            self._options = msgspec.structs.replace(self._options, thinking=True)
        if (yield from self._next_is(word)):
            self._defect("stray_marker", word)

    def _section(self, opener: str) -> Script[None]:
        self._unopened_section = opener in self._unopened()
        if opener in self.other_openers:
            self._defect("misspelled_marker", opener)
        while True:
            while (yield from self._call()):
                pass
            if not (yield from self._another_section(self.section)):
                return

    def _certain_at_once(self) -> bool:
        return not self._unopened_section and super()._certain_at_once()

    def _certain(self) -> None:
        if self._unopened_section and self._trial is not None:
            raise Abandoned
        super()._certain()

    def _call(self) -> Script[bool]:
        """Read a call and, if no other call follows in the section, its end; whether another follows."""
        if (yield from self._json_section()):
            return False
        header, marker = yield from self._read_up_to(LONGEST_HEADER, *_OPENING, *self.controls)
        if not marker:
            self._abandon(header, "truncated_call" if marker is None else "endless_header")
            return False
        written = header.strip().removeprefix(self.before_name).strip()
        name = self._without_name_space(written.lstrip(":").lstrip())
        known = self._tool(name) in self._options.tools
        if not known and (marker != "{" or not _NAME.fullmatch(name)):
            self._unread()
            self._abandon(header, "unreadable_call" if name else "missing_name")
            yield from self._end_of_section()
            return False
        if not header.strip().startswith(self.before_name):
            self._defect("missing_prefix", name)
        elif name != written:
            self._defect("misspelled_name", written)
        name = self._open_call(name)
        if marker not in _OPENING:
            self._unread()
            self._defect("missing_arguments", self._id)
            self._write("{}")
        elif not (yield from self._arguments_of(name, marker)):
            return False
        while (stray := (yield from self._look(_STRAY, _MAY_BE_STRAY))) is not None:
            self._at = stray.end()
            self._defect("stray_bracket", stray.group().strip())
        another = yield from self._look(*self._next_call)
        if another is not None:
            self._at += len(_BEFORE_CALL.match(another.group()).group())  # type: ignore[union-attr]  # it matches all
        elif (yield from self._end_of_section()):
            self._unopened_section = False
            self._end_call()
            return False
        self._defect("missing_call_end", self._id)
        self._end_call()
        return another is not None

    def _begins_call(self, text: str) -> bool:
        begun = text.strip()
        return self.before_name.startswith(begun) or super()._begins_call(begun.removeprefix(self.before_name))

    def _without_name_space(self, name: str) -> str:
        """The part of `name` that names a tool; `name` if none does."""
        at = 0
        while self._tool(name[at:]) not in self._options.tools:
            match = _NAME_SPACE.match(name, at)
            if match is None:
                return name
            at = match.end()
        return name[at:]

    def _end_of_section(self) -> Script[bool]:
        """Read up to the end of the section; whether it came."""
        marker = yield from self._between(*self._outside, *self.other_ends, self.think, self.think_end)
        if marker in self.other_ends:
            self._defect("misspelled_marker", marker or "")
            return True
        if marker not in (None, self.section_end):
            self._unread()
        return marker == self.section_end

    # -- arguments ----------------------------------------------------------------------------------------------------

    def _arguments_of(self, name: str, bracket: str) -> Script[bool]:
        """Pass on the arguments of the open call, after their `bracket`; whether they are an object."""
        types = self._types_of(name)
        schema = self._options.tools.get(name)
        declared = schema.get("properties") if isinstance(schema, Mapping) else None
        keys = [key for key in declared if isinstance(key, str)] if isinstance(declared, Mapping) else []
        self._is_key = types.declares if keys else bool
        self._next_keys = tuple(
            f"{mark},{key}:" for key in keys[:_MOST_KEYS] if len(key) <= _LONGEST_KEY for mark in ("", *_QUOTES)
        )
        self._keys = set()
        self._written = []
        self._unread_text = self._in_its_place = ""
        self._levels = [_Level("]" if bracket == "[" else "}", "}")]
        self._held = None
        self._unwrapping = False
        self._round = bracket == "("
        if bracket != "{":
            self._defect("wrong_bracket", bracket)
        if self._round:
            yield from self._skip(WHITESPACE)
            yield from self._next_is("{")
        self._write("{")
        outcome = yield from self._items(types)
        if outcome == "ended":
            if self._round:
                yield from self._skip(WHITESPACE)
                yield from self._next_is(")")
            return True
        over = not (yield from self._peek())
        if self._held is not None:
            inner = "".join(level.close for level in reversed(self._levels[1:]))
            self._write(self._unread_text if over else self._in_its_place + inner)
            self._unread_text, self._in_its_place = "" if over else self._unread_text, ""
            del self._levels[1:]
            self._release()
        if over:
            self._write(self._unread_text)
            self._truncated_call(closing("".join(self._written)) or "")
            return False
        if outcome == "open":
            self._defect("missing_bracket", self._id)
            self._write("".join(level.close for level in reversed(self._levels)))
            return True
        pieces = [self._unread_text]
        marker = yield from self._value(pieces.append, *self._outside)
        if marker not in (None, self.section_end):
            self._unread()
        if marker is None and self._cut_off:
            self._write("".join(pieces))
            self._truncated_call(closing("".join(self._written)) or "")
            return False
        inner = self._in_its_place + "".join(level.close for level in reversed(self._levels[1:]))
        comma = "" if self._levels[0].empty else ", "
        rest = f"{inner}{comma}{quote(MALFORMED)}: {quote(''.join(pieces))}}}"
        self._malformed(rest, closed=marker == self.section_end)
        self._end_call()
        return False

    def _items(self, types: ParameterTypes) -> Script[_Outcome]:
        while self._levels:
            level = self._levels[-1]
            yield from self._skip(WHITESPACE)
            if self._unwrapping and len(self._levels) == 1 and (yield from self._next_is("}")):
                self._unwrapping = False
            elif (end := (yield from self._next_is(*_CLOSERS))) is not None:
                if level.ready and not level.empty:
                    self._defect("stray_separator", ",")
                for _ in range((yield from self._closed_by(end))):
                    self._write(self._levels.pop().close)
                    if len(self._levels) == 1:
                        self._release()
            elif not level.ready and (comma := (yield from self._next_is(",", ";"))):
                if comma == ";":
                    self._defect("missing_comma", comma)
                level.ready = True
            elif level.empty and len(self._levels) == 1 and not self._round and (yield from self._next_is("(")):
                self._defect("wrong_bracket", "(")
                self._round = True
            else:
                following = yield from self._peek()
                if following in ("", *self._outside):
                    return "open"
                if not (yield from self._item(level, types)):
                    return "broken"
        return "ended"

    def _closed_by(self, end: str) -> Script[int]:
        """How many brackets the closing bracket `end` closes.

        One of another kind closes what is open inside of its own. If that would end the arguments although they go on,
        or none of its kind is open, it closes one bracket.
        """
        levels = self._levels
        if end == levels[-1].end or (end == ")" and self._round and len(levels) == 1):
            return 1
        count = next((n for n, level in enumerate(reversed(levels), 1) if level.end == end), 0)
        if count == len(levels) and (yield from self._look(_AFTER_CALL, _MAY_BE_AFTER_CALL)) is None:
            count = 0
        self._defect("missing_bracket" if count else "wrong_bracket", end)
        return count or 1

    def _release(self) -> None:
        """Pass on a value that should be a string, as its text."""
        if self._held is not None:
            text, self._held = "".join(self._held), None
            self._defect("mistyped_value", text)
            self._write(quote(text))

    def _item(self, level: _Level, types: ParameterTypes) -> Script[bool]:
        """Read an item of an array, or a member of an object."""
        if not level.ready:
            self._defect("missing_comma", self._id)
        first, separator = level.empty, "" if level.empty else ", "
        level.ready = False
        allowed = ANY
        if level.close == "]":
            level.empty = False
            self._write(separator)
        else:
            key = yield from self._key()
            if key is None:
                return False
            if first and len(self._levels) == 1 and (yield from self._is_wrapper(key, types)):
                self._defect("wrapped_arguments", key)
                level.ready = True
                return True
            level.empty = False
            if len(self._levels) == 1:
                if key in self._keys:
                    self._defect("duplicate_parameter", key)
                self._keys.add(key)
                allowed = types[key]
            self._write(f"{separator}{quote(key)}: ")
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
        """Read a key and its colon; None if none comes. Then what came is kept as text that cannot be read."""
        opener = yield from self._next_is(self.string, *_QUOTES)
        if opener is None:
            key, stop = yield from self._read_up_to(LONGEST_HEADER, ":", "=", ")", *_BREAKS, *self.controls)
            read = key.strip()
        else:
            self._defect("attribute_quotes", opener)
            end = self.string_end if opener == self.string else opener
            key, stop = yield from self._read_up_to(LONGEST_HEADER, end, *self.controls)
            read = key
            if stop == end:
                yield from self._skip(WHITESPACE)
                stop = yield from self._next_is(":", "=")
                if stop is None:
                    self._unread_text = key
                    return None
        if stop not in (":", "=") or not (read or opener):
            if self._round and self._trial is not None:  # so may prose go on
                raise Abandoned
            self._unread()
            self._unread_text = key
            return None
        if stop == "=":
            self._defect("missing_equals", read)
        return read

    def _any_value(self, types: frozenset[str]) -> Script[bool]:
        if (yield from self._next_is(self.string)):
            yield from self._marked_string(types)
            return True
        if (mark := (yield from self._next_is(*_QUOTES))) is not None:
            yield from self._quoted(mark, types)
            return True
        top = len(self._levels) == 1
        opening = _BRACKETS if top and "string" in types else _OPENING
        if (bracket := (yield from self._next_is(*opening))) is not None:
            opened = bracket
            if bracket == "(":
                self._defect("wrong_bracket", bracket)
                opened = "[" if (yield from self._look(_KEY, _MAY_BE_KEY)) is None else "{"
            if types == STRING and self._held is None:
                self._held = []
            self._write(opened)
            self._levels.append(_Level(_OPENING[bracket], _BRACKETS[opened]))
            return len(self._levels) <= _DEEPEST
        round_too = self._round if top else self._levels[-1].end == ")"
        ends = _CLOSERS if round_too or "string" not in types else tuple(_BRACKETS.values())
        separators = (",", ";") if "string" not in types else (",",)
        stops = (*separators, *_QUOTES, *_BRACKETS, *ends)
        text, stop = yield from self._read_up_to(LONGEST_HEADER, *stops, *self.controls)
        self._unread()
        bare = text.strip()
        is_value = bool(bare) and stop in (*separators, *ends, *self._outside)
        if is_value and types != STRING and (value := self._value_of(bare)) is not None:
            self._write(value)
        elif bare and top and "string" in types:
            yield from self._unquoted(text)
        elif is_value:
            self._write(self._string_of(bare))
        else:
            self._unread_text, self._in_its_place = text, "null"
            return False
        return True

    def _value_of(self, text: str) -> str | None:
        """The value that `text` is, in JSON or Python; None if it is no value."""
        if is_json(text):
            return text
        if is_json(python := from_python(text)):
            self._defect("python_value", text)
            return python
        return None

    def _string_of(self, text: str) -> str:
        self._defect("unquoted_value", text)
        return quote(text)

    # -- strings ------------------------------------------------------------------------------------------------------

    def _marked_string(self, types: frozenset[str]) -> Script[None]:
        """Read a string after its opening marker, which may come twice, as the closing one may."""
        if (yield from self._look(self._doubled, self._may_be_doubled)) is not None:
            yield from self._next_is(self.string, self.string_end)
            self._stray_marker(self.string)
        marker = yield from self._text_of_string(types, (self.string_end,), self._weigh)
        if marker not in (None, self.string_end):
            self._defect("missing_parameter_end", self._id)
            self._unread()
            yield from self._next_is(*_QUOTES)  # another quote than the one that opened it
        elif (yield from self._look(self._doubled_end, self._may_be_doubled)) is not None:
            yield from self._next_is(self.string_end)
            self._stray_marker(self.string_end)

    def _quoted(self, mark: str, types: frozenset[str]) -> Script[None]:
        """Read a string in other quotes, after the first one."""
        self._defect("attribute_quotes", mark)
        marker = yield from self._text_of_string(types, (mark, self.string_end, "\\"), self._weigh_quote)
        if marker == mark:
            yield from self._next_is(self.string_end)
        elif marker not in (None, self.string_end):
            self._defect("missing_parameter_end", self._id)
            self._unread()

    def _unquoted(self, text: str) -> Script[None]:
        """Read a string without quotes, perhaps with the marker at its end, which begins with `text`."""
        self._defect("unquoted_value", text.strip())
        self._write(f'"{quote(text.strip())[1:-1]}')
        space = text[len(text.rstrip()) :]

        def write(more: str) -> None:
            nonlocal space
            more = space + more
            # Whitespace at the end is layout; there is not much of it.
            space = more[len(more.rstrip()) :][:MOST_SPACE]
            self._write(quote(more[: len(more) - len(space)])[1:-1])

        stops = (",", "}", *(")",) * self._round, self.string_end, *self._outside)
        marker = yield from self._value(write, *stops, weigh=self._weigh_unquoted)
        self._write('"' if marker is not None else "")
        if marker not in (None, self.string_end):
            self._unread()

    def _text_of_string(self, types: frozenset[str], ends: tuple[str, ...], weigh: Weigh) -> Script[str | None]:
        """Pass on a string up to one of `ends`, or to what shows that its end is missing. Returns what came."""
        streams = "string" in types
        pieces: list[str] = []
        out = self._write if streams else pieces.append
        brackets = "".join(level.end for level in reversed(self._levels))
        closed = (brackets, f"{brackets[:-1]})") if self._round else (brackets,)
        missing = [f"{mark}{end}{self.section_end}" for mark in ("", *_QUOTES) for end in closed if mark not in ends]
        next_keys = self._next_keys if len(self._levels) == 1 and self.string_end == ends[0] else ()
        stops = tuple(dict.fromkeys((*ends, *missing, *next_keys, *self._outside)))
        out('"')

        def write(text: str) -> None:
            out(quote(text)[1:-1])

        while (marker := (yield from self._value(write, *stops, weigh=weigh))) == "\\":
            if ends[0] == "'":
                out("'" if (yield from self._next_is("'")) else "\\\\")
            elif (escape := (yield from self._look(_ESCAPE, _MAY_BE_ESCAPE))) is None:
                out("\\\\")
            else:
                self._at += len(escape.group())
                out("\\" + escape.group())
        out('"' if marker is not None or not streams else "")
        if not streams:
            self._write(self._from_string(json.loads("".join(pieces))))
        return marker

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
        return end - at if following in ",}])" else -1

    def _weigh_quote(self, text: str, at: int) -> int | None:
        """Whether a quote in a string in quotes, which ends at `at`, is a part of it, because nothing follows it that
        follows a value."""
        if text[self._at : at] not in (*_QUOTES, self._closing) or _AFTER_VALUE.match(text, at):
            return -1
        if _MAY_BE_AFTER_VALUE.fullmatch(text, at):
            return None
        comma = _COMMA.match(text, at)
        if comma is None:
            return 0
        return -1 if self._levels[-1].close == "]" else self._weigh_comma(text, comma.end(), bool)

    def _weigh_comma(self, text: str, at: int, is_key: Callable[[str], bool]) -> int | None:
        """Whether the comma that ends at `at` is a part of a string, because no key follows it."""
        if key := _KEY.match(text, at):
            return -1 if is_key(key[1]) else 0
        return None if _MAY_BE_KEY.fullmatch(text, at) else 0

    def _weigh_unquoted(self, text: str, at: int) -> int | None:
        """Whether a comma, a bracket or a marker in a string without quotes is a part of it."""
        stop = text[self._at : at]
        if stop == ",":
            return self._weigh_comma(text, at, self._is_key)
        if stop in _CLOSERS:
            if _AFTER_CALL.match(text, at):
                return -1
            return None if _MAY_BE_AFTER_CALL.fullmatch(text, at) else 0
        return self._weigh_quote(text, at)

    def _from_string(self, text: str) -> str:
        """The value of a string that should be of another type."""
        for value in (text.strip(), from_python(text.strip())):
            if is_json(value):
                self._defect("mistyped_value", text)
                return value
        self._defect("invalid_value", text)
        return quote(text)

    def _write(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
        elif text:
            if self._options.repair_arguments:
                self._written.append(text)
            self._emit_fragment(text)
