"""`Language`: the texts that a client's grammar allows, as rules that are as few and as regular as possible.

The grammar library reads terminals by the longest match. Two terminals of which one may go on where the next begins
(`NAME "x"` with letters in `NAME`) would not be told apart. So everything that is regular becomes one regex: rules that
are not recursive are written where they are referred to, and recursion at the beginning or end of a rule becomes
repetition, which also removes most ambiguity. What is left in rules is nested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from dovetail.custom_tools import InputGrammar
from dovetail.grammar.cache import Cache
from dovetail.grammar.inputs import lark_text, regex_text
from dovetail.grammar.inputs.expressions import (
    NOTHING,
    Alt,
    Expression,
    Ref,
    Seq,
    Times,
    TooLargeError,
    Work,
    either,
    references,
    replaced,
    sequence,
    size,
    times,
    walk,
)

#: Characters of a definition.
_LONGEST = 50_000
#: Characters and references of an expression, with the repetitions written out: of a rule that is written where it is
#: referred to, if it is regular and if not; and of a whole grammar.
_MOST_INLINED, _MOST_INLINED_RULE, _LARGEST = 4_000, 200, 20_000
#: How much rules may grow while they are written out, and how many rules that refer to each other are.
_MOST_WORK, _MOST_IN_CIRCLES = 60_000, 20
#: Characters of the shortest text of any part.
_LONGEST_TEXT = 10_000
_START = "start"
_CACHED, _CACHED_BYTES = 256, 4 * 2**20


class Language(msgspec.Struct, frozen=True):
    """The texts of `start`, in which `Ref(name)` means the texts of `rules[name]`."""

    start: Expression
    rules: dict[str, Expression]

    @property
    def is_regular(self) -> bool:
        return not self.rules

    def expressions(self) -> tuple[Expression, ...]:
        return (self.start, *self.rules.values())


class InputGrammarError(ValueError):
    """Why a client's grammar cannot be used."""


def language(grammar: InputGrammar) -> Language:
    """The language of a client's grammar, from a cache. Raises `InputGrammarError`."""
    result = _CACHE.get(grammar, len(grammar.definition), lambda: _language(grammar))
    if isinstance(result, str):
        raise InputGrammarError(result)
    return result


_CACHE: Cache[Language | str] = Cache(_CACHED, _CACHED_BYTES)


def _language(grammar: InputGrammar) -> Language | str:
    """The language, or why there is none, which is cached too."""
    if len(grammar.definition) > _LONGEST:
        return f"it has more than {_LONGEST} characters"
    try:
        if grammar.syntax == "regex":
            return _checked(regex_text.parse(grammar.definition, whole=True), {}, Work(_MOST_WORK))
        return _of_lark(lark_text.parse(grammar.definition))
    except TooLargeError:
        return f"it has more than {_LARGEST} characters when its rules and repetitions are written out"
    except ValueError as error:
        return str(error)


def _of_lark(definitions: lark_text.Definitions) -> Language:
    work = Work(_MOST_WORK)
    terminals = _resolved(definitions, work)
    rules = {name: replaced(rule, terminals, work) for name, rule in definitions.rules.items()}
    if _START not in rules:
        raise InputGrammarError(f"there is no rule {_START!r}")
    for name, rule in rules.items():
        for missing in sorted(references(rule) - rules.keys()):
            raise InputGrammarError(f"the rule {name} refers to {missing}, which is not defined")
    rules = _reachable(rules)
    rules[_START] = sequence((terminals[lark_text.IGNORED], rules[_START]))
    for component in _components(rules):
        _write_out(component, rules, work)
    rules = _reachable(rules)
    if any(_START in references(rule) for rule in rules.values()):
        return _checked(Ref(_START), rules, work)
    return _checked(rules.pop(_START), rules, work)


def _checked(start: Expression, rules: dict[str, Expression], work: Work) -> Language:
    shortest = _shortest(rules, work)
    never = {name: NOTHING for name in rules if name not in shortest}
    start = replaced(start, never, work)
    rules = {name: replaced(rule, never, work) for name, rule in rules.items() if name not in never}
    if start == NOTHING:
        raise InputGrammarError("no text matches it")
    if size(start) + sum(map(size, rules.values())) > _LARGEST:
        raise TooLargeError
    # The library computes the text that has to come next, so that text has to be short.
    if any(_length(part, shortest) > _LONGEST_TEXT for whole in (start, *rules.values()) for part in walk(whole)):
        raise InputGrammarError(f"a part of it matches no text of less than {_LONGEST_TEXT} characters")
    return Language(start, rules)


