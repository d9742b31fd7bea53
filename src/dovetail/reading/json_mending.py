"""`MendedJson`: passes on a JSON object piece by piece, and mends what models get wrong in it.

Well-formed JSON comes out as it is. Else what comes out is JSON as far as it goes, whatever comes in:

- In a string, a literal control character, a backslash that begins no escape, and a quote after which the object cannot
  go on are escaped. The last needs a look at what follows: a comma and the next key, or a bracket.
- Python's words and quotes, keys and words without quotes, and commas and brackets too many or too few are mended.
- A value that the schema does not allow becomes one that it allows, if that is the same text: a string that holds an
  array, an object, a number or a word; and the reverse.

Anything else makes the object `malformed`, and the rest of its text is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json.encoder import encode_basestring as quote
from typing import Final

import msgspec

from dovetail.reading.json_end import JsonEnd, string_goes_on
from dovetail.reading.json_text import is_json
from dovetail.reading.python_text import PYTHON_WORDS, from_python
from dovetail.reading.reader import MALFORMED
from dovetail.reading.values import ANY, STRING, ParameterTypes

#: What may come next, apart from whitespace.
_KEY, _KEY_OR_END, _COLON, _VALUE, _VALUE_OR_END, _COMMA_OR_END = range(6)
_SPACE: Final = re.compile(r"[ \t\r\n]*+")
#: The inside of a string, by its quote: up to what has to be looked at.
_PLAIN: Final = {
    '"': re.compile(r'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'),
    "'": re.compile(r"""[^"'\\\x00-\x1f]*+"""),
}
_MATCH_PLAIN: Final = _PLAIN['"'].match
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_OPEN_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_WORD: Final = re.compile(r"[-+.\w]++")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_NAMES: Final = ("true", "false", "null")
_BARE: Final = re.compile(r"[^\W\d][\w.-]*")
_QUOTE: Final = re.compile(r'\\.|"', re.DOTALL)
#: How many brackets may be open. Parsers of JSON have a limit too: Python's is about 1,000.
_DEEPEST: Final = 256
#: How many characters after a quote are looked at, to tell whether it ends its string.
_FARTHEST: Final = 160
_BEGUN_KEY: Final = r"""(?:"(?:[^"\\]|\\.)*+\\?|'(?:[^'\\]|\\.)*+\\?|\w*+)"""
_KEY_AND_COLON: Final = r"""(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|\w++)[ \t\r\n]*+:"""
#: What follows the last quote of a string in an object: the object's end, or the next member.
_AFTER_IN_OBJECT: Final = re.compile(
    rf"[ \t\r\n]*+(?:\}}|(?=[,\"'])(?:,[ \t\r\n]*+)?(?:\}}|{_KEY_AND_COLON}))", re.DOTALL
)
#: The same if the object's bracket is missing, and the array around it ends or goes on with its next object.
_AFTER_IN_OPEN_OBJECT: Final = re.compile(
    rf"[ \t\r\n]*+\][ \t\r\n]*+(?:[\]}}]|,[ \t\r\n]*+{_KEY_AND_COLON})", re.DOTALL
)
_BEGUN_AFTER_IN_OPEN_OBJECT: Final = re.compile(
    rf"[ \t\r\n]*+\][ \t\r\n]*+(?:,[ \t\r\n]*+(?:{_BEGUN_KEY}[\"']?[ \t\r\n]*+)?)?", re.DOTALL
)
_BEGUN_AFTER_IN_OBJECT: Final = re.compile(
    rf"[ \t\r\n]*+(?:(?:,[ \t\r\n]*+)?(?:{_BEGUN_KEY}[\"']?)?[ \t\r\n]*+)?", re.DOTALL
)
#: The same in an array.
_AFTER_IN_ARRAY: Final = re.compile(r"[ \t\r\n]*+(?:[\]}]|,[ \t\r\n]*+[\"'\[{\]\-\dtfnTFN])")
_BEGUN_AFTER_IN_ARRAY: Final = re.compile(r"[ \t\r\n]*+(?:,[ \t\r\n]*+)?")


