"""`Traced`: a string that knows which of its characters came from the request and which from the chat template.

It keeps user text from becoming a control token: a control token's literal in a rendered prompt is a control token only
if the template wrote every character of it. To a template, a traced string is an ordinary string. Its slices, sums and
replacements are traced too; the result of any other operation counts as the request's text.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

from markupsafe import Markup


class Traced(str):
    """Text of the request. Its subclass `Mixture` also contains text of the template, as plain strings."""

    __slots__ = ()

    def __str__(self) -> str:
        return self  # Jinja calls str() on everything that it prints

    def __add__(self, other: str) -> Traced:
        if isinstance(other, Markup):  # a Markup escapes the string that it is added to
            return NotImplemented
        return Mixture.of(str.__add__(self, other), (self, other))

    def __radd__(self, other: str) -> Traced:
        return Mixture.of(str.__add__(other, self), (other, self))

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self._cut(start, max(start, stop))
            return Traced(str.__getitem__(self, key))
        at = range(len(self))[operator.index(key)]
        return self._cut(at, at + 1)

    def __iter__(self) -> Iterator[str]:
        return (self._cut(at, at + 1) for at in range(len(self)))

    def strip(self, chars: str | None = None, /) -> str:
        start = len(self) - len(str.lstrip(self, chars))
        return self._cut(start, start + len(str.strip(self, chars)))

    def lstrip(self, chars: str | None = None, /) -> str:
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        return self._cut(len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> str:
        return self._cut(0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = zip(str.splitlines(self), self._located(str.splitlines(self, True), ""), strict=True)
        return [line if keepends else line[: len(bare)] for bare, line in lines]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        head, separator, tail = self._located(str.partition(self, sep), "")
        return head, separator, tail

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        head, separator, tail = self._located(str.rpartition(self, sep), "")
        return head, separator, tail

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return Traced(str.replace(self, old, new, count))
        parts = self.split(old, count)
        return joined(piece for i, part in enumerate(parts) for piece in ((new, part) if i else (part,)))

    def join(self, parts: Iterable[str], /) -> str:
        return joined(piece for i, part in enumerate(parts) for piece in ((self, part) if i else (part,)))

    def _cut(self, start: int, stop: int) -> str:
        return Traced(str.__getitem__(self, slice(start, stop)))

    def _located(self, parts: Iterable[str], between: str | None) -> list[str]:
        """`parts` of this string, traced. They are in order, with `between` (None: whitespace) after each."""
        return list(map(Traced, parts))


#: A sum copies the pieces of an operand with at most this many, and refers to the list of a longer one.
_MAX_COPIED = 32


class Mixture(Traced):
    """A sequence of pieces: plain strings are the template's text, `Traced` strings the request's.

    The pieces are in nested lists, so that a template may append to a long text many times in linear time.
    """

    __slots__ = ("_flat", "_nested")
    _nested: list[Any]  # pieces, and lists like this one
    _flat: bool

    def __new__(cls, text: str = "") -> Mixture:
        """`text` as the request's, for code that calls ``type(string)(text)``."""
        return cls.of(text, [Traced(str.__str__(text))])

    @classmethod
    def of(cls, text: str, parts: Iterable[str]) -> Mixture:
        """`text`, which is the concatenation of `parts`."""
        mixture = str.__new__(cls, text)
        nested: list[Any] = []
        mixture._nested = nested
        flat = True
        for part in parts if text else (Traced(),):
            if type(part) is not Mixture:
                nested.append(part)
            elif len(part._nested) <= _MAX_COPIED:
                nested += part._nested
                flat = flat and part._flat
            else:  # a reference to `part` itself would keep every intermediate sum in memory
                nested.append(part._nested)
                flat = False
        mixture._flat = flat
        return mixture

    @property
    def pieces(self) -> list[str]:
        if not self._flat:
            self._nested = _flattened(self._nested)
            self._flat = True
        return self._nested

    def _cut(self, start: int, stop: int) -> str:
        cut: list[str] = []
        at = 0
        for piece in self.pieces:
            if at < stop and start < at + len(piece):
                cut.append(piece[max(0, start - at) : stop - at])
            at += len(piece)
        return joined(cut)

    def _located(self, parts: Iterable[str], between: str | None) -> list[str]:
        cuts: list[str] = []
        at = 0
        for part in parts:
            if between is None:
                at = self.index(part, at)  # the part does not begin with whitespace
            cuts.append(self._cut(at, at + len(part)))
            at += len(part) + len(between or "")
        return cuts


