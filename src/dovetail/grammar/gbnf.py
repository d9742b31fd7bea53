"""Writes a grammar in GBNF, llama.cpp's own notation (llama.cpp, grammars/README.md).

Control tokens are written by their ids. llama.cpp reads a token in a text as the characters that it spells. So texts
and JSON strings cannot contain the characters of a control token that the grammar uses, and a request must forbid all
other control tokens. What GBNF cannot say is listed by `Grammar.unenforced`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dovetail.grammar import gbnf_json, gbnf_text, patterns
from dovetail.grammar.gbnf_text import Excluded, NameByBody
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


def write(root: Node, control: Mapping[str, int], apart: tuple[str, ...]) -> str:
    """The GBNF text of a grammar.

    `control`: the ids of control tokens by literal. `apart`: the control tokens that texts must not contain. Raises
    `ValueError` for a control token without an id, and for a schema that no value is valid for.
    """
    rules: NameByBody = {}
    start = _Writer(control, apart, rules).expression(root)
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
    """The expression for the pattern or the format of a text; None if there is none, or there are both: GBNF has no
    "and"."""
    regexes = patterns.of_strings(node.schema)
    return _of_regex(regexes[0]) if len(regexes) == 1 else None


def _of_regex(regex: str) -> str | None:
    """A regular expression whose texts contain no control token; None if it may have one, or has no spelling."""
    if any(patterns.may_contain(regex, mark) for mark in gbnf_text.MARKS):
        return None
    try:
        return f"({gbnf_text.of_regex(regex)})"
    except ValueError:
        return None


_MOST_COPIES = 1_000


class _Writer:
    def __init__(self, control: Mapping[str, int], apart: tuple[str, ...], rules: NameByBody) -> None:
        self._control, self._apart, self._rules = control, apart, rules

    def expression(self, node: Node) -> str:
        match node:
            case ExactText(text):
                return gbnf_text.quoted(text)
            case ControlToken(literal):
                if literal not in self._control:
                    raise ValueError(f"the control token {literal!r} has no id")
                return f"<[{self._control[literal]}]>"
            case FreeText():
                return gbnf_text.text(self._rules, Excluded(self._apart))
            case VisibleText(without, unlike):
                return gbnf_text.text(self._rules, Excluded((*self._apart, *without), first=unlike), visible=True)
            case TextUntil():
                return self._text_before(node)
            case OtherName(known):
                return f"({gbnf_text.of_regex(patterns.other_names(known))})"
            case Index():
                return '("0" | [1-9] [0-9]{0,8})'
            case JsonSchema(schema):
                return gbnf_json.write(schema, self._rules, self._apart)
            case Regex(regex):
                return f"({gbnf_text.of_regex_without(regex, self._rules, self._apart)})"
            case Rules(item, inner):
                for name, rule in inner.items():
                    # The body has the name in it, because two rules with the same body are two rules.
                    body = f"{self.expression(rule)} # {name}"
                    if _rule(name) in self._rules.values() and body not in self._rules:
                        raise ValueError(f"two rules have the name {name}")
                    self._rules[body] = _rule(name)
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
                part = self._repeated(item)
                rest = f"{part}*" if most is None else self._up_to(part, most - least)
                return f"({self._copies(part, least)} {rest})"

    def _repeated(self, item: Node) -> str:
        return gbnf_text.named(self._rules, "part", self.expression(item))

    def _copies(self, part: str, count: int) -> str:
        """Exactly `count` of a rule. llama.cpp repeats up to 2,000 times."""
        if count <= _MOST_COPIES:
            return f"{part}{{{count}}}" if count else '""'
        half = count // 2
        return gbnf_text.named(self._rules, "part", f"{self._copies(part, half)} {self._copies(part, count - half)}")

    def _up_to(self, part: str, most: int) -> str:
        if most <= _MOST_COPIES:
            return f"{part}{{0,{most}}}" if most else '""'
        half = most // 2
        more = f"{self._copies(part, half + 1)} {self._up_to(part, most - half - 1)}"
        return gbnf_text.named(self._rules, "part", f"{self._up_to(part, half)} | {more}")

    def _text_before(self, node: TextUntil) -> str:
        text = _pattern(node) or gbnf_text.text(self._rules, Excluded((*self._apart, *node.without)))
        options = " | ".join((*map(gbnf_text.quoted, node.words), text))
        return f"(({options}) {gbnf_text.quoted(node.end)})"


def _rule(name: str) -> str:
    return f"rule-{name.replace('_', '-')}"
