"""Writes a grammar in llguidance's Lark dialect.

Control tokens are named by their literal (`<think>`), as that dialect has it; text lexemes never match them.
"""

from __future__ import annotations

import json
import re

from dovetail.grammar.nodes import (
    Choice,
    Control,
    FreeText,
    Index,
    JsonSchema,
    Literal,
    Node,
    Optional,
    Repeat,
    Sequence,
)

_TOKEN_NAME = re.compile(r"<[^<>\s]+>")


def write(root: Node) -> str:
    """The Lark text whose `start` is `root`. Raises `ValueError` for a control token that the dialect cannot name."""
    schemas: list[str] = []
    start = _expression(root, schemas)
    rules = [f"start: {start}", *schemas, "INDEX: /0|[1-9][0-9]{0,8}/", "TEXT: /(.|\\n)+/"]
    return "\n".join(rules) + "\n"


def _expression(node: Node, schemas: list[str]) -> str:
    match node:
        case Literal(text):
            return json.dumps(text, ensure_ascii=False)
        case Control(literal):
            if not _TOKEN_NAME.fullmatch(literal):
                raise ValueError(f"the control token {literal!r} has no name in llguidance's Lark")
            return literal
        case FreeText():
            return "TEXT?"
        case Index():
            return "INDEX"
        case JsonSchema(schema, _):
            name = f"json_{len(schemas)}"
            schemas.append(f"{name}: %json {json.dumps(schema)}")
            return name
        case Choice(options):
            return "(" + " | ".join(_expression(option, schemas) for option in options) + ")"
        case Sequence(items):
            return " ".join(_expression(item, schemas) for item in items)
        case Optional(item):
            return f"({_expression(item, schemas)})?"
        case Repeat(item):
            return f"({_expression(item, schemas)})+"
