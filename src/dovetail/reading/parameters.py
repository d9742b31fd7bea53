"""`Parameters`: turns a call's parameters, which come one after another, into one JSON object.

1. `open` a parameter. This writes the key, and returns a function that takes the value's text in any pieces.
2. `close` the parameter. A string has been written piece by piece; any other value is written now.
3. `end` the object, or `cut` it if the output is over.

`members` is the reverse: it takes a JSON object apart.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring as quote
from typing import Any

from dovetail.reading.json_mending import MendedJson
from dovetail.reading.json_prefix import LONGEST_SCALAR, JsonPrefix
from dovetail.reading.json_text import WHITESPACE, closing, is_json
from dovetail.reading.python_text import from_python
from dovetail.reading.values import ANY, NULL, STRING, ParameterTypes

_WORDS = {"null": ("null",), "boolean": ("true", "false")}
_BRACKETS = {"object": "{", "array": "["}


class Parameters:
    """Writes one call's arguments. `emit` receives the fragments, `defect` each fault that was forgiven.

    The schema decides which values are strings, unless `open` receives the types. A value that may be a string or
    something else is buffered as long as it may become something else.
    """

    def __init__(self, types: ParameterTypes, emit: Callable[[str], None], defect: Callable[[str, str], None]) -> None:
        self._types_of = types
        self._emit = emit
        self._defect = defect
        self._keys: set[str] = set()
        self._key = ""
        self._types = STRING
        #: The types that the text of the open value is compared with while it comes.
        self._weighed = STRING
        #: The types that the tool's schema allows for the open value.
        self._allowed = STRING
        #: Whether the open value is declared a string, which the tool's schema does not allow.
        self._mistyped = False
        #: What comes before the open value, if it may be an object of all the call's arguments.
        self._head = ""
        #: The open value, if it is not known to be a string.
        self._buffered: list[str] | None = None
        #: Follows the buffered value, if it begins like an object or an array.
        self._bracket: JsonPrefix | None = None
        #: How many buffered pieces `in_json_string` has followed.
        self._followed = 0
        self._in_string = False

    def declares(self, key: str) -> bool:
        """Whether the tool's schema says what type the parameter has."""
        return self._types_of[key] != ANY

    def excludes(self, key: str) -> bool:
        """Whether the tool certainly has no parameter of this name."""
        return self._types_of.excludes(key)

    def lacks(self, key: str, *, required: bool) -> bool:
        """Whether the tool has a parameter of this name, or requires one, and it has not come yet."""
        known = key in self._types_of.required if required else self._types_of.declares(key)
        return known and key not in self._keys

    def open(self, key: str, types: frozenset[str] | None = None) -> Callable[[str], None]:
        """Begin a parameter, and return a function that takes its value.

        `types` overrides the schema's. But where one of them is `STRING` and the other has no strings, the schema's
        counts: a text is of one of its types if it can be, and a value that must be a string is its own text.
        """
        schema = self._types_of[key]
        self._key = key
        self._allowed = schema
        self._types = self._weighed = schema if types is None else types
        self._mistyped = self._types == STRING and "string" not in schema
        if self._mistyped:
            self._weighed = schema | STRING
        if self._types_of.is_wrapper(key):
            self._weighed |= {"object"}
            self._head = self._new_member(key)
        elif self._weighed == STRING:
            self._in_string = True
            self._emit(self._new_member(key) + '"')
            return self._stream
        else:
            self._emit(self._new_member(key))
        begin = self._begin_buffer()
        return self._weigh_text if self._must_be_text else begin

    def _new_member(self, key: str) -> str:
        """The JSON before the value of a parameter."""
        head = f"{', ' if self._keys else '{'}{quote(key)}: "
        if key in self._keys:
            self._defect("duplicate_parameter", key)
        self._keys.add(key)
        return head

    def begin(self, head: str, key: str, types: frozenset[str]) -> Callable[[str], None]:
        """Begin the value of `key` after `head`, which may be any part of the arguments. Returns as `open` does."""
        self._key = key
        self._types = self._weighed = self._allowed = types
        self._mistyped = False
        if types == STRING:
            self._in_string = True
            self._emit(head + '"')
            return self._stream
        self._emit(head)
        return self._begin_buffer()

    def _begin_buffer(self) -> Callable[[str], None]:
        self._buffered = []
        self._bracket = None
        self._followed = 0
        return self._weigh if "string" in self._weighed else self._buffered.append

    def close(self) -> None:
        """End the open parameter."""
        if self._buffered is not None:
            text, self._buffered = "".join(self._buffered), None
            if not self._unwrap(text):
                self._emit(self._take_head() + self._value(text))
        else:
            self._in_string = False
            self._emit('"')

    def _take_head(self) -> str:
        head, self._head = self._head, ""
        return head

    def _unwrap(self, text: str) -> bool:
        """Write the members of `text`, an object of the tool's own parameters under a key that is not a parameter."""
        if not self._head or not text.lstrip(WHITESPACE).startswith("{") or not is_json(text):
            return False
        inner = [*_raw_members(text)]
        if not all(self._types_of.declares(key) for key, _, _ in inner):
            return False
        self._defect("wrapped_arguments", self._key)
        self._keys.discard(self._key)
        self._head = ""
        for key, _, value in inner:
            self._emit(self._new_member(key) + value)
        return True

    @property
    def unfinished(self) -> bool:
        """Whether a parameter is open, or none has begun."""
        return self._in_string or self._buffered is not None or not self._keys

    @property
    def has_required(self) -> bool:
        """Whether the tool requires parameters, and the ones so far are all of these."""
        required = self._types_of.required
        return bool(required) and required <= self._keys

    @property
    def _must_be_text(self) -> bool:
        """Whether the open value is declared to be no string, although the tool's schema has strings only.

        A null stays one, because it is what models write for no value.
        """
        return self._allowed == STRING and "string" not in self._types and self._types != NULL

    @property
    def is_text(self) -> bool:
        """Whether the open value may be a string, so that its text has no grammar of its own."""
        return self._buffered is None or "string" in self._weighed or self._must_be_text

    @property
    def in_json_string(self) -> bool:
        """Whether the open value cannot be a string and is, so far, JSON that ends inside a JSON string."""
        if self._buffered is None or "string" in self._types:
            return False
        fresh = "".join(self._buffered[self._followed :])
        self._followed = len(self._buffered)
        if self._bracket is None:
            fresh = fresh.lstrip(WHITESPACE)
            if fresh[:1] not in ("{", "["):
                return False
            self._bracket = JsonPrefix()
        self._bracket.feed(fresh)
        return self._bracket.in_string

    @property
    def empty(self) -> bool:
        """Whether no parameter has begun."""
        return not self._keys

    @property
    def only_key(self) -> str:
        """The tool's parameter, if it has one only and that has not begun; else ""."""
        keys = self._types_of.own_keys()
        return keys[0] if len(keys) == 1 and not self._keys else ""

    def begins_key(self, text: str) -> bool:
        """Whether `text` is the beginning of a parameter's name."""
        return any(key.startswith(text.strip()) for key in self._types_of.own_keys())

    def end(self) -> None:
        """End the object."""
        self._emit("}" if self._keys else "{}")

    def cut(self) -> str:
        """Write the buffered value as it is. Returns the text that would complete the JSON, or "" if there is none."""
        if self._buffered is None:
            return '"}' if self._in_string else "}" if self._keys else ""
        text, self._buffered = "".join(self._buffered), None
        if self._head:
            self._emit(self._take_head())
        if "string" in self._types and text and self._bracket is None and not self._is_value(text):
            self._emit('"' + quote(text)[1:-1])
            return '"}'
        if text := text.strip(WHITESPACE):
            self._emit(text)
        rest = closing(text)
        return "" if rest is None else rest + "}"

    # -- one value ----------------------------------------------------------------------------------------------------

    def _stream(self, text: str) -> None:
        self._emit(quote(text)[1:-1])

    def _weigh(self, text: str) -> None:
        """Take the text of a value that may be a string or something else."""
        buffered = self._buffered
        if buffered is None:
            self._stream(text)
            return
        buffered.append(text)
        if self._bracket is not None:
            if self._bracket.feed(text):
                return
            text = "".join(buffered)
        else:
            text = "".join(buffered)
            begun = text.lstrip(WHITESPACE)
            if len(text) - len(begun) <= LONGEST_SCALAR:
                if begun and self._mistyped and begun[0] == '"':
                    return
                if begun and begun[0] in _brackets(self._weighed):
                    self._bracket = JsonPrefix()
                    if self._bracket.feed(begun):
                        return
                elif len(text) <= LONGEST_SCALAR and _scalar(self._weighed)(begun):
                    return
        self._buffered = None
        self._in_string = True
        self._emit(self._take_head() + '"' + quote(text)[1:-1])

    def _weigh_text(self, text: str) -> None:
        """Take the text of a value that must be a string. It is in quotes, or is the string itself."""
        if self._buffered is None:
            self._stream(text)
            return
        self._buffered.append(text)
        text = "".join(self._buffered)
        begun = text.lstrip(WHITESPACE)
        if begun[:1] == '"' or (not begun and len(text) <= LONGEST_SCALAR):
            return
        self._buffered = None
        self._in_string = True
        self._defect("mistyped_value", self._key)
        self._emit('"' + quote(text)[1:-1])

    def _value(self, text: str) -> str:
        """The JSON of a value that was buffered to its end."""
        value = text.strip(WHITESPACE)
        if self._types == STRING:
            if self._mistyped and self._is_value(text):
                self._defect("mistyped_value", self._key)
                return value
            return self._unquoted(value) or quote(text)
        if "string" in self._types:
            # A value that may be a string is one if it is nothing else.
            return value if self._is_value(text) else quote(text)
        if unquoted := self._unquoted(value):
            return unquoted
        if is_json(value):
            return value
        if self._must_be_text:
            self._defect("mistyped_value", self._key)
            return quote(text)
        word = _WORDS_IN_ANY_CASE.get(value.lower(), "") if len(value) <= LONGEST_SCALAR else ""
        python = word or from_python(value)
        for kind, repaired in (("python_value", python), ("escaped_value", _unescaped(value))):
            if is_json(repaired):
                self._defect(kind, self._key)
                return repaired
        if mended := self._mended(value):
            return mended
        self._defect("invalid_value", self._key)
        return quote(text)

    def _mended(self, value: str) -> str:
        """An object or an array that is JSON but for what `MendedJson` mends; "" for any other value."""
        if value[:1] not in ("{", "[") or value[0] not in _brackets(self._types):
            return ""
        kinds: list[str] = []
        json_value = MendedJson(self._types_of.inside(self._key), kinds.append)
        mended, end = json_value.feed(value)
        mended += json_value.flush()
        if not json_value.complete and not json_value.in_string and (brackets := json_value.closing()):
            kinds.append("missing_bracket")
            mended += brackets
        if rest := value[end:].strip(WHITESPACE):
            kinds.append("stray_bracket")
        if rest.strip("}]" + WHITESPACE) or not is_json(mended):
            return ""
        for kind in kinds:
            self._defect(kind, self._key)
        return mended

    def _is_value(self, text: str) -> bool:
        text = text.strip(WHITESPACE)
        return (self._bracket is not None or bool(text and _scalar(self._weighed)(text))) and is_json(text)

    def _unquoted(self, value: str) -> str:
        """What a value in quotes holds, if that is of a type of the tool's schema, which has no strings; else ""."""
        if "string" in self._allowed or len(value) < 2 or not value[0] == value[-1] == '"':
            return ""
        for text in (_unescaped(value[1:-1]), value[1:-1]):
            for inner in (text.strip(WHITESPACE), from_python(text.strip(WHITESPACE))):
                if inner and (inner[0] in _brackets(self._allowed) or _scalar(self._allowed)(inner)) and is_json(inner):
                    self._defect("mistyped_value", self._key)
                    return inner
        return ""


