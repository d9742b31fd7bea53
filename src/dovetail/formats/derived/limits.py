"""Bounds of what a chat template may do: passes through its loops and calls of its macros, and the length of its texts.

All work is counted in passes. A filter or method that goes through a value is counted before it runs: one pass for each
item, however deep it is nested, and one for `_CHARACTERS` of text. A list that contains another one twice counts that
one twice, as every text made of it will. An operation that may make a text of any length from short ones (products,
padding, replacements, joins, formats) is checked before it runs.
"""

from __future__ import annotations

import contextvars
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jinja2.utils

from dovetail.errors import RenderError

#: Characters or items of one product, as in `"x" * 10**9`, and of any other text that a template makes at once.
MAX_LENGTH = 16 * 1024 * 1024
#: Characters that are copied or searched in the time of a pass. Values of at most `SHORT` are not counted.
_CHARACTERS, SHORT = 32, 1024
#: Items of a list that are copied in that time.
_COPIED = 128
#: Bits of a product of integers, and those whose digits are written in the time of a pass.
_MAX_BITS, _BITS = 4096, 96
#: Methods and filters that pad a text to a length.
_PADDING = frozenset("center ljust rjust zfill expandtabs indent wordwrap tojson lipsum truncate".split())
_LONGEST_PADDING, _MOST_PARAGRAPHS = 10_000, 20
#: A width or precision of more than four digits, or one that is an argument, in a format string.
_WIDE = re.compile(r"[%{][^%{}]*(?:\d{5}|\*)|\{[^{}]*\{")
#: The encodings that take linear time.
_ENCODINGS = frozenset(("utf-8", "utf8", "ascii", "latin-1"))

#: Filters that go through nothing, those that go through their input only as far as its items, and those that work on
#: each character in Python.
_FREE = frozenset("attr d default first last length count items".split())
_SHALLOW = frozenset("list map select reject selectattr rejectattr batch slice reverse random".split())
_SLOW = frozenset(
    "list batch slice reverse random sort unique groupby sum min max title wordcount wordwrap indent urlize striptags "
    "xmlattr filesizeformat truncate".split()
)
#: How often `pprint` writes what is nested before it has found lines that are short enough.
_ATTEMPTS = 64

_current: contextvars.ContextVar[Limits] = contextvars.ContextVar("limits")


class LimitReached(RenderError):
    """The template did more than it may."""


class Limits:
    """What one rendering may do, and what it has done.

    `passes`: through all loops. The call of a macro counts as 30.
    `length`: of the longest text that the template may make. `total`: of all long texts and products together.
    """

    def __init__(self, passes: int, length: int = MAX_LENGTH, total: int | None = None) -> None:
        self._passes = self.remaining = passes
        self._length, self._total = length, total

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(1)
            yield item

    def spend(self, passes: int = 30) -> None:
        self.remaining -= passes
        if self.remaining < 0:
            raise LimitReached(f"the chat template loops more than {self._passes:,} times over this conversation")

    def make(self, length: int) -> None:
        """Count a text or list of this length that the template makes."""
        if self._total is not None:
            self._total -= length
        if length > self._length or (self._total is not None and self._total < 0):
            raise LimitReached("the chat template makes a text too long")
        if length > SHORT:
            self.spend(length // _CHARACTERS)

    def __enter__(self) -> Limits:
        self._token = _current.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)


def check_length(length: int) -> None:
    """Count a text or list that the template makes. Raises `RenderError` if it is too long."""
    _current.get().make(length)


