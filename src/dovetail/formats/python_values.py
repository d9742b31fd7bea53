"""Python's values and keys as grammar nodes.

Strings may have quotes of either kind, and there may be whitespace between tokens. Undeclared keys have no escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dovetail.formats.plain_text import in_class, others
from dovetail.grammar import Choice, Concat, ExactText, Maybe, Node, Regex, Repeat, RuleRef
from dovetail.grammar.patterns import quoted

_KEYWORD = re.compile(r"[^\W\d]\w*")
GAP = r"[ \t\r\n]{0,16}"
COMMA = Regex(f"{GAP},{GAP}")
_COLON = f"{GAP}:{GAP}"
_CONTROL = r"\x00-\x1f"
_ESCAPE = (
    r"""\\(?:[\\'"abfnrtv]|x[0-9a-fA-F]{2}|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"""
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
INTEGER = Regex("-?(?:0|[1-9][0-9]*)")
NUMBER = Regex(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?")
BOOLEAN, NULL = Regex("True|False"), ExactText("None")
ANY = RuleRef("any")


def string(shortest: int = 0, longest: int | None = None) -> Regex:
    """A string of `shortest` to `longest` characters in quotes of either kind."""
    times = f"{{{shortest},{'' if longest is None else longest}}}" if shortest or longest is not None else "*"
    return Regex("|".join(rf"{q}(?:[^{q}\\{_CONTROL}]|{_ESCAPE}){times}{q}" for q in "\"'"))


def anything() -> dict[str, Node]:
    """The rules of `Ref("any")`: any JSON value, in Python."""
    member = Concat((Regex(f"(?:{string().regex}){_COLON}"), ANY))
    return {
        "any": Choice((string(), NUMBER, BOOLEAN, NULL, RuleRef("list"), RuleRef("dict"))),
        "list": bracketed("[", "]", Maybe(several(ANY))),
        "dict": bracketed("{", "}", Maybe(several(member))),
    }


class Keys(NamedTuple):
    """How the members of an object are written."""

    #: A member with a name, and a member with any name except some.
    member: Callable[[str, Node], Node]
    other: Callable[[list[str], Node], Node]


def _keyword(name: str, value: Node) -> Node:
    if _KEYWORD.fullmatch(name):
        return Concat((Regex(f"{quoted(name)}{GAP}={GAP}"), value))
    return _spread(_named(name), value)


def _other_keyword(names: list[str], value: Node) -> Node:
    not_in_names = "".join(c for c in map(chr, range(128)) if not (c.isalnum() or c == "_"))
    stops = f"{_CONTROL}{in_class(not_in_names[32:])}"
    free = others(filter(_KEYWORD.fullmatch, names), stops, not_first="0-9", whole=True)
    return Choice((Concat((Regex(f"(?:{free}){GAP}={GAP}"), value)), _spread(_not_named(names), value)))


def _spread(key: str, value: Node) -> Node:
    return Concat((Regex(rf"\*\*\{{{GAP}{key}{_COLON}"), value, Regex(rf"{GAP}\}}")))


def _named(name: str) -> str:
    return f"(?:{'|'.join(map(quoted, _forms(name)))})"


def _not_named(names: list[str]) -> str:
    if not names:
        return f"(?:{string().regex})"
    free = []
    for q in "\"'":
        free_name = others((name for name in names if f"{q}{name}{q}" in _forms(name)), rf"{q}\\{_CONTROL}", whole=True)
        empty = "?" if "" not in names else ""
        free.append(f"{q}(?:{free_name}){empty}{q}")
    return f"(?:{'|'.join(free)})"


def _forms(text: str) -> list[str]:
    """The spellings of a string: in double quotes, and in single ones if that needs no escapes."""
    quoted_text = json.dumps(text, ensure_ascii=False)
    plain = quoted_text == f'"{text}"' and "'" not in text and "\x7f" not in text
    return [quoted_text, f"'{text}'"] if plain else [quoted_text]


KEYWORDS = Keys(_keyword, _other_keyword)
STRINGS = Keys(
    lambda name, value: Concat((Regex(_named(name) + _COLON), value)),
    lambda names, value: Concat((Regex(_not_named(names) + _COLON), value)),
)


def bracketed(opening: str, closing: str, inside: Node | None) -> Node:
    """Brackets, and `inside` between them, if there is any."""
    items = (Regex(quoted(opening) + GAP), inside, Regex(GAP + quoted(closing)))
    return Concat(tuple(item for item in items if item is not None))


def several(item: Node, least: int = 1, most: int | None = None) -> Node:
    """`least` to `most` times `item`, with commas between. `most` is at least one."""
    more = Repeat(Concat((COMMA, item)), max(least - 1, 0), None if most is None else most - 1)
    some: Node = item if most == 1 else Concat((item, more))
    return some if least else Maybe(some)


def choice(options: list[Node | None]) -> Node | None:
    """One of `options`, of which some may be None (impossible); None if all are."""
    possible = tuple(option for option in options if option is not None)
    return Choice(possible) if len(possible) > 1 else possible[0] if possible else None


def one_of(values: list[Any]) -> Node | None:
    """One of some JSON values; None if there are none."""
    containers = [value for value in values if isinstance(value, list | Mapping)]
    forms: dict[str, None] = {}
    for value in values:
        if isinstance(value, str):
            forms.update(dict.fromkeys(_forms(value)))
        elif not isinstance(value, list | Mapping):
            forms[python(json.dumps(value))] = None
    scalars = [Regex("|".join(map(quoted, forms)))] if forms else []
    return choice([*scalars, *map(_constant, containers)])


def _constant(value: Any) -> Node:
    """This list or object, with whitespace between its tokens."""
    if isinstance(value, Mapping):
        items = [STRINGS.member(key, _just(it)) for key, it in value.items()]
    else:
        items = list(map(_just, value))
    inside = [part for item in items for part in (COMMA, item)][1:]
    opening, closing = "{}" if isinstance(value, Mapping) else "[]"
    return bracketed(opening, closing, Concat(tuple(inside)) if inside else None)


def _just(value: Any) -> Node:
    node = one_of([value])
    assert node is not None
    return node


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|true|false|null')
_CONSTANTS = {"true": "True", "false": "False", "null": "None"}


def python(value: str) -> str:
    """JSON text as Python."""
    return _JSON_TOKEN.sub(_python_token, value)


def _python_token(token: re.Match[str]) -> str:
    text = token.group()
    # JSON's escapes are Python's as well, except for the escaped slash.
    return _CONSTANTS.get(text) or re.sub(r"\\(.)", lambda escape: "/" if escape[1] == "/" else escape[0], text)
