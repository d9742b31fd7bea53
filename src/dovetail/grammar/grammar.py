"""A `Grammar`: data that a writer turns into a library's language. There are two, and they say the same.

The end of the turn is not part of a grammar: a model may end where the grammar is satisfied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dovetail.grammar import lark, structural_tag
from dovetail.grammar.nodes import Choice, JsonSchema, Node, Optional, Repeat, Sequence


class Grammar(msgspec.Struct, frozen=True):
    """Everything that may be said from the start of the output on."""

    root: Node

    def lark(self, control: Mapping[str, int] | None = None) -> str:
        """The grammar for llguidance (embedded engine; vLLM's guidance backend).

        `control` are the tokenizer's control tokens with their ids, for those that the dialect cannot name otherwise.
        """
        return lark.write(self.root, control or {})

    def structural_tag(self, control: Mapping[str, int]) -> dict[str, Any]:
        """The grammar for xgrammar (the default of vLLM and SGLang), as JSON data.

        `control` are all the tokenizer's control tokens with their ids. Raises `ValueError` for one that is not there.
        """
        return structural_tag.write(self.root, control)

    def unenforced(self) -> Iterator[tuple[JsonSchema, str]]:
        """What the structural tag leaves to be checked afterwards: each keyword of a schema by its JSON pointer."""
        for schema in self.schemas():
            for pointer in structural_tag.unenforced(schema.schema):
                yield schema, pointer

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
