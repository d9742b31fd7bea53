"""`PYTHON`: Python's values and keys as grammar nodes. `JSON_WORDS` is the same with true, false and null.

Strings may have quotes of either kind, and there may be whitespace between tokens. Undeclared keys have no escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dovetail.formats.answers.plain_text import in_class, others
from dovetail.formats.declared.value_syntax import ANY, NUMBER, Keys, Syntax
from dovetail.grammar import Choice, Concat, ExactText, JsonSchema, Maybe, Node, Regex, RuleRef
from dovetail.grammar.patterns import quoted

_KEYWORD = re.compile(r"[^\W\d]\w*")
GAP = r"[ \t\r\n]{0,16}"
_COMMA = Regex(f"{GAP},{GAP}")
_COLON = f"{GAP}:{GAP}"
_CONTROL = r"\x00-\x1f"
_ESCAPE = (
    r"""\\(?:[\\'"abfnrtv]|x[0-9a-fA-F]{2}|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"""
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


def string(shortest: int = 0, longest: int | None = None) -> Regex:
    """A string of `shortest` to `longest` characters in quotes of either kind."""
    times = f"{{{shortest},{'' if longest is None else longest}}}" if shortest or longest is not None else "*"
    return Regex("|".join(rf"{q}(?:[^{q}\\{_CONTROL}]|{_ESCAPE}){times}{q}" for q in "\"'"))


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


class _PythonSyntax(Syntax):
    boolean: Node = Regex("True|False")
    null: Node = ExactText("None")
    arguments = Keys(_keyword, _other_keyword)
    members = Keys(
        lambda name, value: Concat((Regex(_named(name) + _COLON), value)),
        lambda names, value: Concat((Regex(_not_named(names) + _COLON), value)),
    )

    def string(self, schema: Mapping[str, Any], origin: str, pointer: str) -> Node:
        if not {"pattern", "format"}.isdisjoint(schema):
            return JsonSchema({"type": "string", **schema}, origin, pointer)
        return string(schema.get("minLength", 0), schema.get("maxLength"))

    def scalars(self, values: list[Any]) -> Node:
        forms: dict[str, None] = {}
        for value in values:
            forms.update(dict.fromkeys(_forms(value) if isinstance(value, str) else [self.constant(json.dumps(value))]))
        return Regex("|".join(map(quoted, forms)))

    def constant(self, value: str) -> str:
        """A JSON value without strings as it is written."""
        return python(value)

    def object(self, members: Node | None) -> Node:
        return _bracketed("{", "}", members)

    def array(self, items: Node | None) -> Node:
        return _bracketed("[", "]", items)

    def then(self, node: Node) -> Node:
        return Concat((_COMMA, node))

    def anything(self) -> dict[str, Node]:
        member = Concat((Regex(f"(?:{string().regex}){_COLON}"), ANY))
        return {
            "any": Choice((string(), NUMBER, self.boolean, self.null, RuleRef("list"), RuleRef("dict"))),
            "list": self.array(Maybe(self.several(ANY))),
            "dict": self.object(Maybe(self.several(member))),
        }


class _JsonWordsSyntax(_PythonSyntax):
    boolean, null = Regex("true|false"), ExactText("null")

    def constant(self, value: str) -> str:
        return value


PYTHON, JSON_WORDS = _PythonSyntax(), _JsonWordsSyntax()


def _bracketed(opening: str, closing: str, inside: Node | None) -> Node:
    """Brackets, and `inside` between them, if there is any."""
    items = (Regex(quoted(opening) + GAP), inside, Regex(GAP + quoted(closing)))
    return Concat(tuple(item for item in items if item is not None))


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|true|false|null')
_CONSTANTS = {"true": "True", "false": "False", "null": "None"}


def python(value: str) -> str:
    """JSON text as Python."""
    return _JSON_TOKEN.sub(_python_token, value)


def _python_token(token: re.Match[str]) -> str:
    text = token.group()
    # JSON's escapes are Python's as well, except for the escaped slash.
    return _CONSTANTS.get(text) or re.sub(r"\\(.)", lambda escape: "/" if escape[1] == "/" else escape[0], text)
