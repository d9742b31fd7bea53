"""A `Grammar`: data that a writer turns into a library's language. There are two, and they say the same.

The end of the turn is not part of a grammar: a model may end where the grammar is satisfied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from dovetail.grammar import ebnf, lark, lark_schema, structural_tag
from dovetail.grammar.nodes import (
    Choice,
    Concat,
    JsonSchema,
    Loosened,
    Maybe,
    Node,
    OtherSyntax,
    Repeat,
    Rules,
    TextUntil,
)

Writer = Literal["lark", "structural_tag"]


class Grammar(msgspec.Struct, frozen=True):
    """Everything that may be said from the start of the output on."""

    root: Node

    def lark(self, control: Mapping[str, int] | None = None) -> str:
        """The grammar for llguidance (embedded engine; vLLM's guidance backend).

        `control` are the tokenizer's control tokens with their ids, for those that the dialect cannot name otherwise.
        """
        return lark.write(self.root, control or {}, self._trials())

    def structural_tag(self, control: Mapping[str, int]) -> dict[str, Any]:
        """The grammar for xgrammar (the default of vLLM and SGLang), as JSON data.

        `control` are all the tokenizer's control tokens with their ids. Raises `ValueError` for one that is not there.
        """
        return structural_tag.write(self.root, control)

    def unenforced(self, writer: Writer) -> Iterator[tuple[str, str]]:
        """What a writer leaves to be checked afterwards, each once: the field of the request that a schema came from,
        and a keyword in it by its JSON pointer."""
        found: dict[tuple[str, str], None] = {}
        trials = self._trials() if writer == "lark" else 0
        written = lark if writer == "lark" else structural_tag
        rules = {id(it) for node in self._nodes() if isinstance(node, Rules) for it in Grammar(node)._nodes()}
        for node in self._nodes():
            match node:
                case JsonSchema(schema, origin, at):
                    lost: Iterable[str]
                    if writer == "lark":
                        lost = lark.unenforced(schema, trials)
                    else:
                        lost = ebnf.unenforced(schema) if id(node) in rules else structural_tag.unenforced(schema)
                    found.update(((origin, _placed(pointer, at)), None) for pointer in lost)
                case TextUntil(_, _, _, origin, at):
                    lost = written.unenforced_of_text(node)
                    found.update(((origin, _placed(pointer, at)), None) for pointer in lost)
                case Loosened(_, origin, pointers):
                    found.update(((origin, pointer), None) for pointer in pointers)
                case _:
                    pass
        yield from found

    def schemas(self) -> Iterator[JsonSchema]:
        """Every JSON Schema in the grammar, in order."""
        for node in self._nodes():
            match node:
                case JsonSchema():
                    yield node
                case OtherSyntax(_, schema, origin):
                    yield JsonSchema(schema, origin)
                case TextUntil(_, _, schema, origin, at) if schema:
                    yield JsonSchema({"type": "string", **schema}, origin, at)
                case _:
                    pass

    def _trials(self) -> int:
        return lark_schema.trials(node.schema for node in self._nodes() if isinstance(node, JsonSchema))

    def _nodes(self) -> Iterator[Node]:
        """Each node once, wherever it stands."""
        pending: list[Node] = [self.root]
        seen: set[int] = set()
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            match node:
                case Choice(children) | Concat(children):
                    pending.extend(reversed(children))
                case Maybe(child) | Repeat(child) | Loosened(child) | OtherSyntax(child):
                    pending.append(child)
                case Rules(child, rules):
                    pending += [*reversed([*rules.values()]), child]
                case _:
                    pass


def _placed(pointer: str, at: str) -> str:
    """A pointer into a schema that stands at a place, as one into the field. Definitions are the field's own."""
    return pointer if pointer.startswith("#/$defs/") else at + pointer[1:]
