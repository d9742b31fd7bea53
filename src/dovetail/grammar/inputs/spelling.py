"""Spells a `Language` as nodes: as it is, in a JSON string, or in a Python string.

In a string, every character that needs an escape is replaced by its escapes, wherever it stands in the grammar. The
escapes are those that models write: the short ones (`\\n`), and `\\u001f` for control characters without one.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby

from dovetail.grammar.inputs.charsets import Chars
from dovetail.grammar.inputs.expressions import (
    Alt,
    Expression,
    Ref,
    Seq,
    Times,
    either,
    is_nullable,
    references,
    sequence,
    text,
    times,
    walk,
)
from dovetail.grammar.inputs.language import Language
from dovetail.grammar.nodes import Choice, Concat, Maybe, Node, Regex, Repeat, RuleRef, Rules

_SHORT = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
#: The characters that need an escape, in JSON and in Python's strings in double quotes.
_ESCAPED = (*range(0x20), 0x22, 0x5C)
#: Repetitions, and characters and references, that xgrammar compiles in bounded time.
_MOST_TIMES, _LARGEST = 100, 5_000


def escaped(expression: Expression) -> Expression:
    """The expression of the inside of a string: every character that needs an escape has one."""
    match expression:
        case Chars():
            codes = [code for code in _ESCAPED if code in expression]
            return _with_escapes(expression, tuple(codes)) if codes else expression
        case Seq(items):
            return sequence(map(escaped, items))
        case Alt(options):
            return either(map(escaped, options))
        case Times(item, least, most):
            return times(escaped(item), least, most)
    return expression


@functools.lru_cache(1024)
def _with_escapes(characters: Chars, codes: tuple[int, ...]) -> Expression:
    short = (text(_SHORT[code]) for code in codes if code in _SHORT)
    digits: dict[str, Chars] = {}
    for code in codes:
        if code not in _SHORT:
            first = str(code // 16)
            digits[first] = digits.get(first, Chars(())) | Chars.of(f"{code % 16:x}").in_both_cases()
    coded = either(sequence((text(f"\\u00{first}"), second)) for first, second in digits.items())
    return either((characters.without(codes), *short, coded))


def node(language: Language, spell: Callable[[Expression], Expression], *around: Expression) -> Node:
    """The texts of a language, spelled by `spell`, between the two expressions of `around`, if there are any."""
    before, after = around or (sequence(()), sequence(()))
    start = sequence((before, spell(language.start), after))
    rules = {name: spell(rule) for name, rule in language.rules.items()}
    digest = hashlib.blake2b(repr((start, rules)).encode(), digest_size=6).hexdigest()
    names = {name: f"i{digest}_{i}" for i, name in enumerate(rules)}
    item = _node(start, names)
    return Rules(item, {names[name]: _node(rule, names) for name, rule in rules.items()}) if rules else item


def _node(expression: Expression, names: Mapping[str, str]) -> Node:
    """A node with one `Regex` for each part that has no references."""
    if not references(expression):
        matched = Regex(regex(expression))
        return Maybe(matched) if is_nullable(expression) else matched
    match expression:
        case Seq(items):
            runs = groupby(items, lambda item: bool(references(item)))
            parts = (part for has_references, run in runs for part in _parts(list(run), has_references))
            return Concat(tuple(_node(part, names) for part in parts))
        case Alt(options):
            regular = [option for option in options if not references(option)]
            others = [option for option in options if references(option)]
            return Choice(tuple(_node(part, names) for part in ([either(regular)] if regular else []) + others))
        case Times(item, least, most):
            inner = _node(item, names)
            return Maybe(inner) if (least, most) == (0, 1) else Repeat(inner, least, most)
    assert isinstance(expression, Ref)
    return RuleRef(names[expression.name])


def _parts(items: list[Expression], has_references: bool) -> Iterable[Expression]:
    return items if has_references else [sequence(items)]


def regex(expression: Expression) -> str:
    """The regex of an expression without references."""
    match expression:
        case Chars():
            return expression.regex()
        case Seq(items):
            return "".join(_grouped(item) if isinstance(item, Alt) else regex(item) for item in items)
        case Alt(options):
            return "|".join(map(regex, options))
        case Times(item, least, most):
            operator = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
            if operator is None:
                operator = f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"
            return f"{regex(item) if isinstance(item, Chars) else _grouped(item)}{operator}"
    raise AssertionError(expression)


def _grouped(expression: Expression) -> str:
    return f"(?:{regex(expression)})"


def may_contain(language: Language, character: str) -> bool:
    """Whether a character of ASCII may be in a text of the language."""
    inner = (each for expression in language.expressions() for each in walk(expression))
    return any(isinstance(each, Chars) and ord(character) in each for each in inner)


def is_portable(language: Language) -> bool:
    """Whether xgrammar has a notation for the language, and compiles it in bounded time."""
    count = 0
    for expression in language.expressions():
        for inner in walk(expression):
            count += 1
            if isinstance(inner, Chars) and inner.named:
                return False
            if isinstance(inner, Times) and max(inner.least, inner.most or 0) > _MOST_TIMES:
                return False
    return count <= _LARGEST
