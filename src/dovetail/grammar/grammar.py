"""A `Grammar`: what an answer may be, as data. Three writers spell the same grammar for three libraries.

The end of the turn is not part of a grammar: a model may end its turn wherever the grammar is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dovetail.grammar import ebnf, gbnf, gbnf_json, lark, lark_schema, structural_tag, tag_schema
from dovetail.grammar.nodes import (
    Choice,
    ClientText,
    Concat,
    ControlToken,
    JsonSchema,
    Loosened,
    Maybe,
    Node,
    OtherSyntax,
    Repeat,
    Rules,
    TextUntil,
)
from dovetail.grammar.schemas.references import placed

Writer = Literal["lark", "structural_tag", "gbnf"]


_DIALECTS = {
    "lark": (lark, lark_schema.spell),
    "structural_tag": (structural_tag, tag_schema.spell),
    "gbnf": (gbnf, gbnf_json.spell),
}


class Grammar(msgspec.Struct, frozen=True):
    """All texts that an answer may be, from its first token on."""

    root: Node

    def lark(self, control: Mapping[str, int] | None = None) -> str:
        """The grammar for llguidance (the embedded engine, and vLLM's guidance backend), in its Lark dialect.

        `control`: the ids of the tokenizer's control tokens. Only literals that are not in angle brackets need an id.
        """
        return lark.write(self.root, control or {})

    def structural_tag(self, control: Mapping[str, int] | None = None, blanks: Sequence[int] = ()) -> dict[str, Any]:
        """The grammar for xgrammar (the default of vLLM and SGLang), as JSON data.

        `control`: the ids of all the tokenizer's control tokens; `blanks`: `Tokenizer.blanks`. Without them, the tag
        names the control tokens of the grammar by their literals, and free text may contain any other. Raises
        `ValueError` if the grammar has a control token that is not in `control`, and for the few families whose grammar
        needs the ids.
        """
        if control is None:
            literals = self.control_tokens()
            return structural_tag.write(self.root, dict(zip(literals, literals, strict=True)))
        return structural_tag.write(self.root, control, blanks)

    def gbnf(self, control: Mapping[str, int], ends: Iterable[str] = ()) -> str:
        """The grammar for llama.cpp, in its own notation.

        `control`: the ids of all the tokenizer's control tokens. A request has to forbid those that are not in
        `control_tokens` and not in `ends`, at which an answer ends. Texts contain the characters of neither. Raises
        `ValueError` as `structural_tag` does, and if no value is valid for a schema.
        """
        return gbnf.write(self.root, control, tuple(sorted({*self.control_tokens(), *ends})))

    def control_tokens(self) -> tuple[str, ...]:
        """The literals of the control tokens in the grammar, in alphabetical order."""
        return tuple(sorted({node.literal for node in self._nodes() if isinstance(node, ControlToken)}))

    def unenforced(self, writer: Writer) -> Iterator[tuple[str, str]]:
        """What the grammar of a writer does not enforce, or only in part, each once: a field of the request, and the
        JSON pointer of a keyword in it. The check after the call enforces these keywords."""
        dialect, spell = _DIALECTS[writer]
        unenforced: dict[tuple[str, str], None] = {}
        rules = [node for node in self._nodes() if isinstance(node, Rules)] if writer == "structural_tag" else []
        in_ebnf = {id(node) for each in rules for node in Grammar(each)._nodes()}
        for node in self._nodes():
            match node:
                case JsonSchema(schema, origin, at):
                    pointers = ebnf.unenforced(schema) if id(node) in in_ebnf else spell(schema).unenforced
                    unenforced.update(((origin, placed(pointer, at)), None) for pointer in pointers)
                case TextUntil(_, _, schema, origin, at):
                    lost = ebnf.unenforced(schema) if id(node) in in_ebnf else dialect.unenforced_in_text(node)
                    unenforced.update(((origin, placed(pointer, at)), None) for pointer in lost)
                case ClientText(origin=origin) if id(node) in in_ebnf or not dialect.enforces(node):
                    unenforced[origin, ""] = None
                case Loosened(_, origin, pointers):
                    unenforced.update(((origin, pointer), None) for pointer in pointers)
                case _:
                    pass
        yield from unenforced

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

    def client_texts(self) -> Iterator[ClientText]:
        """Every text that follows a client's own grammar, in order."""
        yield from (node for node in self._nodes() if isinstance(node, ClientText))

    def _nodes(self) -> Iterator[Node]:
        """Every node once, however many places it has."""
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
