"""Writes a grammar in llguidance's Lark dialect.

A control token in angle brackets is written as its literal (`<think>`), any other by its id (`<[128825]>`). Terminals
of text never match control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import llguidance

from dovetail.grammar import lark_json, lark_schema, patterns
from dovetail.grammar.cache import Cache
from dovetail.grammar.nodes import (
    Choice,
    ClientText,
    Concat,
    ControlToken,
    ExactText,
    FreeText,
    Index,
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
    VisibleText,
)

#: Characters. Readers give up on names that are much longer.
LONGEST_NAME = 64

_TIMES: Mapping[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+"}
_BARE = re.compile(r"\\.|[/\n\r]", re.DOTALL)
_ESCAPED = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n"}
_TOKEN_NAME = re.compile(r"<[^<>\s]+>")


def write(root: Node, control: Mapping[str, int]) -> str:
    """The Lark text of a grammar.

    `control`: the ids of control tokens by literal. Raises `ValueError` for a control token that needs an id and has
    none.
    """
    rules: dict[str, str] = {}  # the names of rules and terminals, by their body
    start = _expression(root, rules, control)
    named = (f"{name}: {body}" for body, name in rules.items())
    return "\n".join((f"start: {start}", *named, "INDEX: /0|[1-9][0-9]{0,8}/", "TEXT: /(.|\\n)+/")) + "\n"


def enforces(node: ClientText) -> bool:
    """Whether a client's grammar can be enforced."""
    return True


def unenforced_in_text(node: TextUntil) -> Iterator[str]:
    """As `unenforced`, for the schema of a text."""
    for keyword in ("pattern", "format"):
        if keyword in node.schema and not _patterns({keyword: node.schema[keyword]}):
            yield f"#/{keyword}"


def _expression(node: Node, rules: dict[str, str], control: Mapping[str, int]) -> str:
    match node:
        case ExactText(text):
            return _string(text)
        case ControlToken(literal):
            if _TOKEN_NAME.fullmatch(literal):
                return literal
            if literal not in control:
                raise ValueError(f"the control token {literal!r} has no name in llguidance's Lark and no id")
            return f"<[{control[literal]}]>"
        case FreeText():
            return "TEXT?"
        case VisibleText(without, unlike):
            return _named("VISIBLE_", f"/{_in_slashes(patterns.visible(without, unlike))}/", rules)
        case TextUntil():
            return _named("TEXT_", _text_before(node), rules)
        case OtherName(known):
            others = f" & ~/{'|'.join(map(patterns.quoted, known))}/" if known else ""
            return _named("NAME_", f"/[{patterns.NAME}]{{1,{LONGEST_NAME}}}/{others}", rules)
        case Index():
            return "INDEX"
        case JsonSchema(schema):
            spelled = lark_schema.spell(schema)
            written = lark_json.write(spelled, rules)
            return written or _named("json_", f"%json {json.dumps(spelled.schema)}", rules)
        case Regex(regex):
            return _named("PATTERN_", f"/{_in_slashes(regex)}/", rules)
        case Rules(item, inner):
            for name, rule in inner.items():
                # The body has the name in it, because two rules with the same body are two rules.
                rules.setdefault(f"{_expression(rule, rules, control)} // {name}", _rule(name))
            return _expression(item, rules, control)
        case RuleRef(name):
            return _rule(name)
        case ClientText(text=Regex(regex) | Maybe(Regex(regex)), end=end, without=without) if end or without:
            return _named("TEXT_", _regex_before(f"/{_in_slashes(regex)}/", end, without), rules)
        case ClientText(text=text, end=end):
            return f"{_expression(text, rules, control)} {_string(end) if end else ''}"
        case Loosened(item) | OtherSyntax(item):
            return _expression(item, rules, control)
        case Choice(options) if len(options) > 1 and all(isinstance(option, ExactText) for option in options):
            # One terminal: the library is slow with very many alternatives that are terminals of their own.
            words = (_expression(option, rules, control) for option in options)
            return _named("WORD_", " | ".join(words), rules)
        case Choice(options):
            return "(" + " | ".join(_expression(option, rules, control) for option in options) + ")"
        case Concat(items):
            return " ".join(_expression(item, rules, control) for item in items) or _string("")
        case Maybe(item):
            return f"({_expression(item, rules, control)})?"
        case Repeat(item, least, most):
            times = _TIMES.get((least, most)) or f"{{{least},{'' if most is None else most}}}"
            return f"({_expression(item, rules, control)}){times}"


def _text_before(node: TextUntil) -> str:
    """One terminal for the text and its end, so that no byte of the end is read as text."""
    schema = node.schema
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", "")
    terminals = _patterns(schema)
    if shortest or longest != "":
        terminals.append(rf"/(.|\n){{{shortest},{longest}}}/")
    # A regex without "not": only then the library sees at once that a whole slice of the vocabulary is allowed.
    text = " & ".join((f"/{_in_slashes(patterns.without(node.without))}/", *terminals))
    for word in node.words:
        text = f"{_string(word)} | ({text})"
    return f"({text}) {_string(node.end)}" if node.end else f"({text})"


def _regex_before(regex: str, end: str, without: tuple[str, ...]) -> str:
    """As `_text_before`, for a text that matches a regex."""
    text = f"/{_in_slashes(patterns.without(without))}/ & {regex}" if without else regex
    return f"({text}) {_string(end)}" if end else f"({text})"


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    """Terminals that the strings of a schema match, without those that the library refuses."""
    terminals = (f"/{_in_slashes(pattern)}/" for pattern in patterns.of_strings(schema))
    return [terminal for terminal in terminals if _is_accepted(terminal)]


def _is_accepted(terminal: str) -> bool:
    grammar = llguidance.LLMatcher.grammar_from_lark(f"start: PATTERN\nPATTERN: {terminal}\n")
    return _ACCEPTED.get(terminal, len(terminal), lambda: not llguidance.LLMatcher.validate_grammar(grammar))


_ACCEPTED: Cache[bool] = Cache(1024, 2**20)


def _rule(name: str) -> str:
    return f"rule_{name}"


def _named(prefix: str, body: str, rules: dict[str, str]) -> str:
    return rules.setdefault(body, f"{prefix}{len(rules)}")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _in_slashes(pattern: str) -> str:
    """A pattern with the escapes that it needs between slashes, in one line."""
    return _BARE.sub(lambda match: _ESCAPED.get(match.group(), match.group()), pattern)
