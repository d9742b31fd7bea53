"""The lint before: what of a tool's schema a grammar does not enforce, and what keeps it from being used at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.grammar import culprit
from dovetail.grammar.grammar import Grammar, Writer
from dovetail.grammar.nodes import JsonSchema, Loosened
from dovetail.grammar.schemas import bounds
from dovetail.grammar.schemas.check import Checker


class ToolLint(msgspec.Struct, frozen=True):
    """What was found in one tool's schema: JSON pointers to keywords that a writer's grammar does not keep, or not all
    of them; which of these were `left_out` of the schema, and why; and why it is refused, None if it is not."""

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
    """The lint of one tool. `grammar` gives that of its calls in the family that will make them; without it the
    arguments are taken to be JSON. `left_out` is what `schema` lacks of the tool's own.

    Raises nothing for whatever the schema is: that is what is told.
    """
    try:
        if (problem := _problem(schema)) is None:
            said = Grammar(JsonSchema(schema, _ORIGIN)) if grammar is None else grammar()
            bounds.check(said.schemas())
            said = Grammar(Loosened(said.root, _ORIGIN, tuple(left_out or ())))
            lost = {writer: tuple(dict.fromkeys(at for _, at in said.unenforced(writer))) for writer in writers}
            return ToolLint(tool, lost, left_out or {})
    except InvalidRequest as refusal:
        problem = refusal.message.partition(_REFUSES)[2] or refusal.message
    return ToolLint(tool, {}, {}, problem)


_ORIGIN = "parameters"
_REFUSES = " cannot be enforced: "


def _problem(schema: Mapping[str, Any]) -> str | None:
    """Why it can be nobody's. Raises `SchemaRefused` for the same."""
    bounds.check([JsonSchema(schema, _ORIGIN)])
    Checker(schema, _ORIGIN)
    found = culprit.find(schema)
    return None if found is None else ": ".join(found)
