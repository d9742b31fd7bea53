"""JSON values as rules of Lark, so that their numbers have a bound on their digits.

llguidance writes a whole schema by itself (`%json`), without such a bound. Here the parts that most schemas have are
written as rules: objects, lists, strings, numbers, `anyOf` and references. Every other part stays `%json`. But for the
digits, the rules allow what `%json` allows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping
from typing import Any

from dovetail.grammar import numbers
from dovetail.grammar.cache import Cache
from dovetail.grammar.lark_schema import OPTIONS, TWO_SPELLINGS, WHITE_SPACE, complaint
from dovetail.grammar.patterns import other_texts
from dovetail.grammar.schemas.keywords import ABOUT, TYPES
from dovetail.grammar.schemas.walk import SpelledSchema

#: Schemas with more properties are left to the library, and lists with larger counts of items. Each property's rule
#: refers to the next one's, and llguidance crashes on a chain of 3,000.
_MOST_PROPERTIES, _MOST_ITEMS = 1_000, 1_000
#: From here on, the library rounds a bound to the number beside it.
_INEXACT = 2**53

_STRING = r'"(?:[^"\\\x00-\x1f\x7f]|\\(?:["\\bfnrt]|u00[01][0-9a-fA-F]|u007[fF]))*"'
_UNSIGNED, _POSITIVE = numbers.INTEGER.removeprefix("-?"), f"[1-9][0-9]{{0,{numbers.MOST_DIGITS - 1}}}"
_FRACTION, _ZEROS = rf"\.[0-9]{{1,{numbers.MOST_DIGITS}}}", rf"\.0{{1,{numbers.MOST_DIGITS}}}"
_NOT_ZEROS = rf"\.0{{0,{numbers.MOST_DIGITS - 1}}}[1-9][0-9]{{0,{numbers.MOST_DIGITS - 1}}}"
#: Keywords that compare numbers.
_EXACT = frozenset((*ABOUT["number"], "const", "enum"))
_OBJECT = frozenset(("properties", "required", "additionalProperties", "patternProperties"))
_ARRAY = frozenset(("items", "minItems", "maxItems"))
_KNOWN = frozenset((*_OBJECT, *_ARRAY, *ABOUT["string"], *ABOUT["number"], "type"))
#: The library's complaints about schemas, which are often the same ones in several tools.
_COMPLAINTS: Cache[str] = Cache(1024, 4 * 2**20)


def write(spelled: SpelledSchema, rules: dict[str, str]) -> str | None:
    """The name of the rule or terminal for a schema in the words of `lark_schema`; None if it has to be `%json`.

    `rules`: the names of rules and terminals by their body. This schema adds its own.
    """
    if any(pointer.rpartition("/")[2] in _EXACT for pointer in spelled.unenforced):
        return None  # a number that the library cannot compare may need more digits than the bound
    writer = _Writer(spelled.schema, rules)
    try:
        whole = writer.value(spelled.schema)
    except (_NotPlainError, RecursionError, UnicodeEncodeError):
        return None
    if whole is None:
        return None  # no value is valid: the library says why
    whole = writer.named("value_", whole)
    rules.update(writer.made)
    return whole


class _NotPlainError(Exception):
    """A schema that only the library can write as a whole."""


class _Writer:
    """Writes one schema. An expression is the text of a rule's body; None is the expression that nothing matches."""

    def __init__(self, root: Any, rules: Mapping[str, str]) -> None:
        self._root, self._rules = root, rules
        #: The new rules and terminals, as `rules`.
        self.made: dict[str, str] = {}
        self._referred: dict[str, str] = {}  # by reference
        self._numbers: dict[str, bool] = {}  # by reference: whether its values may be numbers
        self._properties = 0

    def named(self, prefix: str, body: str) -> str:
        """The name of the rule or terminal with this body. Terminals begin with a capital letter."""
        name = self._rules.get(body) or self.made.get(body)
        if name is None:
            name = self.made[body] = f"{prefix}{len(self._rules) + len(self.made)}"
        return name

    def _terminal(self, regex: str) -> str:
        return self.named("JSON_", f"/{regex}/")  # no regex here has a slash

    @property
    def _space(self) -> str:
        return self.named("space_", f"{self._terminal(WHITE_SPACE)}?")

    def value(self, schema: Any) -> str | None:
        """A valid value."""
        if schema is False:
            return None
        if schema is True:
            return self._anything()
        if not isinstance(schema, dict):
            raise _NotPlainError
        keywords = schema.keys() - {"x-guidance", "$defs"}
        if not keywords:
            return self._anything()
        if keywords == {"$ref"}:
            return self._reference(schema["$ref"])
        if keywords == {"anyOf"} and isinstance(schema["anyOf"], list):
            if sum(map(self._may_be_number, schema["anyOf"])) > 1:
                # llguidance's lexer takes the longest text of any of them: the sign or the digits of one number would
                # end the others.
                return self._library(schema)
            return _choice(map(self.value, schema["anyOf"]))
        types = schema.get("type", list(TYPES))
        types = [types] if isinstance(types, str) else types
        if not keywords <= _KNOWN or not isinstance(types, list) or not {*types} <= {*TYPES, "integer"}:
            return self._library(schema)
        return _choice(self._of_type(kind, schema) for kind in types if kind != "integer" or "number" not in types)

    def _may_be_number(self, schema: Any) -> bool:
        """Whether a value of `schema` may be a number; True where that is not plain to see."""
        if not isinstance(schema, dict):
            return schema is not False
        if isinstance(reference := schema.get("$ref"), str):
            if reference not in self._numbers:  # looked at once, however many schemas refer to it, itself among them
                self._numbers[reference] = True
                target = self._root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), True)
                self._numbers[reference] = self._may_be_number(target)
            return self._numbers[reference]
        if isinstance(schema.get("anyOf"), list):
            return any(map(self._may_be_number, schema["anyOf"]))
        if "const" in schema or isinstance(schema.get("enum"), list):
            return any(isinstance(each, int | float) for each in schema.get("enum", [schema.get("const")]))
        types = schema.get("type", "number")
        return not {"number", "integer"}.isdisjoint([types] if isinstance(types, str) else types)

    def _of_type(self, kind: str, schema: Mapping[str, Any]) -> str | None:
        match kind:
            case "null":
                return '"null"'
            case "boolean":
                return self.named("JSON_", '"true" | "false"')
            case "array":
                return self._array(schema)
            case "object":
                return self._object(schema)
        own = _only(schema, ABOUT["string" if kind == "string" else "number"])
        if kind == "string":
            return self._library({"type": kind, **own}) if own else self._terminal(_STRING)
        if not own:
            return self._terminal(numbers.INTEGER if kind == "integer" else numbers.NUMBER)
        return self._number(kind, own)

    def _reference(self, reference: Any) -> str | None:
        if reference not in self._referred:
            target = self._root
            if reference != "#":
                name = str(reference).removeprefix("#/$defs/")
                target = self._root.get("$defs", {}).get(name) if isinstance(self._root, dict) else None
            if target is None:
                raise _NotPlainError  # the library reports the fault
            rule = self._referred[reference] = f"defined_{len(self._rules)}_{len(self.made)}_{len(self._referred)}"
            body = self.value(target)
            if body is None:
                raise _NotPlainError  # what refers to it is written already
            self.made[f"{body} // {rule}"] = rule
        return self._referred[reference]

    def _library(self, schema: Mapping[str, Any]) -> str | None:
        """A value as the library writes it."""
        own = {**schema, "x-guidance": OPTIONS}
        text = json.dumps(own)
        if '"$ref"' in text:
            raise _NotPlainError
        if error := _COMPLAINTS.get(text, len(text), lambda: complaint(own)):
            if "Unsatisfiable" in error:
                return None
            raise _NotPlainError
        return self.named("json_", f"%json {text}")

    # -- any value ----------------------------------------------------------------------------------------------------

    def _anything(self) -> str:
        string, number, space = self._terminal(_STRING), self._terminal(numbers.NUMBER), self._space
        member = f'{string} {space} ":" {space} any_json {space}'
        truth = self._of_type("boolean", {})
        for name, body in (
            ("any_json", f'{string} | {number} | {truth} | "null" | any_list | any_object'),
            ("any_list", f'"[" {space} (any_json {space} ("," {space} any_json {space})*)? "]"'),
            ("any_object", f'"{{" {space} ({member} ("," {space} {member})*)? "}}"'),
        ):
            if body not in self._rules:
                self.made[body] = name
        return "any_json"

    # -- lists and objects --------------------------------------------------------------------------------------------

    def _array(self, schema: Mapping[str, Any]) -> str | None:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        bounds = [bound for bound in (least, most) if bound is not None]
        if not all(type(bound) is int and 0 <= bound <= _MOST_ITEMS for bound in bounds):
            return self._library({"type": "array", **_only(schema, _ARRAY)})
        if most is not None and least > most:
            return None
        item, space = self.value(schema.get("items", True)), self._space
        if item is None or most == 0:
            return f'("[" {space} "]")' if least == 0 else None
        item = f"{self.named('value_', item)} {space}"
        more = self.named("value_", f'"," {space} {item}')
        times = "*" if most is None and least < 2 else f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        items = item if most == 1 else f"{item} {more}{times}"
        items = items if least else f"({items})?"
        return f'("[" {space} {items} "]")'

    def _object(self, schema: Mapping[str, Any]) -> str | None:
        declared, required = schema.get("properties", {}), schema.get("required", [])
        others = schema.get("additionalProperties", True)
        if not isinstance(declared, dict) or not isinstance(required, list):
            raise _NotPlainError
        if "patternProperties" in schema:
            # `lark_schema` has one pattern for all keys that are not declared.
            ((pattern, others), *more) = schema["patternProperties"].items() or ((None, True),)
            if more or schema.get("additionalProperties") is not False or pattern not in ("", other_texts(declared)):
                return self._library({"type": "object", **_only(schema, _OBJECT)})
        elif others is not False and declared:
            return self._library({"type": "object", **_only(schema, _OBJECT)})
        if not all(isinstance(name, str) and name in declared for name in required) or any(
            TWO_SPELLINGS.search(name) for name in declared
        ):
            return self._library({"type": "object", **_only(schema, _OBJECT)})
        self._properties += len(declared)
        if self._properties > _MOST_PROPERTIES:
            raise _NotPlainError
        "".join(declared).encode()  # fails for half of a surrogate pair, which the library refuses
        space = self._space
        values = {name: self.value(each) for name, each in declared.items()}
        if any(values[name] is None for name in required):
            return None
        # Built from the end: `tail` is what may follow a member, and `starts` are what an object may begin with.
        starts, tail, optional = [], "", not required
        if (other := self.value(others)) is not None:
            member = self.named("member_", f'{self._other_key(declared)} {space} ":" {space} {other} {space}')
            tail = self.named("members_", f'("," {space} {member})*')
            starts = [f"{member} {tail}"]
        for name, value in reversed(values.items()):
            if value is None:
                continue
            key = json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)
            member = self.named("member_", f'{key} {space} ":" {space} {value} {space}')
            start = f"{member} {tail}"
            starts = [start] if name in required else [start, *starts]
            then = f'"," {space} {member}'
            tail = self.named("members_", f"{then if name in required else f'({then})?'} {tail}")
        members = f"({' | '.join(starts)}){'?' if optional else ''}" if starts else ""
        return f'("{{" {space} {members} "}}")'

    def _other_key(self, declared: Iterable[str]) -> str:
        names = [json.dumps(name, ensure_ascii=False) for name in declared]
        if not names:
            return self._terminal(_STRING)
        words = " | ".join(json.dumps(name, ensure_ascii=False) for name in names)
        return self.named("JSON_", f"/{_STRING}/ & ~({words})")

    # -- numbers with bounds ------------------------------------------------------------------------------------------

    def _number(self, kind: str, own: Mapping[str, Any]) -> str | None:
        """A number within bounds. Bounds that are no integers, and divisors, are left to the library."""
        whole = kind == "integer"
        bounds = [bound for bound in own.values() if isinstance(bound, int | float) and not isinstance(bound, bool)]
        plain = whole or all(bound % 1 == 0 for bound in bounds)
        if "multipleOf" in own or len(bounds) < len(own) or not plain or any(abs(each) >= _INEXACT for each in bounds):
            return self._library({"type": kind, **own})
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
        return _choice((positive, None if negative is None else f'"-" {negative}'))

    def _magnitude(self, least: float, most: float) -> str | None:
        """An integer without a sign, from `least` to `most`."""
        if least > most:
            return None
        if most == math.inf:
            if least < 2:
                return self._terminal(_POSITIVE if least else _UNSIGNED)
            digits = len(str(int(least)))
            longer = self._terminal(f"[1-9][0-9]{{{digits},{numbers.MOST_DIGITS - 1}}}")
            return f"({self._magnitude(least, 10**digits - 1)} | {longer})"
        if least == most:
            return f'"{int(least)}"'
        body = json.dumps({"type": "integer", "minimum": int(least), "maximum": int(most)})
        return self.named("json_", f"%json {body}")

    def _decimal(self, least: float, most: float, above: bool, below: bool) -> str | None:
        """A number without a sign, from `least` to `most`; not these themselves if `above` and `below`."""
        fraction, zeros = f"{self._terminal(_FRACTION)}?", f"{self._terminal(_ZEROS)}?"
        if least > most or (least == most and (above or below)):
            return None
        options: list[str | None] = []
        if least < most:
            if above:
                options.append(f'"{int(least)}" {self._terminal(_NOT_ZEROS)}')
            between = self._magnitude(least + above, most - 1)
            options.append(None if between is None else f"{between} {fraction}")
        if most < math.inf and not below:
            options.append(f'"{int(most)}" {zeros}')
        return _choice(options)


def _choice(options: Iterable[str | None]) -> str | None:
    possible = list(dict.fromkeys(option for option in options if option is not None))
    return None if not possible else possible[0] if len(possible) == 1 else f"({' | '.join(possible)})"


def _only(schema: Mapping[str, Any], keywords: Container[str]) -> dict[str, Any]:
    return {keyword: value for keyword, value in schema.items() if keyword in keywords}


def _floor(number: float) -> float:
    return number if math.isinf(number) else math.floor(number)
