"""The lint of a tool's schema: which keywords a grammar does not enforce, and why a schema is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.grammar.grammar import Grammar, Writer
from dovetail.grammar.lark_schema import complaint, first_line, spell
from dovetail.grammar.nodes import JsonSchema, Loosened
from dovetail.grammar.schemas import bounds
from dovetail.grammar.schemas.check import Checker


class ToolLint(msgspec.Struct, frozen=True):
    """The lint of one tool.

    `unenforced`: by writer, JSON pointers to the keywords that its grammar does not enforce, or only in part.
    `left_out`: those that were removed from the schema because they are unusable, each with the reason.
    `problem`: why the schema is refused; None if it is not.
    """

    tool: str
    unenforced: Mapping[Writer, tuple[str, ...]]
    left_out: Mapping[str, str]
    problem: str | None = None

    @property
    def clean(self) -> bool:
        return self.problem is None and not any(self.unenforced.values())


def lint(
    tool: str,
    schema: Mapping[str, Any],
    writers: Iterable[Writer],
    grammar: Callable[[], Grammar] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> ToolLint:
    """The lint of one tool. It raises nothing, whatever the schema is.

    `grammar` makes the grammar of the tool's calls as a model family writes them; without it the arguments are JSON.
    `left_out`: what was removed from the tool's own schema to make `schema`, with the reasons.
    """
    try:
        if (problem := _problem(schema)) is None:
            calls = Grammar(JsonSchema(schema, _ORIGIN)) if grammar is None else grammar()
            bounds.check(calls.schemas())
            calls = Grammar(Loosened(calls.root, _ORIGIN, tuple(left_out or ())))
            unenforced = {writer: tuple(dict.fromkeys(at for _, at in calls.unenforced(writer))) for writer in writers}
            return ToolLint(tool, unenforced, left_out or {})
    except InvalidRequest as refusal:
        problem = refusal.message.partition(_REFUSES)[2] or refusal.message
    return ToolLint(tool, {}, {}, problem)


_ORIGIN = "parameters"
_REFUSES = " cannot be enforced: "


def _problem(schema: Mapping[str, Any]) -> str | None:
    """Why llguidance refuses the schema; None if it does not. Raises `SchemaRefused` for one that is out of bounds, or
    invalid."""
    bounds.check([JsonSchema(schema, _ORIGIN)])
    Checker(schema, _ORIGIN)
    reason = complaint(spell(schema).schema)
    return f"#: {first_line(reason)}" if reason else None