def _resolved(definitions: lark_text.Definitions, work: Work) -> dict[str, Expression]:
    """The terminals without references, and what is ignored."""
    resolved: dict[str, Expression] = {}
    pending: set[str] = set()

    def resolve(name: str) -> None:
        if name not in definitions.terminals:
            raise InputGrammarError(f"the terminal {name} is not defined")
        if name in pending:
            raise InputGrammarError(f"the terminal {name} refers to itself, which only rules may")
        pending.add(name)
        terminal = definitions.terminals[name]
        for other in sorted(references(terminal) - resolved.keys()):
            resolve(other)
        resolved[name] = replaced(terminal, resolved, work)
        pending.remove(name)

    for name in definitions.terminals:
        if name not in resolved:
            resolve(name)
    for rule in definitions.rules.values():
        for name in sorted(references(rule)):
            if name.lstrip("_")[:1].isupper() and name not in resolved:
                raise InputGrammarError(f"the terminal {name} is not defined")
    for missing in (name for each in definitions.ignored for name in references(each) - resolved.keys()):
        raise InputGrammarError(f"the terminal {missing} is not defined")
    ignored = either(replaced(each, resolved, work) for each in definitions.ignored)
    return {**resolved, lark_text.IGNORED: times(ignored, 0, None)}


def _reachable(rules: dict[str, Expression]) -> dict[str, Expression]:
    """The rule `start`, and those to which it refers, directly or not."""
    seen: dict[str, Expression] = {}
    pending = [_START]
    while pending:
        name = pending.pop()
        if name not in seen:
            seen[name] = rules[name]
            pending += sorted(references(rules[name]))
    return seen


def _components(rules: dict[str, Expression]) -> list[list[str]]:
    """The rules in groups that refer to each other in circles; a group comes after those to which it refers."""
    components: list[list[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    # Tarjan's algorithm, without recursion because a chain of rules may be long.
    for root in rules:
        work = [(root, iter(sorted(references(rules[root]))))] if root not in index else []
        while work:
            name, following = work[-1]
            if name not in index:
                index[name] = low[name] = len(index)
                stack.append(name)
            other = next(following, None)
            if other is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    at = stack.index(name)
                    components.append(stack[at:])
                    del stack[at:]
            elif other not in index:
                work.append((other, iter(sorted(references(rules[other])))))
            elif other in stack:
                low[name] = min(low[name], index[other])
    return components


def _write_out(component: list[str], rules: dict[str, Expression], work: Work) -> None:
    """Write the rules of a component where they are referred to, as far as they are small, and remove the recursion at
    their beginnings and ends. Rules outside of the component that it refers to are done."""
    for name in component:
        done = {other: rules[other] for other in references(rules[name]) - {*component} if _is_small(other, rules)}
        rules[name] = _iterative(name, replaced(rules[name], done, work))
    left = [name for name in component if name != _START]
    for name in left if len(left) <= _MOST_IN_CIRCLES else ():
        for other in component if _is_small(name, rules) else ():
            if other != name and name in references(rules[other]):
                rules[other] = _iterative(other, replaced(rules[other], {name: rules[name]}, work))


def _is_small(name: str, rules: dict[str, Expression]) -> bool:
    """Whether a rule may be written where it is referred to. It may if it does not refer to itself, and rules without
    references may be larger than others."""
    rule = rules[name]
    inner = references(rule)
    return name not in inner and size(rule) <= (_MOST_INLINED_RULE if inner else _MOST_INLINED)


def _iterative(name: str, rule: Expression) -> Expression:
    """The rule `name` without references to itself at the beginning or the end of its alternatives.

    With the alternatives `name S name`, `U name`, `name T` and others B, it allows `P (S P)*`, where P is `U* B T*`.
    """
    between, before, after, others = [], [], [], []
    this = Ref(name)
    for option in rule.options if isinstance(rule, Alt) else (rule,):
        items = option.items if isinstance(option, Seq) else (option,)
        first, last = items[:1] == (this,), items[-1:] == (this,)
        if items == (this,):
            continue
        if first and last:
            between.append(sequence(items[1:-1]))
        elif first:
            after.append(sequence(items[1:]))
        elif last:
            before.append(sequence(items[:-1]))
        else:
            others.append(option)
    base = either(others)
    if not others and (between or before or after):
        return NOTHING
    part = sequence((times(either(before), 0, None), base, times(either(after), 0, None)))
    return sequence((part, times(sequence((either(between), part)), 0, None))) if between else part


def _shortest(rules: dict[str, Expression], work: Work) -> dict[str, float]:
    """The length of the shortest text of each rule. A rule whose texts would have to contain another one has none."""
    lengths = dict.fromkeys(rules, math.inf)
    before: dict[str, float] = {}
    order = [*rules]
    while lengths != before:
        before = dict(lengths)
        order.reverse()  # chains of rules may go either way
        for name in order:
            work.do()
            lengths[name] = _length(rules[name], lengths)
    return {name: length for name, length in lengths.items() if length < math.inf}


def _length(expression: Expression, lengths: Mapping[str, float]) -> float:
    """The length of the shortest text. `lengths`: the shortest texts of the rules."""
    match expression:
        case Ref(name):
            return lengths.get(name, math.inf)
        case Seq(items):
            return sum(_length(item, lengths) for item in items)
        case Alt(options):
            return min((_length(option, lengths) for option in options), default=math.inf)
        case Times(item, least):
            return least * _length(item, lengths) if least else 0
    return 1
