"""Writes a grammar in llguidance's Lark dialect.

Control tokens are named by their literal (`<think>`), as that dialect has it, or else by their id (`<[128825]>`); text
lexemes never match them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import llguidance

from dovetail.grammar import lark_schema, patterns
from dovetail.grammar.kept import Kept
from dovetail.grammar.nodes import (
    Choice,
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
)

#: Characters; readers give up on what is longer by far.
LONGEST_NAME = 64

_TIMES: Mapping[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+"}
_BARE = re.compile(r"\\.|[/\n\r]", re.DOTALL)
_SPELLED = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n"}
_TOKEN_NAME = re.compile(r"<[^<>\s]+>")


def write(root: Node, control: Mapping[str, int], trials: int) -> str:
    """The Lark text whose `start` is `root`; `trials` are what each schema may take (`lark_schema.trials`).

    Raises `ValueError` for a control token without name or id.
    """
    rules: dict[str, str] = {}  # the names of rules and terminals by what they are
    start = _expression(root, rules, control, trials)
    named = (f"{name}: {body}" for body, name in rules.items())
    return "\n".join((f"start: {start}", *named, "INDEX: /0|[1-9][0-9]{0,8}/", "TEXT: /(.|\\n)+/")) + "\n"


def unenforced(schema: Any, trials: int) -> tuple[str, ...]:
    """JSON pointers of the keywords in a schema that its text does not keep, or not all of it."""
    return lark_schema.written(schema, trials).unenforced


def unenforced_of_text(node: TextUntil) -> Iterator[str]:
    """The same of a schema of strings."""
    for keyword in ("pattern", "format"):
        if keyword in node.schema and not _patterns({keyword: node.schema[keyword]}):
            yield f"#/{keyword}"


def _expression(node: Node, rules: dict[str, str], control: Mapping[str, int], trials: int) -> str:
    match node:
        case ExactText(text):
            return _string(text)
        case ControlToken(literal):
            if _TOKEN_NAME.fullmatch(literal):
                return literal
            if literal not in control:
                raise ValueError(f"the control token {literal!r} has no name in llguidance's Lark, and no id was given")
            return f"<[{control[literal]}]>"
        case FreeText():
            return "TEXT?"
        case TextUntil():
            return _named("TEXT_", _text_before(node), rules)
        case OtherName(known):
            others = f" & ~/{'|'.join(map(patterns.quoted, known))}/" if known else ""
            return _named("NAME_", f"/[{patterns.NAME}]{{1,{LONGEST_NAME}}}/{others}", rules)
        case Index():
            return "INDEX"
        case JsonSchema(schema):
            return _named("json_", f"%json {lark_schema.written(schema, trials).text}", rules)
        case Regex(regex):
            return _named("PATTERN_", f"/{_in_slashes(regex)}/", rules)
        case Rules(item, inner):
            for name, rule in inner.items():
                # The name stands in it too: two rules that say the same are two.
                rules.setdefault(f"{_expression(rule, rules, control, trials)} // {name}", _rule(name))
            return _expression(item, rules, control, trials)
        case RuleRef(name):
            return _rule(name)
        case Loosened(item) | OtherSyntax(item):
            return _expression(item, rules, control, trials)
        case Choice(options) if len(options) > 1 and all(isinstance(option, ExactText) for option in options):
            # As one terminal, because the library cannot tell very many from each other.
            words = (_expression(option, rules, control, trials) for option in options)
            return _named("WORD_", " | ".join(words), rules)
        case Choice(options):
            return "(" + " | ".join(_expression(option, rules, control, trials) for option in options) + ")"
        case Concat(items):
            return " ".join(_expression(item, rules, control, trials) for item in items) or _string("")
        case Maybe(item):
            return f"({_expression(item, rules, control, trials)})?"
        case Repeat(item, least, most):
            times = _TIMES.get((least, most)) or f"{{{least},{'' if most is None else most}}}"
            return f"({_expression(item, rules, control, trials)}){times}"


def _text_before(node: TextUntil) -> str:
    """One terminal for the text and its end, so that no byte of the end is taken for text."""
    schema = node.schema
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", "")
    said = _patterns(schema)
    if shortest or longest != "":
        said.append(rf"/(.|\n){{{shortest},{longest}}}/")
    # Said as a plain regex and not with "not": that is what the library can tell a run of tokens to be within.
    text = " & ".join((f"/{_in_slashes(patterns.without(node.without))}/", *said))
    for word in node.words:
        text = f"{_string(word)} | ({text})"
    return f"({text}) {_string(node.end)}" if node.end else f"({text})"


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    """The terminals that strings of a schema match, as far as the library takes them."""
    found = (f"/{_in_slashes(pattern)}/" for pattern in patterns.of_strings(schema))
    return [pattern for pattern in found if _is_taken(pattern)]


def _is_taken(terminal: str) -> bool:
    grammar = llguidance.LLMatcher.grammar_from_lark(f"start: PATTERN\nPATTERN: {terminal}\n")
    return _TAKEN.get(terminal, len(terminal), lambda: not llguidance.LLMatcher.validate_grammar(grammar))


_TAKEN: Kept[bool] = Kept(1024, 2**20)


def _rule(name: str) -> str:
    return f"rule_{name}"


def _named(prefix: str, body: str, rules: dict[str, str]) -> str:
    return rules.setdefault(body, f"{prefix}{len(rules)}")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _in_slashes(pattern: str) -> str:
    """A pattern as it may stand between slashes, in one line."""
    return _BARE.sub(lambda found: _SPELLED.get(found.group(), found.group()), pattern)
