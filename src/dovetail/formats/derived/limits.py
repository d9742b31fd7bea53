"""Bounds of what a chat template may do: passes through its loops and calls of its macros, and the length of its texts.

An operation that may make a text of any length from short ones is checked before it runs: products, padding,
replacements, joins and formats. Sums are checked when they are made, so that doubling a text ends soon.
"""

from __future__ import annotations

import contextvars
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dovetail.errors import RenderError

#: Characters or items of one product, as in `"x" * 10**9`, and of any other text that a template makes at once.
MAX_LENGTH = 64 * 1024 * 1024
#: Bits of a product of integers.
_MAX_BITS = 4096
#: Methods and filters that pad a text to a length.
_PADDING = frozenset("center ljust rjust zfill expandtabs indent wordwrap tojson lipsum truncate".split())
_LONGEST_PADDING, _MOST_PARAGRAPHS = 10_000, 20
#: A width or precision of more than four digits, or one that is an argument, in a format string.
_WIDE = re.compile(r"[%{][^%{}]*(?:\d{5}|\*)|\{[^{}]*\{")

_current: contextvars.ContextVar[Limits] = contextvars.ContextVar("limits")


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
            raise RenderError(f"the chat template loops more than {self._passes:,} times over this conversation")

    def make(self, length: int) -> None:
        """Count a text or list of this length that the template makes."""
        if self._total is not None:
            self._total -= length
        if length > self._length or (self._total is not None and self._total < 0):
            raise RenderError("the chat template makes a text too long")

    def __enter__(self) -> Limits:
        self._token = _current.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)


def check_length(length: int) -> None:
    """Count a text or list that the template makes. Raises `RenderError` if it is too long."""
    _current.get().make(length)


def check_product(left: Any, right: Any) -> None:
    """Raise `RenderError` if ``left * right`` is too long or too high a number."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(count, int):
            check_length(len(sequence) * max(count, 0))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MAX_BITS:
        raise RenderError("the chat template makes a number too high")


#: The methods and filters that `check_operation` knows.
CHECKED = _PADDING | {"replace", "join", "format", "format_map"}


def check_operation(name: str, value: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise `RenderError` for a method or filter `name` of `value` that would make a text too long."""
    values = (*arguments, *named.values())
    most = _MOST_PARAGRAPHS if name == "lipsum" else _LONGEST_PADDING
    if name in _PADDING and any(isinstance(each, int) and each > most for each in values):
        raise RenderError(f"the chat template pads a text too far ({name})")
    if name == "replace" and isinstance(value, str) and len(values) >= 2 and isinstance(values[0], str):
        count = value.count(values[0]) if values[0] else len(value) + 1
        check_length(len(value) + count * len(str(values[1])))
    elif name == "join":  # of a text, or of a list by the filter
        parts, between = (values[0], value) if isinstance(value, str) and values else (value, "".join(map(str, values)))
        if isinstance(parts, list | tuple | str):
            check_length(sum(len(part) + len(between) for part in parts if isinstance(part, str)))
    elif name in ("format", "format_map"):
        check_format(value)


def check_format(layout: Any) -> None:
    """Raise `RenderError` for a format string with a width that may make a text too long."""
    if isinstance(layout, str) and _WIDE.search(layout):
        raise RenderError("the chat template pads a text too far (format)")
