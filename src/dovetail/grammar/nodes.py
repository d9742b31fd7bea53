"""The pieces that every format's outputs are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Literal(msgspec.Struct, frozen=True):
    """Exactly this text, in ordinary tokens."""

    text: str


class Control(msgspec.Struct, frozen=True):
    """One control token."""

    literal: str


class FreeText(msgspec.Struct, frozen=True, tag=True):
    """Any ordinary text, perhaps none: no control token can be part of it, so the next one ends it."""


class TextBefore(msgspec.Struct, frozen=True):
    """Ordinary text, perhaps none, then `end`. The text holds none of `without`; with none of these, a control token
    has to follow.

    Each of `without` begins with `<`, or with a new line and `<`, and has neither again. The text is a string that
    validates against `schema`, which has at most `pattern`, `format`, `minLength` and `maxLength`; `origin` and `at`
    are as with a `JsonSchema`. `words` may stand there whatever the schema says.
    """

    end: str
    without: tuple[str, ...] = ()
    schema: Mapping[str, Any] = {}
    origin: str = ""
    at: str = "#"
    words: tuple[str, ...] = ()


class Name(msgspec.Struct, frozen=True):
    """A name that is none of `known`: ASCII letters, digits, `_`, `-`, `.`."""

    known: tuple[str, ...] = ()


class Pattern(msgspec.Struct, frozen=True):
    """Ordinary text, at least one character, that a regular expression matches from end to end. That is made of
    characters, classes, groups, alternatives and numbers of times, in the words of `patterns`."""

    regex: str


class Index(msgspec.Struct, frozen=True, tag=True):
    """A decimal integer from 0 to 999,999,999."""


class JsonSchema(msgspec.Struct, frozen=True):
    """JSON text that validates against `schema`. `origin` names the field of the request that it came from, and `at`
    where in that it stands, as a JSON pointer; `$defs` are those of the field.
    """

    schema: Mapping[str, Any]
    origin: str
    at: str = "#"


class Wider(msgspec.Struct, frozen=True):
    """An `item` that takes more than the schema of `origin` does: what `pointers` (JSON pointers) name is not kept."""

    item: Node
    origin: str
    pointers: tuple[str, ...]


class Choice(msgspec.Struct, frozen=True):
    options: tuple[Node, ...]


class Sequence(msgspec.Struct, frozen=True):
    items: tuple[Node, ...]


class Optional(msgspec.Struct, frozen=True):
    item: Node


class Repeat(msgspec.Struct, frozen=True):
    """`item`, from `least` times (one, unless it says) to `most` (None: any number)."""

    item: Node
    least: int = 1
    most: int | None = None


class Rules(msgspec.Struct, frozen=True):
    """`item`, in which a `Ref` stands for the rule of its name, and so in the rules: what holds itself is said so.

    There are no control tokens and no free text in it. A `JsonSchema` in it is one of strings, integers or numbers.
    """

    item: Node
    rules: Mapping[str, Node]


class Ref(msgspec.Struct, frozen=True):
    """What the rule `name` says. Names are made of small letters, digits and `_`."""

    name: str


class Spelled(msgspec.Struct, frozen=True):
    """An `item` that says how values of `schema` are written in another language than JSON. `origin` is as with a
    `JsonSchema`."""

    item: Node
    schema: Mapping[str, Any]
    origin: str


Node = (
    Literal
    | Control
    | FreeText
    | TextBefore
    | Name
    | Index
    | JsonSchema
    | Wider
    | Choice
    | Sequence
    | Optional
    | Repeat
    | Pattern
    | Rules
    | Ref
    | Spelled
)
