"""Writes a grammar in GBNF, llama.cpp's own notation (llama.cpp, grammars/README.md).

Control tokens are written by their ids. llama.cpp reads a token in a text as the characters that it spells, so every
text excludes the spellings of the grammar's control tokens; `control_tokens` are those. A request has to forbid the
tokenizer's other ones. What GBNF cannot say is listed by `Grammar.unenforced`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dovetail.grammar import gbnf_json, gbnf_text, patterns
from dovetail.grammar.gbnf_text import Rules as Written
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


def write(root: Node, control: Mapping[str, int], used: tuple[str, ...]) -> str:
    """The GBNF text of a grammar.

    `control`: the ids of control tokens by literal. `used`: the ones in the grammar. Raises `ValueError` for a control
    token without an id, and for a schema that no value is valid for.
    """
    rules: Written = {}
    start = _Writer(control, used, rules).expression(root)
    named = (f"{name} ::= {body}\n" for body, name in rules.items() if not body.startswith("#"))
    return f"root ::= {start}\n{''.join(named)}"


def enforces(node: ClientText) -> bool:
    """Whether GBNF says a client's grammar: a regular expression without characters that begin a tag."""
    match node.text:
        case Regex(regex) | Maybe(Regex(regex)):
            return _of_regex(regex) is not None
    return False


def unenforced_in_text(node: TextUntil) -> Iterator[str]:
    """As `Grammar.unenforced`, for the schema of a text."""
    has_pattern = _pattern(node) is not None
    yield from (f"#/{key}" for key in node.schema if key not in ("pattern", "format") or not has_pattern)


def _pattern(node: TextUntil) -> str | None:
    """The expression for the pattern or the format of a text. There is one only, because GBNF has no "and"."""
    regexes = patterns.of_strings(node.schema)
    return _of_regex(regexes[0]) if len(regexes) == 1 else None


def _of_regex(regex: str) -> str | None:
    """A regular expression whose texts contain no control token; None if it may have one, or has no spelling."""
    if patterns.may_contain(regex, "<") or patterns.may_contain(regex, "["):
        return None
    try:
        return f"({gbnf_text.of_regex(regex)})"
    except ValueError:
        return None


class _Writer:
    def __init__(self, control: Mapping[str, int], used: tuple[str, ...], rules: Written) -> None:
        self._control, self._used, self._rules = control, used, rules

    def expression(self, node: Node) -> str:
        match node:
            case ExactText(text):
                return gbnf_text.quoted(text)
            case ControlToken(literal):
                if literal not in self._control:
                    raise ValueError(f"the control token {literal!r} has no id")
                return f"<[{self._control[literal]}]>"
            case FreeText():
                return gbnf_text.without(self._rules, self._used)
            case VisibleText(without, unlike):
                return gbnf_text.without(self._rules, (*self._used, *without, *unlike), visible=True)
            case TextUntil():
                return self._text_before(node)
            case OtherName(known):
                return f"({gbnf_text.of_regex(patterns.other_names(known))})"
            case Index():
                return '("0" | [1-9] [0-9]{0,8})'
            case JsonSchema(schema):
                return gbnf_json.write(schema, self._rules, self._used)
            case Regex(regex):
                return f"({gbnf_text.of_regex(regex)})"
            case Rules(item, inner):
                for name, rule in inner.items():
                    # The body has the name in it, because two rules with the same body are two rules.
                    self._rules.setdefault(f"{self.expression(rule)} # {name}", _rule(name))
                return self.expression(item)
            case RuleRef(name):
                return _rule(name)
            case ClientText(text, otherwise, end=end):
                if not enforces(node):
                    return self.expression(otherwise)
                return f"({self.expression(text)} {gbnf_text.quoted(end)})"
            case Loosened(item) | OtherSyntax(item):
                return self.expression(item)
            case Choice(options):
                return f"({' | '.join(map(self.expression, options))})"
            case Concat(items):
                return f"({' '.join(map(self.expression, items))})" if items else '""'
            case Maybe(item):
                return f"{self._repeated(item)}?"
            case Repeat(item, least, most):
                return f"{self._repeated(item)}{{{least},{'' if most is None else most}}}"

    def _repeated(self, item: Node) -> str:
        return gbnf_text.named(self._rules, "part", self.expression(item))

    def _text_before(self, node: TextUntil) -> str:
        text = _pattern(node) or gbnf_text.without(self._rules, (*self._used, *node.without))
        options = " | ".join((*map(gbnf_text.quoted, node.words), text))
        return f"(({options}) {gbnf_text.quoted(node.end)})"


def _rule(name: str) -> str:
    return f"rule-{name.replace('_', '-')}"
