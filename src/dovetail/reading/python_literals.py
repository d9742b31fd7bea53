"""`PythonReader`: arguments that the model writes as Python, passed on as JSON while they come.

`city="Paris", days=[1, 0x1f]` becomes `{"city": "Paris", "days": [1, 31]}`. Decimal numbers keep their digits, and
strings stream. The inside of parentheses is buffered until a comma or the end shows whether they are a tuple.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring as quote
from typing import ClassVar, Final, Literal, TypeAlias, TypeGuard

import msgspec

from dovetail.events import CallArguments
from dovetail.reading.alphabet import any_control
from dovetail.reading.calls import LONGEST_HEADER, CallReader
from dovetail.reading.json_text import closing, is_json
from dovetail.reading.python_text import from_python, number
from dovetail.reading.reader import FARTHEST, MALFORMED, Abandoned, ReaderOptions, Script, Weigh
from dovetail.reading.values import STRING, ParameterTypes, types_of
from dovetail.tokens import Tokenizer

SPACE: Final = " \t\r\n\f"
_QUOTES: Final = ('"', "'")
_OPENERS: Final = ("(", "[", "{")
_CLOSERS: Final = (")", "]", "}")
_BREAKS: Final = (*_QUOTES, *_OPENERS, *_CLOSERS, ",")
_KEY_BREAKS: Final = (*_BREAKS, "=", ":")
_AFTER_STRING: Final = (*_QUOTES, *_CLOSERS, ",", ":")
_PREFIXES: Final = ("", "r", "b", "u", "f", "br", "rb", "fr", "rf")
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null"}
#: The characters of Python's escapes of one letter.
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": ""} | {
    character: character for character in (*_QUOTES, "\\")
}
_ESCAPE = re.compile(
    r"\\(?:(?P<hex>x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|(?P<octal>[0-7]{3}|[0-7]{1,2}(?![0-7]|\Z))"
    r"|N\{(?P<name>[\w -]{1,100})\}"
    r"|(?P<begun>(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|[0-7]{1,2}|N(?:\{[\w -]{0,100})?)?\Z)|.)",
    re.DOTALL | re.ASCII,
)
_ESCAPED = re.compile(r"(?:[^\\]|\\.)*", re.DOTALL)
#: By a string's quote: finds whether a piece of it has another quote, half an escape or a control token.
_LEAVES_STRING: Final = {
    mark: re.compile(rf"(?:[^\\{mark}\ud800-\udfff]|\\[^\ud800-\udfff])*+(?!\Z)").match for mark in _QUOTES
}
_OCTAL = re.compile(r"\\[0-7]{1,2}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_GAP: Final = f"[{SPACE}]{{0,16}}"
#: The beginning of a dictionary up to its first key, or to its end.
_FIRST_KEY = re.compile(rf"""\{{{_GAP}(?:(["'])([^"'\\]{{0,128}})\1{_GAP}:|\}})""")
_MAY_BE_FIRST_KEY = re.compile(rf"""(?:\{{(?:{_GAP}(?:["'](?:[^"'\\]{{0,128}}(?:["']{_GAP})?)?)?)?)?""")
#: The beginning of a set up to its second item, or to its end.
_IN_SET = r"""(["'])(?:(?!\1)[^\\]|\\.){0,512}"""
_WORD = r"""[^\s"'{}\[\](),:*]"""
_SET = re.compile(rf"""\{{{_GAP}(?:{_IN_SET}\1|{_WORD}[^"'{{}}\[\](),:*]{{0,64}}){_GAP}[,}}]""", re.DOTALL)
_MAY_BE_SET = re.compile(rf"\{{{_GAP}(?:{_IN_SET}(?:\\|\1{_GAP})?|(?:{_WORD}[^\"'{{}}\[\](),:*]{{0,64}})?)", re.DOTALL)
#: The most brackets inside one another. JSON parsers do not read deeper ones either.
_DEEPEST: Final = 256

#: How a call's arguments ended: with their `)`; with something that cannot come between two arguments; or with
#: something that cannot be read.
Outcome: TypeAlias = Literal["ended", "between", "broken"]


class _Level(msgspec.Struct):
    """An open bracket."""

    end: str
    json_end: str
    #: The sign between a key and its value; "" if there are no keys.
    colon: str = ""
    #: For a parenthesis, the place in the buffer where a `[` belongs if it turns out to be a tuple.
    parenthesis: int | None = None
    #: Whether an item may come: the bracket or a comma came last.
    ready: bool = True


class _Held(msgspec.Struct):
    """A value that waits for its end. `types`: what the schema allows. `depth`: how many brackets are around it.

    `start`: where it begins in the buffer.
    """

    types: frozenset[str]
    depth: int
    start: int


class PythonReader(CallReader):
    """Reads the arguments of calls. A family's subclass finds the calls."""

    #: Whether the family writes true, false and null as JSON does.
    json_words: ClassVar[bool] = False

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._levels: list[_Level] = []
        #: The open call's arguments, if they may have to be repaired.
        self._written: list[str] = []
        self._fresh = True  # whether the next item is the first in its JSON bracket
        self._buffer: list[str] = []
        self._parentheses = 0  # how many open parentheses may still be tuples
        self._keys: set[str] = set()
        #: The tool's parameters, in order. A positional argument takes the first one that is left.
        self._declared: Iterator[str] = iter(())
        self._parameter_types = ParameterTypes(None)
        #: A value that is buffered until it is known whether its type is allowed.
        self._held: _Held | None = None
        #: Text that cannot be read, and the JSON that stands for it.
        self._unread_text = self._in_its_place = ""
        super().__init__(options, tokenizer)

    def _python_arguments(self, name: str) -> Script[Outcome]:
        """Pass on the arguments of the open call, after their `(`."""
        self._levels = [_Level(")", "}", "=")]
        self._fresh = True
        self._keys = set()
        self._written = []
        self._held = None
        self._unread_text = self._in_its_place = ""
        self._parameter_types = self._types_of(name)
        schema = self._options.tools.get(name)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        self._declared = filter(_is_text, properties if isinstance(properties, Mapping) else ())
        self._write("{")
        while self._levels:
            level = self._levels[-1]
            yield from self._skip(SPACE)
            if (yield from self._next_is(level.end)):
                self._close_level(self._levels.pop())
                self._release()
            elif not level.ready and (count := self._closed_by((yield from self._peek()))):
                yield from self._close_brackets(count)
            elif not level.ready and (yield from self._next_is(",")):
                level.ready = True
                if level.parenthesis is not None:
                    self._settle(level, "[")
            elif level.colon == "=":
                outcome = yield from self._argument(level)
                if outcome != "ended":
                    return outcome
            elif not level.ready or not (yield from self._item(level)):
                return "broken"
        return "ended"

    def _closed_by(self, bracket: str) -> int:
        """How many brackets the closing bracket that comes next closes, where it is not the innermost one's.

        One of another kind closes what is open inside of its own. -1: it is one too many.
        """
        if bracket not in _CLOSERS:
            return 0
        if len(self._levels) == 1:
            return -1 if bracket == "}" else 0
        return next((n for n, level in enumerate(reversed(self._levels)) if level.end == bracket), 0)

    def _close_brackets(self, count: int) -> Script[None]:
        """Close `count` brackets that were left open; -1: drop the bracket that comes next."""
        if count < 0:
            self._defect("stray_bracket", (yield from self._next_is(*_CLOSERS)) or "")
            return
        self._defect("missing_bracket", self._id)
        for _ in range(count):
            self._close_level(self._levels.pop())
        self._release()

    def _unwraps(self, name: str) -> None:
        """Not where the arguments are already JSON: see `_is_wrapped`."""

    def _is_wrapped(self, key: str | None, level: _Level) -> Script[bool]:
        """Read the bracket of a dictionary that holds all arguments, under a `key` that the tool does not have or None.

        Its first key has to be a parameter of the tool.
        """
        if key is not None and not self._parameter_types.is_wrapper(key):
            return False
        match = yield from self._look(_FIRST_KEY, _MAY_BE_FIRST_KEY)
        if match is None or not (match[2] is None or self._parameter_types.declares(match[2])):
            return False
        self._defect("json_arguments" if key is None else "wrapped_arguments", key or self._id)
        yield from self._skip("{", 1)
        level.ready = False
        self._levels.append(_Level("}", "", ":"))
        return True

    def _argument(self, level: _Level) -> Script[Outcome]:
        key, stop = yield from self._read_up_to(LONGEST_HEADER, *_KEY_BREAKS, *self.controls)
        bare = key.strip(SPACE)
        if not bare and stop not in (*_QUOTES, *_OPENERS, "=", ":"):
            self._unread()
            return "between"
        keyed = bool(bare) and stop in ("=", ":")
        spread = bare == "**" and stop == "{"
        positional = None
        if level.ready and not bare and stop == "{":
            self._unread()
            if (yield from self._is_wrapped(None, level)):
                return "ended"
            yield from self._next_is("{")
        if level.ready and not keyed and not spread and _begins_value(key, stop):
            if self._trial is not None and stop not in (*_QUOTES, *_OPENERS) and not _is_scalar(bare):
                raise Abandoned  # so may prose go on
            positional = next((key for key in self._declared if key not in self._keys), None)
        if not keyed and not spread and positional is None:
            self._unread()
            self._unread_text = key
            return "broken"
        if not level.ready:
            self._defect("missing_comma", key)
        level.ready = False
        if spread:
            self._levels.append(_Level("}", "", ":"))
            return "ended"
        if positional is not None:
            self._defect("positional_argument", positional)
        elif stop == ":":
            self._defect("missing_equals", bare)
        if keyed:
            yield from self._skip(SPACE)
            if (yield from self._is_wrapped(bare, level)):
                return "ended"
        name = bare if positional is None else positional
        self._begin_item(name)
        if keyed:
            key, stop = yield from self._read_up_to(LONGEST_HEADER, *_BREAKS, *self.controls)
        self._unread()
        types = self._parameter_types[name]
        if ("string" not in types) if stop in _QUOTES else types == STRING:
            self._held = _Held(types, len(self._levels), len(self._buffer))
            self._parentheses += 1
        if not (yield from self._python_value(key, stop)):
            return "broken"
        self._release()
        return "ended"

    def _release(self) -> None:
        """Pass on the held value, if it is complete: of a type that the schema allows, if its text is one."""
        held = self._held
        if held is None or len(self._levels) != held.depth:
            return
        text = "".join(self._buffer[held.start :])
        del self._buffer[held.start :]
        self._held = None
        self._parentheses -= 1
        if text[0] == '"':
            inside = json.loads(text).strip() if held.types != STRING else ""
            for value in filter(is_json, (inside, from_python(inside))):
                if types_of(json.loads(value)) & held.types:
                    self._defect("mistyped_value", inside)
                    text = value
                    break
        elif text != "null":
            self._defect("mistyped_value", text)
            text = quote(text)
        self._write(text)

    def _item(self, level: _Level) -> Script[bool]:
        """Read an item of a list or a tuple, or a key of a dictionary and its value."""
        level.ready = False
        text, stop = yield from self._read_up_to(
            LONGEST_HEADER, *(_KEY_BREAKS if level.colon else _BREAKS), *self.controls
        )
        self._unread()
        self._begin_item()
        if not level.colon:
            return (yield from self._python_value(text, stop))
        if stop in _QUOTES:
            if not (yield from self._python_value(text, stop)):
                key = '""' if self._in_its_place == "null" else self._in_its_place
                self._in_its_place = f"{key}: null"
                return False
        elif text and stop == ":":
            value = self._scalar(text)
            self._write(value if value[0] == '"' else f'"{value}"')
        else:
            self._unread_text, self._in_its_place = text, f"{quote(text)}: null"
            return False
        yield from self._skip(SPACE)
        if not (yield from self._next_is(":")):
            self._in_its_place = ": null"
            return False
        self._write(": ")
        yield from self._skip(SPACE)
        text, stop = yield from self._read_up_to(LONGEST_HEADER, *_BREAKS, *self.controls)
        self._unread()
        return (yield from self._python_value(text, stop))

    def _python_value(self, text: str, stop: str | None) -> Script[bool]:
        """Write a value that begins with `text` and then `stop`, which is unread; False if that begins no value."""
        if not _begins_value(text, stop) or len(self._levels) > _DEEPEST:
            self._unread_text, self._in_its_place = text, "null"
            return False
        if stop in _QUOTES:
            return (yield from self._python_string("r" in text.lower()))
        if stop in _OPENERS:
            is_set = stop == "{" and (yield from self._look(_SET, _MAY_BE_SET)) is not None
            yield from self._skip(stop, 1)
            self._open_level(stop, is_set)
        else:
            self._write(self._scalar(text))
        return True

    def _scalar(self, text: str) -> str:
        text = text.strip(SPACE)
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if (value := number(text)) is not None:
            return value
        if text in _CONSTANTS.values():
            if not self.json_words:
                self._defect("json_value", text)
            return text
        self._defect("unquoted_value", text)
        return quote(text)

    # -- brackets -----------------------------------------------------------------------------------------------------

    def _begin_item(self, key: str | None = None) -> None:
        self._write("" if self._fresh else ", ")
        self._fresh = False
        if key is not None:
            if key in self._keys:
                self._defect("duplicate_parameter", key)
            self._keys.add(key)
            self._write(f"{quote(key)}: ")

    def _open_level(self, bracket: str, is_set: bool) -> None:
        self._fresh = True
        if is_set:
            self._levels.append(_Level("}", "]"))
            self._write("[")
            return
        if bracket == "(":
            self._levels.append(_Level(")", "", parenthesis=len(self._buffer)))
            self._buffer.append("")
            self._parentheses += 1
        else:
            self._levels.append(_Level("]", "]") if bracket == "[" else _Level("}", "}", ":"))
            self._write(bracket)

    def _close_level(self, level: _Level) -> None:
        if level.parenthesis is not None:
            self._settle(level, "[" if level.ready else "")
        if level.json_end:
            self._write(level.json_end)
            self._fresh = False

    def _settle(self, level: _Level, bracket: str) -> None:
        """Write the `bracket` of a parenthesis: "[" for a tuple, "" for a value in parentheses."""
        assert level.parenthesis is not None
        self._buffer[level.parenthesis] = bracket
        level.parenthesis = None
        level.json_end = "]" if bracket else ""
        self._parentheses -= 1
        if not self._parentheses:
            self._flush()

    def _flush(self) -> None:
        """Pass on the buffered text."""
        self._parentheses = 0
        text, self._buffer = "".join(self._buffer), []
        self._write(text)

    def _write(self, text: str) -> None:
        if self._parentheses:
            self._buffer.append(text)
        elif text:
            if self._trial is not None:
                self._argument_on_trial(text)
            if self._options.repair_arguments:
                self._written.append(text)
            self._events.append(CallArguments(self._index, text))

    # -- strings ------------------------------------------------------------------------------------------------------

    def _python_string(self, raw: bool) -> Script[bool]:
        """Write one string, or several in a row as one; False if it has no end."""
        self._write('"')
        while mark := (yield from self._next_is('"""', "'''")) or (yield from self._next_is(*_QUOTES)):
            decoder = _Decoder()
            write = self._string_writer(decoder, raw)
            # Only these two escapes could be mistaken for the end of the string.
            stops, in_string = (mark, "\\\\", "\\" + mark[0], *self.ends), _in_string(mark)

            def weigh(text: str, at: int, in_string: Weigh = in_string) -> int | None:
                return 0 if text[self._at] == "\\" else in_string(text, at)

            marker = yield from self._value(write, *stops, weigh=weigh, leaves=_LEAVES_STRING[mark[0]])
            self._write(decoder.end())
            if marker != mark:
                self._unread()
                self._in_its_place = '"'
                return False
            raw = False
            yield from self._skip(SPACE)
        self._write('"')
        return True

    def _string_writer(self, decoder: _Decoder, raw: bool) -> Callable[[str], None]:
        """A function that writes the next part of a string. It runs for every delta, so ordinary text takes no other
        call of ours."""
        index, streams = self._index, not self._parentheses and not self._options.repair_arguments

        def write(text: str) -> None:
            plain = raw or ("\\" not in text and not decoder.buffered)
            written = quote(text)[1:-1] if plain else decoder.feed(text)
            if not streams:
                self._write(written)
            elif written:
                self._events.append(CallArguments(index, written))

        return write

    # -- unreadable arguments -----------------------------------------------------------------------------------------

    def _malformed_arguments(self) -> Script[None]:
        """End the open call, whose arguments cannot be read from here on. What comes up to their `)` is told."""
        depth, pieces = len(self._levels), [self._unread_text]
        stops = (*self.ends, *self.openers)
        marker: str | None
        while depth:
            marker = yield from self._value(pieces.append, *_QUOTES, *_OPENERS, *_CLOSERS, *stops)
            if marker in _QUOTES:
                mark, escaped = marker, ("\\\\", "\\" + marker)
                pieces.append(mark)
                while (marker := (yield from self._value(pieces.append, mark, *escaped, *stops))) in escaped:
                    pieces.append(marker)
                if marker == mark:
                    pieces.append(mark)
                    continue
            if marker not in (*_OPENERS, *_CLOSERS):
                self._unread()
                break
            depth += 1 if marker in _OPENERS else -1
            if depth:
                pieces.append(marker)
            elif marker != ")":
                self._unread()
        if self._cut_off and not (yield from self._peek()):
            self._write("".join(pieces))
            self._truncated_call(closing("".join(self._written)) or "")
            return
        inner = self._in_its_place + "".join(level.json_end for level in reversed(self._levels[1:]))
        comma = "" if self._fresh and len(self._levels) == 1 else ", "
        self._malformed(f"{inner}{comma}{quote(MALFORMED)}: {quote(''.join(pieces))}}}", closed=False)
        self._end_call()


def _is_scalar(text: str) -> bool:
    return text in _CONSTANTS or text in _CONSTANTS.values() or number(text) is not None


def _begins_value(text: str, stop: str | None) -> bool:
    """Whether `text` followed by `stop` is, or begins, a value."""
    if stop in _QUOTES:
        return text.lower() in _PREFIXES
    if stop in _OPENERS:
        return not text
    return stop in (*_CLOSERS, ",") and bool(text.strip(SPACE)) and text[0] != "*"


class _Decoder:
    """Turns what is inside a Python string into the same of a JSON string, each character as soon as its escape ends.

    An escape that Python does not have stays as it is.
    """

    def __init__(self) -> None:
        #: The beginning of an escape.
        self.buffered = ""

    def feed(self, text: str) -> str:
        text, self.buffered = self.buffered + text, ""
        decoded = quote(_ESCAPE.sub(self._decoded, text))[1:-1]
        # Half of a pair of surrogates becomes a JSON escape, which the other half may complete.
        return decoded if decoded.isascii() else _SURROGATE.sub(lambda half: f"\\u{ord(half.group()):04x}", decoded)

    def end(self) -> str:
        """The buffered text, which is complete only if it is a short octal escape."""
        if not self.buffered:
            return ""
        rest, self.buffered = self.buffered, ""
        return quote(chr(int(rest[1:], 8)) if _OCTAL.fullmatch(rest) else rest)[1:-1]

    def _decoded(self, escape: re.Match[str]) -> str:
        text = escape.group()
        match escape.lastgroup:
            case None:
                return _ESCAPES.get(text[1], text)
            case "begun":
                self.buffered = text
                return ""
            case "hex":
                return _character(int(text[2:], 16)) or text
            case "octal":
                return chr(int(text[1:], 8))
            case _:
                return _named(escape["name"]) or text


def _character(code: int) -> str:
    return chr(code) if code <= sys.maxunicode else ""


def _named(name: str) -> str:
    try:
        return unicodedata.lookup(name)
    except KeyError:
        return ""


@functools.cache
def _in_string(mark: str) -> Weigh:
    """Tells whether a control token inside a string that ends with `mark` is text: see `reading.reader.Weigh`.

    It is if the string ends after it, and what follows can follow a string.
    """
    string = re.compile(rf"((?:[^\\]|\\.)*?){mark}[{SPACE}]*+(.?)", re.DOTALL)

    def weigh(text: str, at: int) -> int | None:
        if any_control.match(text, at - 1) is None:
            return -1
        limit = at + FARTHEST
        match = string.match(text, at, limit)
        if match is None:
            # Up to an offset that is not inside an escape, which might be one of the quote.
            inside = _ESCAPED.match(text, at, limit - len(mark))
            return inside.end() - at if inside is not None and len(text) >= limit else None
        if not match[2] and len(text) < limit:
            return None
        return match.end(1) - at if not match[2] or match[2] in _AFTER_STRING else -1

    return weigh


def _is_text(key: object) -> TypeGuard[str]:
    return isinstance(key, str)