#: One quote more after the last one of a string, by whether the string stands in an object.
_EXTRA_QUOTE: Final = {
    True: re.compile(rf"[ \t\r\n]*+([\"'])[ \t\r\n]*+(?:\}}|,[ \t\r\n]*+(?:\}}|{_KEY_AND_COLON}))", re.DOTALL),
    False: re.compile(r"[ \t\r\n]*+([\"'])[ \t\r\n]*+(?:[\]}]|,[ \t\r\n]*+[\"'\[{\]\-\dtfnTFN])"),
}
_BEGUN_EXTRA_QUOTE: Final = re.compile(
    rf"[ \t\r\n]*+([\"'])[ \t\r\n]*+(?:,[ \t\r\n]*+(?:{_BEGUN_KEY}[\"']?[ \t\r\n]*+)?)?", re.DOTALL
)

#: The types of JSON values that begin with these characters, and of the others.
_TYPES: Final = {
    '"': STRING,
    "{": frozenset(("object",)),
    "[": frozenset(("array",)),
    "n": frozenset(("null",)),
    **dict.fromkeys("tf", frozenset(("boolean",))),
}
_NUMBERS: Final = frozenset(("number", "integer"))


class _Level(msgspec.Struct):
    """An open bracket."""

    end: str
    types: ParameterTypes
    key: str = ""
    #: The types of the value that comes next.
    value_types: frozenset[str] = ANY
    #: The types inside of its members or items, by key.
    inside: dict[str | None, ParameterTypes] = {}