@functools.cache
def _brackets(types: frozenset[str]) -> str:
    return "".join(bracket for kind, bracket in _BRACKETS.items() if kind in types)


@functools.cache
def _scalar(types: frozenset[str]) -> Callable[[str], Any]:
    """A function that tells whether a text is, or may become, a number, a boolean or null, if `types` has these."""
    space = f"[{WHITESPACE}]*"
    patterns = []
    for kind, words in _WORDS.items():
        for word in words if kind in types else ():
            patterns.append("|".join(word[:end] for end in range(len(word))) + f"|{word}{space}")
    if "number" in types:
        patterns.append(rf"-?(?:0|[1-9][0-9]*)?(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?{space}")
    elif "integer" in types:
        patterns.append(rf"-?(?:0|[1-9][0-9]*)?{space}")
    return re.compile("|".join(patterns) or "(?:)").fullmatch


# -- near-misses ------------------------------------------------------------------------------------------------------

_WORDS_IN_ANY_CASE = {"true": "true", "false": "false", "none": "null", "null": "null"}


def _unescaped(text: str) -> str:
    """JSON text that was escaped once too often, without the extra escapes; "" if it was not."""
    try:
        decoded = str(json.loads(f'"{text}"', strict=False))
        decoded.encode()
    except ValueError:  # also raised for a lone surrogate
        return ""
    return decoded


