"""Writes `Rules` in xgrammar's EBNF, as one element of a structural tag. A tag has no other way to write rules.

EBNF has no JSON Schemas. In rules, a schema of strings, integers or numbers is written as its type alone. Control
tokens are written by their ids, as elsewhere in a tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from dovetail.grammar import numbers, patterns
from dovetail.grammar.nodes import (
    Choice,
    ClientText,
    Concat,
    ControlToken,
    ExactText,
    FreeText,
    JsonSchema,
    Loosened,
    Maybe,
    Node,
    OtherName,
    OtherSyntax,
    Regex,
    Repeat,
    RuleRef,
    Rules,
    TextUntil,
)

_OF_TYPE = {
    "string": r'"(?:[^"\\\x00-\x1f]|\\(?:["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"',
    "integer": numbers.INTEGER,
    "number": numbers.NUMBER,
}
_OPERATORS = frozenset("|()")


def write(node: Node, control: Mapping[str, int | str]) -> str:
    """The EBNF of a `Rules` node. `control`: the ids of all the tokenizer's control tokens.

    Raises `ValueError` for any other node, for a node that rules cannot contain, and for a control token without an id.
    """
    if not isinstance(node, Rules):
        _refuse(node)
    rules = {"root": node.item, **{f"rule_{name}": rule for name, rule in node.rules.items()}}
    return "".join(f"{name} ::= {_expression(rule, control)}\n" for name, rule in rules.items())


def unenforced(schema: Mapping[str, Any]) -> Iterator[str]:
    """JSON pointers of the keywords of a schema in rules that are not enforced: all but `type`."""
    yield from (f"#/{keyword}" for keyword in schema if keyword != "type")


def _token(token: int | str) -> str:
    """A token in EBNF, where xgrammar knows tokens by their ids only. Raises `ValueError` for a literal."""
    if isinstance(token, str):
        raise ValueError(f"this grammar needs the id of {token!r}: give the tokenizer's `control`")
    return str(token)


def _expression(node: Node, control: Mapping[str, int | str]) -> str:
    match node:
        case ExactText(text):
            return json.dumps(text, ensure_ascii=False)
        case ControlToken(literal):
            if literal not in control:
                raise ValueError(f"the control token {literal!r} has no id")
            return f"Token({_token(control[literal])})"
        case FreeText() | TextUntil(end="", without=()):
            return f"(ExcludeToken({', '.join(map(_token, sorted(control.values())))}))*"
        case TextUntil(end, without):
            return f"({_of_regex(patterns.without(without))} {json.dumps(end, ensure_ascii=False)})"
        case OtherName(known):
            return f"({_of_regex(patterns.other_names(known))})"
        case Regex(regex):
            return f"({_of_regex(regex)})"
        case JsonSchema(schema) if schema.get("type") in _OF_TYPE:
            return f"({_of_regex(_OF_TYPE[schema['type']])})"
        case RuleRef(name):
            return f"rule_{name}"
        case Loosened(item) | OtherSyntax(item) | ClientText(otherwise=item):
            return _expression(item, control)
        case Choice(options):
            return f"({' | '.join(_expression(option, control) for option in options)})"
        case Concat(items):
            return f"({' '.join(_expression(item, control) for item in items)})" if items else '""'
        case Maybe(item):
            return f"({_expression(item, control)})?"
        case Repeat(item, least, most):
            return f"({_expression(item, control)}){{{least},{'' if most is None else most}}}"
    _refuse(node)


def _refuse(node: Node) -> NoReturn:
    raise ValueError(f"{type(node).__name__} cannot be part of rules")


def _of_regex(regex: str) -> str:
    """A regex in the syntax of `patterns` as EBNF, which has the same classes, groups and repetitions."""
    ebnf = [""]  # the last one is a text that has no quotes yet
    pieces = iter(_PIECE.findall(regex.replace("(?:", "(")))
    for piece in pieces:
        if piece in ("?", "*", "+", "{"):
            while piece[0] == "{" and piece[-1] != "}":
                piece += next(pieces)
            before, last = ebnf[-1][:-1], ebnf[-1][-1:]
            ebnf[-1:] = [*_quoted(before), *_quoted(last), ""]
            ebnf[-2] += piece
        elif piece in _OPERATORS or piece.startswith("["):
            ebnf[-1:] = [*_quoted(ebnf[-1]), piece, ""]
        else:
            ebnf[-1] += _CHARACTERS.get(piece) or piece.removeprefix("\\")
    return " ".join((*ebnf[:-1], *_quoted(ebnf[-1])))


def _quoted(text: str) -> list[str]:
    return [json.dumps(text, ensure_ascii=False)] if text else []


#: A regex in pieces: escapes, classes, single characters.
_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_CHARACTERS = {r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\f": "\f", r"\\": "\\"}
