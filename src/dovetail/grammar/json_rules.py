"""JSON values as rules of a grammar, for notations without JSON Schema (GBNF), or with one that is too loose (Lark).

Objects, lists, strings, numbers, `anyOf` and references become rules, which all dialects spell alike. A dialect
(`lark_json`, `gbnf_json`) extends `JsonRules`: it spells regular expressions, and decides about every other part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from dovetail.grammar import numbers
from dovetail.grammar.lark_schema import TWO_SPELLINGS, WHITE_SPACE
from dovetail.grammar.schemas.keywords import ABOUT, TYPES

#: Schemas with more properties are not written as rules, and neither are lists with larger counts of items. Each
#: property's rule refers to the next one's, and llguidance crashes on a chain of 3,000.
_MOST_PROPERTIES, _MOST_ITEMS = 1_000, 1_000
#: From here on, llguidance rounds a bound to the number beside it.
_INEXACT = 2**53

#: A string has an escape only where JSON needs one, so that no other spelling of a key is another key.
ESCAPE = r'\\(?:["\\bfnrt]|u00[01][0-9a-fA-F]|u007[fF])'
STRING = rf'"(?:[^"\\\x00-\x1f\x7f]|{ESCAPE})*"'
_UNSIGNED, _POSITIVE = numbers.INTEGER.removeprefix("-?"), f"[1-9][0-9]{{0,{numbers.MOST_DIGITS - 1}}}"
_FRACTION, _ZEROS = rf"\.[0-9]{{1,{numbers.MOST_DIGITS}}}", rf"\.0{{1,{numbers.MOST_DIGITS}}}"
_NOT_ZEROS = rf"\.0{{0,{numbers.MOST_DIGITS - 1}}}[1-9][0-9]{{0,{numbers.MOST_DIGITS - 1}}}"
OBJECT = frozenset(("properties", "required", "additionalProperties", "patternProperties"))
_ARRAY = frozenset(("items", "minItems", "maxItems"))
_KNOWN = frozenset((*OBJECT, *_ARRAY, *ABOUT["string"], *ABOUT["number"], "type"))


#: What makes the expression of keys, from the keys that it must not allow, and the schema of the values.
Undeclared = tuple[Callable[[Iterable[str]], str], Any]


class NotPlainError(Exception):
    """A schema that cannot be written as rules."""


class JsonRules:
    """Writes one schema. An expression is the text of a rule's body; None is the expression that nothing matches.

    `rules`: the names of rules by their body, to which the caller adds `made`.
    """

    #: What begins a comment.
    comment: str

    def __init__(self, root: Any, rules: Mapping[str, str]) -> None:
        self._root, self._rules = root, rules
        #: The new rules and terminals, as `rules`.
        self.made: dict[str, str] = {}
        self._referred: dict[str, str] = {}  # by reference
        self._properties = 0

    def named(self, prefix: str, body: str) -> str:
        """The name of the rule with this body: letters and digits, which all dialects allow. In Lark, terminals begin
        with a capital letter."""
        name = self._rules.get(body) or self.made.get(body)
        if name is None:
            name = self.made[body] = f"{prefix}{len(self._rules) + len(self.made)}"
        return name

    # -- what a dialect decides ---------------------------------------------------------------------------------------

    def terminal(self, regex: str) -> str:
        """The texts that match a regular expression in the syntax of `patterns`."""
        raise NotImplementedError

    def literal(self, text: str) -> str:
        """Exactly this text."""
        return json.dumps(text, ensure_ascii=False)

    def other(self, schema: Mapping[str, Any]) -> str | None:
        """A valid value of a schema that is not written here. Raises `NotPlainError`."""
        raise NotImplementedError

    def string(self) -> str:
        """Any string."""
        return self.terminal(STRING)

    def undeclared(self, schema: Mapping[str, Any], declared: Mapping[str, Any]) -> Undeclared | None:
        """The keys that an object may have beside the declared ones, and the schema of their values; None if `other`
        has to write the object."""
        raise NotImplementedError

    def between(self, least: int, most: int) -> str:
        """An integer from `least` to `most`, which are at least 0."""
        raise NotImplementedError

    # -- any value ----------------------------------------------------------------------------------------------------

    @property
    def _space(self) -> str:
        return self.named("space", f"{self.terminal(WHITE_SPACE)}?")

    def value(self, schema: Any) -> str | None:
        """A valid value."""
        if schema is False:
            return None
        if schema is True:
            return self._anything()
        if not isinstance(schema, dict):
            raise NotPlainError
        keywords = schema.keys() - {"x-guidance", "$defs"}
        if not keywords:
            return self._anything()
        if keywords == {"$ref"}:
            return self._reference(schema["$ref"])
        if keywords == {"anyOf"} and isinstance(schema["anyOf"], list):
            return choice(map(self.value, schema["anyOf"]))
        types = schema.get("type", list(TYPES))
        types = [types] if isinstance(types, str) else types
        if not keywords <= _KNOWN or not isinstance(types, list) or not {*types} <= {*TYPES, "integer"}:
            return self.other(schema)
        return choice(self._of_type(kind, schema) for kind in types if kind != "integer" or "number" not in types)

    def _of_type(self, kind: str, schema: Mapping[str, Any]) -> str | None:
        match kind:
            case "null":
                return '"null"'
            case "boolean":
                return self.named("JSON", '"true" | "false"')
            case "array":
                return self._array(schema)
            case "object":
                return self._object(schema)
        own = _only(schema, ABOUT["string" if kind == "string" else "number"])
        if kind == "string":
            return self.other({"type": kind, **own}) if own else self.string()
        if not own:
            return self.terminal(numbers.INTEGER if kind == "integer" else numbers.NUMBER)
        return self._number(kind, own)

    def _reference(self, reference: Any) -> str | None:
        if reference not in self._referred:
            target = self._root
            if reference != "#":
                name = str(reference).removeprefix("#/$defs/")
                target = self._root.get("$defs", {}).get(name) if isinstance(self._root, dict) else None
            if target is None:
                raise NotPlainError  # the library reports the fault
            rule = self._referred[reference] = f"defined{len(self._rules)}x{len(self.made)}x{len(self._referred)}"
            body = self.value(target)
            if body is None:
                raise NotPlainError  # what refers to it is written already
            self.made[f"{body} {self.comment} {rule}"] = rule
        return self._referred[reference]

    def _anything(self) -> str:
        string, number, space = self.string(), self.terminal(numbers.NUMBER), self._space
        member = f'{string} {space} ":" {space} anyjson {space}'
        truth = self._of_type("boolean", {})
        for name, body in (
            ("anyjson", f'{string} | {number} | {truth} | "null" | anylist | anyobject'),
            ("anylist", f'"[" {space} (anyjson {space} ("," {space} anyjson {space})*)? "]"'),
            ("anyobject", f'"{{" {space} ({member} ("," {space} {member})*)? "}}"'),
        ):
            if body not in self._rules:
                self.made[body] = name
        return "anyjson"

    # -- lists and objects --------------------------------------------------------------------------------------------

    def _array(self, schema: Mapping[str, Any]) -> str | None:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        bounds = [bound for bound in (least, most) if bound is not None]
        if not all(type(bound) is int and 0 <= bound <= _MOST_ITEMS for bound in bounds):
            return self.other({"type": "array", **_only(schema, _ARRAY)})
        if most is not None and least > most:
            return None
        item, space = self.value(schema.get("items", True)), self._space
        if item is None or most == 0:
            return f'("[" {space} "]")' if least == 0 else None
        item = f"{self.named('value', item)} {space}"
        more = self.named("value", f'"," {space} {item}')
        times = "*" if most is None and least < 2 else f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        items = item if most == 1 else f"{item} {more}{times}"
        items = items if least else f"({items})?"
        return f'("[" {space} {items} "]")'

    def _object(self, schema: Mapping[str, Any]) -> str | None:
        declared, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(declared, dict) or not isinstance(required, list):
            raise NotPlainError
        undeclared = self.undeclared(schema, declared)
        plain = all(isinstance(name, str) and name in declared for name in required)
        if undeclared is None or not plain or any(map(TWO_SPELLINGS.search, declared)):
            return self.other({"type": "object", **_only(schema, OBJECT)})
        self._properties += len(declared)
        if self._properties > _MOST_PROPERTIES:
            raise NotPlainError
        "".join(declared).encode()  # fails for half of a surrogate pair, which the library refuses
        space = self._space
        values = {name: self.value(each) for name, each in declared.items()}
        if any(values[name] is None for name in required):
            return None
        # Built from the end: `tail` is what may follow a member, and `starts` are what an object may begin with.
        starts, tail, optional = [], "", not required
        other_key, others = undeclared
        if (other := self.value(others)) is not None:
            member = self.named("member", f'{other_key(declared)} {space} ":" {space} {other} {space}')
            tail = self.named("members", f'("," {space} {member})*')
            starts = [f"{member} {tail}"]
        for name, value in reversed(values.items()):
            if value is None:
                continue
            key = self.literal(json.dumps(name, ensure_ascii=False))
            member = self.named("member", f'{key} {space} ":" {space} {value} {space}')
            start = f"{member} {tail}"
            starts = [start] if name in required else [start, *starts]
            then = f'"," {space} {member}'
            tail = self.named("members", f"{then if name in required else f'({then})?'} {tail}")
        members = f"({' | '.join(starts)}){'?' if optional else ''}" if starts else ""
        return f'("{{" {space} {members} "}}")'

    # -- numbers with bounds ------------------------------------------------------------------------------------------

    def _number(self, kind: str, own: Mapping[str, Any]) -> str | None:
        """A number within bounds. Bounds that are no integers, and divisors, are left to the library."""
        whole = kind == "integer"
        bounds = [bound for bound in own.values() if isinstance(bound, int | float) and not isinstance(bound, bool)]
        plain = whole or all(bound % 1 == 0 for bound in bounds)
        if "multipleOf" in own or len(bounds) < len(own) or not plain or any(abs(each) >= _INEXACT for each in bounds):
            return self.other({"type": kind, **own})
        low, above = own.get("minimum", -math.inf), own.get("exclusiveMinimum", -math.inf)
        high, below = own.get("maximum", math.inf), own.get("exclusiveMaximum", math.inf)
        if whole:
            least, most = max(-_floor(-low), _floor(above) + 1), min(_floor(high), -_floor(-below) - 1)
            positive = self._magnitude(max(least, 0), most)
            negative = self._magnitude(max(-most, 1), -least)
        else:
            least, most = max(low, above), min(high, below)
            positive = self._decimal(max(least, 0), most, least >= 0 and above == least, below == most)
            negative = self._decimal(max(-most, 0), -least, most >= 0 or below == most, above == least)
        return choice((positive, None if negative is None else f'"-" {negative}'))

    def _magnitude(self, least: float, most: float) -> str | None:
        """An integer without a sign, from `least` to `most`."""
        if least > most:
            return None
        if most == math.inf:
            if least < 2:
                return self.terminal(_POSITIVE if least else _UNSIGNED)
            digits = len(str(int(least)))
            longer = self.terminal(f"[1-9][0-9]{{{digits},{numbers.MOST_DIGITS - 1}}}")
            return f"({self._magnitude(least, 10**digits - 1)} | {longer})"
        if least == most:
            return f'"{int(least)}"'
        return self.between(int(least), int(most))

    def _decimal(self, least: float, most: float, above: bool, below: bool) -> str | None:
        """A number without a sign, from `least` to `most`; not these themselves if `above` and `below`."""
        fraction, zeros = f"{self.terminal(_FRACTION)}?", f"{self.terminal(_ZEROS)}?"
        if least > most or (least == most and (above or below)):
            return None
        options: list[str | None] = []
        if least < most:
            if above:
                options.append(f'"{int(least)}" {self.terminal(_NOT_ZEROS)}')
            between = self._magnitude(least + above, most - 1)
            options.append(None if between is None else f"{between} {fraction}")
        if most < math.inf and not below:
            options.append(f'"{int(most)}" {zeros}')
        return choice(options)


def choice(options: Iterable[str | None]) -> str | None:
    """Any of the expressions."""
    possible = list(dict.fromkeys(option for option in options if option is not None))
    return None if not possible else possible[0] if len(possible) == 1 else f"({' | '.join(possible)})"


def _only(schema: Mapping[str, Any], keywords: Container[str]) -> dict[str, Any]:
    return {keyword: value for keyword, value in schema.items() if keyword in keywords}


def _floor(number: float) -> float:
    return number if math.isinf(number) else math.floor(number)