class MendedJson:
    """`types`: of the object's members. `defect` receives each fault that was mended.

    The first character fed must be a bracket.
    """

    def __init__(self, types: ParameterTypes, defect: Callable[[str], None]) -> None:
        self._types = types
        self._defect = defect
        self._reported: set[str] = set()
        self._levels: list[_Level] = []
        self._arrays = 0  # how many of them are arrays
        self._expected = _VALUE
        self._left = ""  # text that has to be looked at again with what follows
        self._gap: list[str] = []  # white space and a comma before the next token
        self._string = ""  # the quote of the open string
        self._quotes = 0  # how many quotes in it did not end it
        self._is_key = False
        self._key: list[str] = []  # the open string, if it is a key
        self._held: list[str] | None = None  # the open string, if the schema allows none
        self._word: list[str] = []  # a number or a word that may go on
        self._word_cut_off = False  # whether the output ended inside it
        self._raw: tuple[JsonEnd, list[str]] | None = None  # an object or array where the schema allows a string only
        self._keys: list[str] = []  # of the object, as JSON
        self._out: list[str] = []
        self._streams = False  # whether a string is open that is passed on as it comes
        #: The object as the model wrote it.
        self.raw: list[str] = []
        #: Whether the last bracket was read.
        self.complete = False
        self.malformed = False
        #: Whether a quote did not end its string. A string without an end may have had its end there.
        self.quotes_escaped = False

    # -- for callers --------------------------------------------------------------------------------------------------

    def goes_on(self, text: str) -> bool:
        """Take `text` if it is more of an open string as it is, which is the usual case; False if it is not."""
        if self._streams and (
            ('"' not in text and "\\" not in text and text.isprintable()) or _MATCH_PLAIN(text).end() == len(text)  # type: ignore[union-attr]
        ):
            self.raw.append(text)
            return True
        return False

    def feed(self, text: str) -> tuple[str, int]:
        """What is passed on, and the offset in `text` up to which it belongs to the object."""
        before = len(self._left)
        all_text = self._left + text if before else text
        if self._string == '"' and self._held is None and not self._is_key:  # the usual case
            at = _MATCH_PLAIN(all_text).end()  # type: ignore[union-attr]  # it matches everywhere
            if at == len(all_text) or (all_text[at] == "\\" and _OPEN_ESCAPE.fullmatch(all_text, at)):
                self._left = all_text[at:]
                self._streams = at == len(all_text)
                self.raw.append(text)
                return all_text[:at], len(text)
        out, end = self._read(all_text)
        self.raw.append(text[: end - before])
        self._streams = self._string == '"' and self._held is None and not (self._left or self._is_key)
        return out, end - before

    def _read(self, text: str) -> tuple[str, int]:
        """The same for `text`, with what was left of the text before."""
        self._left = ""
        at = 0
        while at < len(text) and not (self.complete or self.malformed):
            if self._string:
                after = self._in_string(text, at)
            elif self._raw is not None:
                after = self._in_raw(text, at)
            else:
                after = self._outside(text, at)
            if after < 0:  # not enough text
                self._left = text[at:]
                at = len(text)
            else:
                at = after
        if self.malformed:
            at = len(text)
        out, self._out = "".join(self._out), []
        return out, at

    def flush(self, *, cut_off: bool = False) -> str:
        """What is passed on if nothing follows. `cut_off`: because the output was cut off, and might have gone on."""
        out = ""
        while self._left and not (self.complete or self.malformed):
            left, self._left = self._left, ""
            if left[0] == self._string:
                self._end_string()
                out += self._read(left[1:])[0]
            else:
                self._write(quote(left)[1:-1])  # the beginning of an escape
        if self._word and not self.malformed:
            if cut_off and not is_json("".join(self._word)):
                self._out += (*self._gap, *self._word)
                self._word_cut_off = True
            else:
                self._end_word()
        if self._held is not None:  # its string has no end
            self._out += ('"', *self._held)
            self._held = None
        out += "".join(self._out)
        self._out = []
        return out

    @property
    def has_members(self) -> bool:
        return bool(self._keys)

    @property
    def in_string(self) -> bool:
        quotes = sum(match.group() == '"' for match in _QUOTE.finditer(self._left)) if self._left else 0
        return bool(self._string) != bool(quotes % 2)

    def weigh(self, text: str, at: int) -> int | None:
        """Whether a stop that ends at `at` in the unread text is inside a string: see `reading.reader.Weigh`."""
        return string_goes_on(text, at) if self.in_string and not self.malformed else -1

    def brackets(self) -> str:
        """The brackets that are missing at the end, if nothing else is; else ""."""
        if self._string or self._raw is not None or not self._keys or not self._may_end():
            return ""
        return "".join(level.end for level in reversed(self._levels))

    def closing(self) -> str:
        """The text that closes the open strings and brackets, if that makes JSON; else ""."""
        if self.malformed or self._word_cut_off or self._held is not None or self._raw is not None or self._left:
            return ""
        if self._string and self._is_key:
            return ""
        ends = "".join(level.end for level in reversed(self._levels))
        if self._string:
            return f'"{ends}'
        return ends if self._may_end() else ""

    def _may_end(self) -> bool:
        """Whether nothing but brackets is missing. A last comma was not passed on."""
        in_array = bool(self._levels) and self._levels[-1].end == "]"
        return self._expected not in (_COLON, _VALUE) or (in_array and self._expected == _VALUE)

    def as_malformed(self) -> str:
        """The rest of the object, with all of its text under `MALFORMED`.

        The members that were passed on before are taken back: each comes once more, as null.
        """
        member = f"{quote(MALFORMED)}: {quote(''.join(self.raw))}}}"
        out, keys = "", self._keys
        has_members = bool(keys) or (bool(self._string) and self._is_key and len(self._levels) == 1)
        if self._string and self._held is None:
            out = '"'
            self._expected = _COLON if self._is_key else _COMMA_OR_END
        elif len(self._levels) == 1 and self._expected in (_COLON, _VALUE):
            keys = keys[:-1]  # the last member becomes null below
        for depth in range(len(self._levels) - 1, -1, -1):
            if self._levels[depth].end == "}" and self._expected in (_COLON, _VALUE):
                out += ": null" if self._expected == _COLON else "null"
            out += self._levels[depth].end if depth else ""
            self._expected = _COMMA_OR_END
        nulls = "".join(f"{key}: null, " for key in dict.fromkeys(keys))
        return out + (", " if has_members else "") + nulls + member

    # -- strings ------------------------------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        (self._out if self._held is None else self._held).append(text)
        if self._is_key:
            self._key.append(text)

    def _mended(self, kind: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            self._defect(kind)

    def _in_string(self, text: str, at: int) -> int:
        """Read on in the open string. Returns the offset after it, or after a part of it; -1 for too little text."""
        mark = self._string
        end = _PLAIN[mark].match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
        if end > at:
            self._write(text[at:end])
            return end
        character = text[at]
        if character == "\\":
            return self._escape(text, at)
        if character == mark:
            ends = self._is_last_quote(text, at + 1)
            if ends is None:
                return -1
            if ends:
                extra = None if self._is_key else self._extra_quote(text, at + 1)
                if extra is not None:
                    self._mended("stray_quote")
                self._end_string()
                return at + 1 if extra is None else extra
            self.quotes_escaped = True
            self._quotes += 1
        if character != '"' or mark == '"':
            self._mended("unescaped_text")
        self._write(quote(character)[1:-1])
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        escape = _ESCAPE.match(text, at)
        if escape is not None:
            self._write(escape.group())
            return escape.end()
        if _OPEN_ESCAPE.fullmatch(text, at):
            return -1
        if text[at + 1] == "'":
            if self._string == '"':
                self._mended("unescaped_text")
            self._write("'")
            return at + 2
        self._mended("unescaped_text")
        self._write("\\\\")
        return at + 1

    def _is_last_quote(self, text: str, at: int) -> bool | None:
        """Whether the quote before `at` ends its string; None for too little text."""
        if self._is_key:
            return True
        in_object = self._levels[-1].end == "}"
        after, begun = (
            (_AFTER_IN_OBJECT, _BEGUN_AFTER_IN_OBJECT) if in_object else (_AFTER_IN_ARRAY, _BEGUN_AFTER_IN_ARRAY)
        )
        limit = at + _FARTHEST
        if self._extra_quote(text, at) is not None:
            return self._quotes % 2 == 0
        if len(text) < limit and (match := _BEGUN_EXTRA_QUOTE.fullmatch(text, at, limit)) and match[1] == self._string:
            return None
        if after.match(text, at, limit):
            return True
        if begun.fullmatch(text, at, limit):
            return True if len(text) >= limit else None
        if in_object and self._arrays:
            if _AFTER_IN_OPEN_OBJECT.match(text, at, limit):
                return True
            if len(text) < limit and _BEGUN_AFTER_IN_OPEN_OBJECT.fullmatch(text, at, limit):
                return None
        return False

    def _extra_quote(self, text: str, at: int) -> int | None:
        """The offset after a quote too many behind the quote before `at`; None if there is none."""
        match = _EXTRA_QUOTE[self._levels[-1].end == "}"].match(text, at, at + _FARTHEST)
        return match.end(1) if match is not None and match[1] == self._string else None

    def _end_string(self) -> None:
        self._string = ""
        held, self._held = self._held, None
        if held is not None:
            self._out.append(self._converted("".join(held)))
            self._expected = _COMMA_OR_END
            return
        self._out.append('"')
        self._expected = _COMMA_OR_END
        if self._is_key:
            self._is_key, key, self._key = False, "".join(self._key), []
            self._open_member(self._levels[-1], key)

    def _open_member(self, level: _Level, key: str) -> None:
        """A key was read, whose text as JSON is `key`."""
        if len(self._levels) == 1:
            self._keys.append(f'"{key}"')
        level.key = key if "\\" not in key else json.loads(f'"{key}"')
        level.value_types = level.types[level.key]
        self._expected = _COLON

    def _converted(self, inside: str) -> str:
        """A string where the schema has other types only: the value that it holds, if that is of one of them."""
        types = self._levels[-1].value_types
        text = json.loads(f'"{inside}"').strip()
        for value in (text, from_python(text)):
            if value and _TYPES.get(value[0], _NUMBERS) & types and is_json(value):
                self._mended("mistyped_value")
                return value
        return f'"{inside}"'

    # -- outside of strings -------------------------------------------------------------------------------------------

    def _outside(self, text: str, at: int) -> int:
        if self._word:
            return self._in_word(text, at)
        end = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
        if end > at:
            self._gap.append(text[at:end])
            return end
        character = text[at]
        match character:
            case '"' | "'" if self._expected == _COLON:
                self._mended("stray_quote")
            case '"' | "'":
                self._begin_string(character)
            case "{" | "[":
                return self._open(character, at)
            case "}" | "]":
                self._close(character)
            case ",":
                if self._expected == _COMMA_OR_END:
                    self._gap.append(",")
                    self._expected = _KEY if self._levels[-1].end == "}" else _VALUE
                elif self._expected in (_COLON, _VALUE) and self._levels[-1].end == "}":
                    self.malformed = True
                else:
                    self._mended("stray_separator")
            case ":" if self._expected == _COLON:
                self._take_gap()
                self._out.append(":")
                self._expected = _VALUE
            case _ if _WORD.match(character):
                return self._in_word(text, at)
            case _:
                self.malformed = True
        return at + 1

    def _take_gap(self) -> None:
        self._out += self._gap
        self._gap = []

    def _next_token(self) -> bool:
        """A key or a value begins. False if neither can."""
        if self._expected == _COMMA_OR_END:
            self._mended("missing_comma")
            self._gap = [", "]
            self._expected = _KEY if self._levels[-1].end == "}" else _VALUE
        if self._expected == _COLON:
            self.malformed = True
            return False
        self._take_gap()
        return True

    def _begin_string(self, mark: str) -> None:
        self._next_token()
        if mark == "'":
            self._mended("python_value")
        self._is_key = self._expected in (_KEY, _KEY_OR_END)
        self._string, self._quotes = mark, 0
        if not self._is_key and "string" not in self._levels[-1].value_types:
            self._held = []
        else:
            self._out.append('"')

    def _open(self, bracket: str, at: int) -> int:
        if self._expected == _KEY_OR_END and len(self._levels) == 1 and bracket == "{":
            self._mended("stray_bracket")
            return at + 1
        types = self._types
        if self._levels:
            level = self._levels[-1]
            if self._at_key() or not self._next_token():
                self.malformed = True
                return at
            if level.value_types == STRING:
                self._raw = JsonEnd(), []
                return at
            types = self._inside(level)
        if len(self._levels) == _DEEPEST:
            self.malformed = True
            return at
        self._out.append(bracket)
        self._arrays += bracket == "["
        level = _Level("}" if bracket == "{" else "]", types)
        if bracket == "[":
            level.value_types = types.of_items()
        self._levels.append(level)
        self._expected = _KEY_OR_END if bracket == "{" else _VALUE_OR_END
        return at + 1

    def _inside(self, level: _Level) -> ParameterTypes:
        """The types inside of the value that comes next in `level`."""
        key = level.key if level.end == "}" else None
        inside = level.inside.get(key)
        if inside is None:
            inside = level.inside[key] = level.types.inside(key)
        return inside

    def _close(self, bracket: str) -> None:
        if self._expected == _COLON or (self._expected == _VALUE and self._levels[-1].end == "}"):
            self.malformed = True
            return
        if not (self._arrays if bracket == "]" else len(self._levels) - self._arrays):
            self._mended("stray_bracket")
            return
        if "," in self._gap:
            self._mended("stray_separator")
            self._gap = [text for text in self._gap if text != ","]
        self._take_gap()
        while self._levels[-1].end != bracket:
            self._mended("missing_bracket")
            self._close_level()
        self._close_level()
        self._expected = _COMMA_OR_END
        self.complete = not self._levels

    def _close_level(self) -> None:
        end = self._levels.pop().end
        self._arrays -= end == "]"
        self._out.append(end)

    def _in_raw(self, text: str, at: int) -> int:
        """Read on in an object or an array that is meant as a string."""
        assert self._raw is not None
        end, pieces = self._raw
        length = end.feed(text[at:])
        pieces.append(text[at:] if length is None else text[at : at + length])
        if length is None:
            return len(text)
        self._raw = None
        self._mended("mistyped_value")
        self._out.append(quote("".join(pieces)))
        self._expected = _COMMA_OR_END
        return at + length

    def _in_word(self, text: str, at: int) -> int:
        match = _WORD.match(text, at)
        end = at if match is None else match.end()
        self._word.append(text[at:end])
        if end < len(text):
            self._end_word()
        return end

    def _end_word(self) -> None:
        word, self._word = "".join(self._word), []
        if self._at_key():
            self._next_token()
            self._mended("unquoted_key")
            self._out.append(quote(word))
            self._open_member(self._levels[-1], quote(word)[1:-1])
            return
        types = self._levels[-1].value_types
        kind = ""
        if word in PYTHON_WORDS:
            kind, word = "python_value", PYTHON_WORDS[word]
        if word in _NAMES or _NUMBER.fullmatch(word):
            if types == STRING and word != "null":
                kind, word = "mistyped_value", quote(word)
        elif "string" in types and _BARE.fullmatch(word) and word.lower() not in ("nan", "infinity"):
            kind, word = "unquoted_value", quote(word)
        else:
            self.malformed = True
            return
        if self._next_token():
            if kind:
                self._mended(kind)
            self._out.append(word)
            self._expected = _COMMA_OR_END

    def _at_key(self) -> bool:
        """Whether what comes next, if anything may, is a key."""
        return self._expected in (_KEY, _KEY_OR_END) or (
            self._expected == _COMMA_OR_END and self._levels[-1].end == "}"
        )
