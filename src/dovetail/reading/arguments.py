"""The arguments of one call that the model writes as JSON. They are mended, and passed on at once."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring as quote
from typing import TypeAlias

from dovetail.reading.json_end import JsonEnd
from dovetail.reading.json_mending import MendedJson
from dovetail.reading.json_text import WHITESPACE, is_json
from dovetail.reading.reader import MALFORMED
from dovetail.reading.values import WRAPPERS, ParameterTypes

_SPACE = f"[{WHITESPACE}]{{0,16}}"
_KEY = r'[^"\\]{0,128}'
#: Keys under which a whole call, in place of its arguments, has its name.
_NAMES = ("name", "function", "tool_name", "tool")
_NAMED = re.compile(rf'\{{{_SPACE}"({"|".join(_NAMES)})"{_SPACE}:')
#: Arguments in a wrapper: a name before it, its key, the inner bracket, and the first key after that.
_WRAPPED = re.compile(
    rf'(?:{_NAMED.pattern}{_SPACE}"({_KEY})"{_SPACE},|\{{){_SPACE}'
    rf'"({"|".join(WRAPPERS)})"{_SPACE}:{_SPACE}(\{{){_SPACE}(?:"({_KEY})"{_SPACE}:|\}})'
)


def beginnings(parts: Sequence[str]) -> str:
    """A pattern for every beginning of what `parts` match one after another."""
    return functools.reduce(lambda rest, part: f"(?:{part}{rest})?", reversed(parts), "")


_MAY_BE_WRAPPED = re.compile(
    "|".join(
        beginnings((r"\{", _SPACE, *before, '"', *key, '"', _SPACE, ":", _SPACE, r"\{", _SPACE, '"', _KEY, '"', _SPACE))
        for key in WRAPPERS
        for before in (
            (),
            *(('"', *name, '"', _SPACE, ":", _SPACE, '"', _KEY, '"', _SPACE, ",", _SPACE) for name in _NAMES),
        )
    )
)
#: Called as ``unwraps(key, first, named)``: see `JsonArguments`.
Unwraps: TypeAlias = Callable[[str, str, tuple[str, str] | None], bool]
#: What models write in place of arguments that there are none of.
_NONE = ("", "null", "None")


class JsonArguments:
    """Splits the text after a call's header into JSON fragments to pass on, and the text after the JSON.

    `types`: of the tool's parameters. `mended` receives the kind of each fault that was mended.
    `unwraps`: whether arguments `{"KEY": {"FIRST": …}}` are the inner object, because the tool has no parameter KEY but
    one called FIRST ("" for an empty object). It is asked if KEY is one of `WRAPPERS`. `named` are the key and the name
    before it, if it is a whole call: `{"name": "ping", "arguments": {"FIRST": …}}`.
    """

    def __init__(
        self,
        types: ParameterTypes | None = None,
        mended: Callable[[str], None] = lambda kind: None,
        unwraps: Unwraps | None = None,
    ) -> None:
        self._types = types or ParameterTypes(None)
        self._mended = mended
        self._unwraps = unwraps
        self._raw: list[str] = []
        self._json: MendedJson | None = None
        self._list: JsonEnd | None = None  # finds the end of a list, which is malformed
        self._other = False  # whether the arguments are not even a list
        self._begun = ""  # the beginning of the arguments, until it is known whether they are wrapped
        self._wrapped = False  # whether they are
        self._unwrapped = False  # whether the inner object has ended
        self.complete = False  # whether the closing bracket was read
        #: Whether they are an empty object. Its bracket is held back, because the real arguments may follow.
        self.empty_object = False
        #: See `MendedJson.goes_on`.
        self.goes_on: Callable[[str], bool] = self._no

    def feed(self, text: str) -> tuple[str, str]:
        """(fragment, rest): the next piece of the arguments, and the text after their closing bracket."""
        if self.complete:
            return "", text
        if self._unwrapped:
            return "", self._after_inner(text)
        if self._json is None and self._list is None and not self._other:
            text = self._beginning(text)
            if not text:
                return "", ""
        fragment, end = "", None
        if self._json is not None:
            fragment, at = self._json.feed(text)
            if not self._json.complete:
                return fragment, ""
            end = at
        else:
            # A value without brackets (null, a string, nonsense) lasts until the call's end marker.
            end = self._list.feed(text) if self._list is not None else None
            self._raw.append(text[:end])
        if end is None:
            return fragment, ""
        if self._wrapped:
            self._unwrapped = True
            return fragment, self._after_inner(text[end:])
        self.complete = True
        self.empty_object = self._json is not None and not self._json.has_members
        return fragment[:-1] if self.empty_object else fragment, text[end:]

    def takes(self, key: str) -> bool:
        """Whether the tool has a parameter of this name."""
        return self._types.declares(key)

    def reopen(self) -> None:
        """The empty object was not the arguments: an object follows whose first bracket was read."""
        self.complete = self.empty_object = False
        self._begin_json().feed("{")

    def _no(self, text: str) -> bool:
        return False

    def _beginning(self, text: str) -> str:
        """The beginning of the arguments, with `text`; "" while it is open what belongs to it."""
        text = self._begun + text if self._begun else text.lstrip(WHITESPACE)
        if text[:1] == "[":
            self._list = JsonEnd()
        elif text[:1] != "{":
            self._other = bool(text)
        else:
            if self._unwraps is not None and (match := _WRAPPED.match(text)):
                named = None if match[1] is None else (match[1], match[2])
                self._wrapped = self._unwraps(match[3], match[5] or "", named)
                if self._wrapped:
                    text = text[match.start(4) :]
            elif self._unwraps is not None and _MAY_BE_WRAPPED.fullmatch(text) and self._may_be_named(text):
                self._begun = text
                return ""
            self._begin_json()
        return text

    def _may_be_named(self, text: str) -> bool:
        """Whether the key that `text` begins with may name the call, and is no parameter of the tool."""
        match = _NAMED.match(text)
        return match is None or self._types.excludes(match[1])

    def _begin_json(self) -> MendedJson:
        self._json = MendedJson(self._types, self._mended)
        self.goes_on = self._json.goes_on
        return self._json

    def _after_inner(self, text: str) -> str:
        """The text after the bracket that closes the wrapper."""
        text = text.lstrip(WHITESPACE)
        self.complete = bool(text)
        return text.removeprefix("}")

    def flush(self, *, cut_off: bool = False) -> str:
        """What is passed on if nothing follows; nothing can be fed after it. `cut_off`: see `MendedJson.flush`."""
        if self.empty_object:
            self.empty_object = False
            return "}"
        if self._begun and self._json is None:
            mended = self._begin_json()
            return mended.feed(self._begun)[0] + mended.flush(cut_off=cut_off)
        if self._json is None and cut_off:
            return self.raw
        fragment = self._json.flush(cut_off=cut_off) if self._json is not None else ""
        if self._json is not None and self._json.complete:
            self._unwrapped, self.complete = self._wrapped, self.complete or not self._wrapped
        return fragment

    def weigh(self, text: str, at: int) -> int | None:
        """Whether a stop that ends at `at` in the unread text is inside a string: see `reading.reader.Weigh`."""
        finder = self._json or self._list
        return -1 if finder is None or self.complete else finder.weigh(text, at)

    @property
    def raw(self) -> str:
        """The arguments as the model wrote them."""
        return "".join(self._raw if self._json is None else self._json.raw)

    @property
    def empty(self) -> bool:
        return self._json is None and self.raw.strip(WHITESPACE) in _NONE

    def valid(self) -> bool:
        """Whether the fragments together are a JSON object."""
        return self._json is not None and (self.complete or self._unwrapped) and not self.malformed

    @property
    def malformed(self) -> bool:
        """Whether they begin as an object, and cannot be one any more."""
        return self._json is not None and self._json.malformed

    @property
    def broken(self) -> bool:
        """Whether they may be no object, whatever comes."""
        quotes_escaped = self._json is not None and self._json.quotes_escaped
        return self._other or self._list is not None or self.malformed or quotes_escaped

    def brackets(self) -> str:
        """The brackets that are missing, if nothing else is; else ""."""
        return self._json.brackets() if self._json is not None and not self.malformed else ""

    def closing(self) -> str:
        """The text that closes the open strings and brackets, if that makes the fragments an object; else ""."""
        return self._json.closing() if self._json is not None else ""

    def held(self) -> tuple[str, str] | None:
        """The object that the arguments hold, if they are a string or a list of nothing else; after its defect."""
        raw = self.raw
        if raw.startswith('"') and is_json(raw):
            kind, inside = "string_arguments", json.loads(raw)
        elif raw.startswith("["):
            kind, inside = "stray_bracket", raw[1:].removesuffix("]")
        else:
            return None
        kinds: list[str] = []
        inner = JsonArguments(self._types, kinds.append, self._unwraps)
        fragment, rest = inner.feed(inside)
        fragment += inner.flush()
        if rest.strip(WHITESPACE + ",") or not inner.valid():
            return None
        for mended in kinds:
            self._mended(mended)
        return kind, fragment

    def as_malformed(self) -> str:
        """The text that makes the fragments an object which says that the call cannot be read, and holds its text."""
        if self._json is not None:
            return self._json.as_malformed()
        return malformed(self.raw)


def malformed(raw: str) -> str:
    """The arguments of a call that cannot be read and has this text in their place."""
    return f"{{{quote(MALFORMED)}: {quote(raw)}}}"