def _flattened(nested: list[Any]) -> list[str]:
    """The strings in nested lists, in order. Not recursive, because the lists may be nested deeply."""
    flat: list[str] = []
    open_lists = [iter(nested)]
    while open_lists:
        for item in open_lists[-1]:
            if type(item) is list:
                open_lists.append(iter(item))
                break
            flat.append(item)
        else:
            open_lists.pop()
    return flat


def _untraced(name: str) -> Any:
    plain = getattr(str, name)

    def method(self: Traced, *arguments: Any, **named: Any) -> Traced:
        return Traced(plain(self, *arguments, **named))

    method.__name__ = name
    return method


# The results of all other methods that return a string count as the request's text.
for _name in (
    "capitalize casefold center expandtabs format format_map ljust lower rjust swapcase title translate upper zfill "
    "__format__ __mod__ __rmod__ __mul__ __rmul__"
).split():
    setattr(Traced, _name, _untraced(_name))


def joined(parts: Iterable[str]) -> str:
    """The concatenation of `parts`, of which plain strings are the template's text."""
    listed = list(parts)
    text = "".join(listed)
    for part in listed:
        if type(part) is not str:
            return Mixture.of(text, listed)
    return text


class Escaping(Markup):
    """The result of the filters `safe` and `escape`: a string that escapes the strings that it is added to.

    `traced` is the same text as a traced string. The results of other methods count as the request's text.
    """

    __slots__ = ("traced",)
    traced: str

    def __new__(cls, text: Any = "", traced: str | None = None) -> Escaping:
        made = super().__new__(cls, text)
        made.traced = Traced(str.__str__(made)) if traced is None else traced
        return made

    @classmethod
    def of(cls, text: str) -> Escaping:
        """`text` without escaping."""
        return cls(str.__str__(text), text)

    @classmethod
    def escaped(cls, text: str) -> Escaping:
        """`text`, escaped unless it is escaped already."""
        if isinstance(text, Escaping):
            return text
        pieces = text.pieces if isinstance(text, Mixture) else [text]
        return cls.of(joined(type(piece)(Markup.escape(piece)) for piece in pieces))

    def __add__(self, other: Any) -> Escaping:
        return Escaping.of(joined((self.traced, Escaping.escaped(other).traced)))

    def __radd__(self, other: Any) -> Escaping:
        return Escaping.of(joined((Escaping.escaped(other).traced, self.traced)))

    def __iter__(self) -> Iterator[str]:
        return iter(Traced(str.__str__(self)))

    def unescape(self) -> str:
        return Traced(super().unescape())

    def striptags(self) -> str:
        return Traced(super().striptags())


def alternating(text: str, controls: re.Pattern[str]) -> list[str]:
    """`text` split at the control tokens that the template wrote: text, control token, text, …

    `controls` matches the literals of control tokens as its only group.
    """
    alternating: list[str] = []
    open_text: list[str] = []  # the text after the last control token
    template_text: list[str] = []  # the template's pieces since the request's last piece
    splits: dict[str, list[str]] = {}  # a cache: a template writes the same text many times
    for piece in (*(text.pieces if isinstance(text, Mixture) else (text,)), Traced()):
        if type(piece) is str:
            template_text.append(piece)
            continue
        if template_text:
            run = "".join(template_text)
            template_text.clear()
            split = splits.get(run)
            if split is None:
                split = splits[run] = controls.split(run)
            first, *rest = split
            open_text.append(first)
            if rest:
                *complete, last = rest
                alternating += ("".join(open_text), *complete)
                open_text = [last]
        open_text.append(piece)
    return [*alternating, "".join(open_text)]