def check_text(text: str) -> None:
    """Count a search through `text`, or a copy of it."""
    if len(text) > SHORT:
        _current.get().spend(len(text) // _CHARACTERS)


def check_copy(items: Any) -> None:
    """Count a text or list that is a part of another one."""
    if isinstance(items, str | list | tuple) and len(items) > SHORT:
        _current.get().spend(len(items) // _COPIED)


def check_value(value: Any) -> None:
    """Count a walk through all of `value`. Raises `RenderError` if that is more than the template may do."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, _CONTAINERS):
        limits = _current.get()
        limits.spend(_passes(value, limits.remaining))


_EMPTY: dict[Any, Any] = {}
_VIEWS = type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items())
_CONTAINERS: tuple[type[Any], ...] = (dict, list, tuple, set, frozenset, *_VIEWS, jinja2.utils.Namespace)
_JOINED: tuple[type[Any], ...] = (str, range, dict, list, tuple, set, frozenset, *_VIEWS)


def _passes(value: Any, most: int) -> int:
    """How many passes a walk through `value` takes; something above `most` if it takes more."""
    passes, left = 0, [value]
    while left and passes <= most:
        each = left.pop()
        if isinstance(each, str):
            passes += len(each) // _CHARACTERS
        elif isinstance(each, int):
            passes += each.bit_length() // _BITS
        elif isinstance(each, _CONTAINERS):
            if isinstance(each, jinja2.utils.Namespace):
                each = each._Namespace__attrs
            passes += len(each) + 1
            if passes <= most:
                left.extend(each)
                if isinstance(each, dict):
                    left.extend(each.values())
    return passes


def check_comparison(operator: str, left: Any, right: Any) -> None:
    """Count what `left == right`, `left < right` or `left in right` compare."""
    if operator in ("in", "notin"):
        if isinstance(right, str):
            check_text(right)
        elif isinstance(left, _CONTAINERS):
            check_value(left)
            check_value(right)
        elif isinstance(right, list | tuple) and len(right) > SHORT:
            _current.get().spend(len(right) // _CHARACTERS)
    elif isinstance(left, str) and isinstance(right, str):
        check_text(left if len(left) < len(right) else right)
    elif isinstance(left, _CONTAINERS) and isinstance(right, _CONTAINERS):
        check_value(left)


def check_filter(name: str, values: list[Any], named: Mapping[str, Any]) -> None:
    """Count what the filter `name` does with `values`, its input and arguments, and check what it makes."""
    check_operation(name, values[0] if values else None, tuple(values[1:]), named)
    if name in _FREE or not values:
        return
    value, limits = values[0], _current.get()
    by_character = isinstance(value, str) and name in _SLOW and len(value) > SHORT
    if by_character or (isinstance(value, (*_CONTAINERS, range)) and name in _SHALLOW):
        limits.spend(len(value))
    else:
        before = limits.remaining
        for each in values:
            check_value(each)
        if name == "pprint":
            limits.spend((before - limits.remaining) * _ATTEMPTS)
    for each in (*values[1:], *named.values()):
        if name in ("batch", "slice") and isinstance(each, int):
            limits.spend(each)
        elif name == "sum" and not isinstance(each, int | float | str | None):
            raise LimitReached("the chat template adds up what are no numbers")


def check_call(name: str, owner: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Count what a function `name`, or the method `name` of `owner`, does with its arguments."""
    if isinstance(owner, str):
        check_operation(name, owner, arguments, named)
        check_text(owner)
        if name in ("split", "rsplit", "splitlines") and len(owner) > SHORT:
            between = arguments[0] if arguments else named.get("sep")
            pieces = owner.count(between) if isinstance(between, str) and between else len(owner) // 8
            _current.get().spend(pieces)
        elif name == "encode" and {*arguments, *named.values()} - _ENCODINGS:
            raise LimitReached(f"a chat template may encode texts as {', '.join(sorted(_ENCODINGS))}")
    elif isinstance(owner, list | tuple) and name in ("index", "count"):
        check_value(owner)
    elif isinstance(owner, dict | list | tuple):
        check_copy(owner)
        arguments = tuple(each for each in arguments if isinstance(each, tuple))  # a key
    for each in (*arguments, *named.values()):
        check_value(each)


def check_product(left: Any, right: Any) -> None:
    """Raise `RenderError` if ``left * right`` is too long or too high a number."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(count, int):
            check_length(len(sequence) * max(count, 0))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MAX_BITS:
        raise LimitReached("the chat template makes a number too high")


def listed(parts: Any) -> Any:
    """`parts`, as a list if they are made as they are asked for: what is made of them can then be checked."""
    return list(parts) if isinstance(parts, types.GeneratorType) else parts


def check_operation(name: str, value: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise `RenderError` for a method or filter `name` of `value` that would make a text too long."""
    values = (*arguments, *named.values())
    if name in _PADDING:
        _check_padding(name, value, values)
    elif name == "replace" and len(values) >= 2 and isinstance(values[0], str):
        check_value(value)
        whole = value if isinstance(value, str) else str(value)
        count = whole.count(values[0]) if values[0] else len(whole) + 1
        check_length(len(whole) + count * len(str(values[1])))
    elif name == "join":  # of a text, or of a list by the filter
        _check_join(*((values[0], value) if isinstance(value, str) and values else (value, "".join(map(str, values)))))
    elif name in ("format", "format_map"):
        check_format(value, values)
    elif name == "translate" and values and isinstance(values[0], Mapping):
        check_length(len(value) * max((len(each) for each in values[0].values() if isinstance(each, str)), default=1))
    elif name in ("strip", "lstrip", "rstrip", "trim"):
        chars = max((len(each) for each in values if isinstance(each, str)), default=0)
        if chars > SHORT and isinstance(value, str):
            check_length(len(value) * (chars // SHORT))


def _check_join(parts: Any, between: str) -> None:
    if isinstance(parts, _JOINED):
        check_length(sum(len(part) for part in parts if isinstance(part, str)) + len(parts) * len(between))


def _check_padding(name: str, value: Any, values: tuple[Any, ...]) -> None:
    most = _MOST_PARAGRAPHS if name == "lipsum" else _LONGEST_PADDING
    widths = [each if isinstance(each, int) else len(each) for each in values if isinstance(each, int | str)]
    if any(width > most for width in widths):
        raise LimitReached(f"the chat template pads a text too far ({name})")
    if not isinstance(value, str):
        return
    if name == "wordwrap":  # by a text between lines, perhaps after each character
        check_length(len(value) * max((len(each) for each in values if isinstance(each, str)), default=1))
    elif name in ("indent", "expandtabs"):
        places = value.count("\t" if name == "expandtabs" else "\n") + 1
        check_length(len(value) + places * max(widths, default=8))


def check_format(layout: Any, values: Iterable[Any] = ()) -> None:
    """Raise `RenderError` for a format string that may make a text too long, of these `values`."""
    if not isinstance(layout, str):
        return
    if _WIDE.search(layout):
        raise LimitReached("the chat template pads a text too far (format)")
    limits, longest = _current.get(), 0
    for value in values:
        passes = _passes(value, limits.remaining)
        limits.spend(passes)
        longest = max(longest, (passes + 1) * _CHARACTERS)
    fields = layout.count("%") + layout.count("{")
    check_length(len(layout) + fields * longest)
