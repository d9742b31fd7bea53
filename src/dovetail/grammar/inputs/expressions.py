"""Expressions: what a client's grammar says, whether it was written as a regex or in Lark.

An expression without `Ref` is regular. The functions `sequence`, `either` and `times` simplify while they build.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from dovetail.grammar.inputs.charsets import Chars


class Seq(msgspec.Struct, frozen=True):
    """A text of each item, one after the other."""

    items: tuple[Expression, ...]


class Alt(msgspec.Struct, frozen=True):
    """A text of any one of the options. Without options there is no text."""

    options: tuple[Expression, ...]


class Times(msgspec.Struct, frozen=True):
    """Texts of `item`, `least` to `most` times; `most=None` sets no upper limit."""

    item: Expression
    least: int
    most: int | None


class Ref(msgspec.Struct, frozen=True):
    """The texts of the rule `name`."""

    name: str


Expression = Chars | Seq | Alt | Times | Ref

EMPTY = Seq(())
NOTHING = Alt(())
_NO_TEXT = (NOTHING, Chars(()))


class TooLargeError(Exception):
    """The expression would be larger than a grammar may be."""


def text(characters: str) -> Expression:
    """Exactly these characters."""
    return sequence(Chars.of(character) for character in characters)


def sequence(items: Iterable[Expression]) -> Expression:
    flat: list[Expression] = []
    for item in items:
        if item in _NO_TEXT:
            return NOTHING
        flat += item.items if isinstance(item, Seq) else (item,)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def either(options: Iterable[Expression]) -> Expression:
    flat: dict[Expression, None] = {}
    for option in options:
        flat |= dict.fromkeys(option.options if isinstance(option, Alt) else (option,))
    flat.pop(Chars(()), None)
    if EMPTY in flat:
        del flat[EMPTY]
        return times(either(flat), 0, 1)
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def times(item: Expression, least: int, most: int | None) -> Expression:
    if item == EMPTY or most == 0:
        return EMPTY
    if item in _NO_TEXT:
        return NOTHING if least else EMPTY
    if (least, most) == (1, 1):
        return item
    if isinstance(item, Times) and (least, most) in ((0, 1), (0, None)) and item.least <= 1:
        # (a*)? and (a+)* are a*, (a+)? too.
        many = most is None or item.most is None
        if many or item.most == 1:
            return Times(item.item, 0, None if many else 1)
    return Times(item, least, most)


def children(expression: Expression) -> tuple[Expression, ...]:
    """The expressions directly in an expression."""
    match expression:
        case Seq(parts) | Alt(parts):
            return parts
        case Times(item):
            return (item,)
    return ()


def walk(expression: Expression) -> Iterator[Expression]:
    """An expression and all expressions in it."""
    pending = [expression]
    while pending:
        inner = pending.pop()
        yield inner
        pending += children(inner)


def references(expression: Expression) -> set[str]:
    """The names of the rules that an expression refers to."""
    return {inner.name for inner in walk(expression) if isinstance(inner, Ref)}


def is_nullable(expression: Expression) -> bool:
    """Whether a regular expression allows the empty text."""
    match expression:
        case Seq(items):
            return all(map(is_nullable, items))
        case Alt(options):
            return any(map(is_nullable, options))
        case Times(item, least):
            return least == 0 or is_nullable(item)
    return False


def size(expression: Expression) -> int:
    """The number of characters and references, with the repetitions written out."""
    match expression:
        case Seq(parts) | Alt(parts):
            return 1 + sum(map(size, parts))
        case Times(item, least, most):
            return size(item) * max(1, least, most or 0) + 1
    return 1


class Work:
    """How much larger expressions may still get, in all steps together. Bounds the time that a grammar takes."""

    def __init__(self, most: int) -> None:
        self.left = most

    def do(self, amount: int = 1) -> None:
        """Raises `TooLargeError` if that is too much."""
        self.left -= amount
        if self.left < 0:
            raise TooLargeError


def replaced(expression: Expression, rules: Mapping[str, Expression], work: Work) -> Expression:
    """The expression with the expressions of `rules` in place of the references to them. Raises `TooLargeError`."""
    work.do()
    match expression:
        case Ref(name) if name in rules:
            work.do(size(rules[name]))
            return rules[name]
        case Seq(parts):
            return sequence(replaced(part, rules, work) for part in parts)
        case Alt(parts):
            return either(replaced(part, rules, work) for part in parts)
        case Times(item, least, most):
            return times(replaced(item, rules, work), least, most)
    return expression