# -- the reverse ------------------------------------------------------------------------------------------------------

_SCAN = json.JSONDecoder(parse_int=len, parse_float=len)  # a number's value does not matter
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_NEXT = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")


def members(arguments: str) -> Iterator[tuple[str, str, bool]]:
    """(key, value, whether the value is a string) of each member of a JSON object.

    A string is decoded; any other value is its JSON text. Raises `ValueError` if `arguments` is no JSON object.
    """
    for key, value, raw in _raw_members(arguments):
        yield key, value if isinstance(value, str) else raw, isinstance(value, str)


def _raw_members(arguments: str) -> Iterator[tuple[str, Any, str]]:
    """The key, the value and the value's JSON text of each member, as `members` does."""
    if not isinstance(_SCAN.decode(arguments), dict):
        raise ValueError("the arguments are not a JSON object")
    at = _NEXT.match(arguments, arguments.index("{") + 1).end()  # type: ignore[union-attr]  # it matches everywhere
    while arguments[at] != "}":
        key, at = _SCAN.raw_decode(arguments, at)
        at = _COLON.match(arguments, at).end()  # type: ignore[union-attr]  # the object was parsed above
        value, end = _SCAN.raw_decode(arguments, at)
        yield key, value, arguments[at:end]
        at = _NEXT.match(arguments, end).end()  # type: ignore[union-attr]
