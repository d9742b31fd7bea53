"""A `Grammar` as data: the pieces that every format's outputs are made of. Writers turn it into a library's language.

The end of the turn is not part of a grammar: a model may end where the grammar is satisfied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec


class Literal(msgspec.Struct, frozen=True):
    """Exactly this text, in ordinary tokens."""

    text: str


class Control(msgspec.Struct, frozen=True):
    """One control token."""

    literal: str


class FreeText(msgspec.Struct, frozen=True):
    """Any ordinary text, perhaps none: no control token can be part of it, so the next one ends it."""


class Index(msgspec.Struct, frozen=True):
    """A decimal integer from 0 to 999,999,999."""


class JsonSchema(msgspec.Struct, frozen=True):
    """JSON text that validates against `schema`. `origin` names the field of the request that it came from."""

    schema: Mapping[str, Any]
    origin: str


class Choice(msgspec.Struct, frozen=True):
    options: tuple[Node, ...]


class Sequence(msgspec.Struct, frozen=True):
    items: tuple[Node, ...]


class Optional(msgspec.Struct, frozen=True):
    item: Node


class Repeat(msgspec.Struct, frozen=True):
    """One or more of `item`."""

    item: Node


Node = Literal | Control | FreeText | Index | JsonSchema | Choice | Sequence | Optional | Repeat


class Grammar(msgspec.Struct, frozen=True):
    """Everything that may be said from the start of the output on."""

    root: Node

    def lark(self) -> str:
        """The grammar for llguidance (embedded engine; vLLM's guidance backend)."""
        from dovetail.grammar.lark import write

        return write(self.root)

    def schemas(self) -> Iterator[JsonSchema]:
        """Every JSON Schema in the grammar, in order."""
        pending: list[Node] = [self.root]
        while pending:
            node = pending.pop()
            match node:
                case JsonSchema():
                    yield node
                case Choice(children) | Sequence(children):
                    pending.extend(reversed(children))
                case Optional(child) | Repeat(child):
                    pending.append(child)
                case _:
                    pass
