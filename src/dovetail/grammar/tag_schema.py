"""JSON Schemas in the dialect of xgrammar's structural tags, as xgrammar 0.2.7 and 0.2.8 implement it.

xgrammar reads the first of `$ref`, `const`, `enum`, `anyOf`, `oneOf` and `allOf` in a schema and ignores what is beside
it. It forbids keys and items that are not declared, ignores every keyword without a `type`, and refuses a schema that
no value fits. The spelled schema therefore says the same in other words, and has only keywords that xgrammar
implements. Keywords that it cannot enforce are dropped and listed. `tests/grammar/test_tag_schema.py` checks the list.

xgrammar writes no escapes in a string with a pattern, a format or a length. A pattern is therefore enforced only if no
matching string needs an escape, and a length never: a string that is too long is found by the check after the call, but
a string that cannot be written is lost. (A pattern of the JSON with its escapes takes 0.6 to 44 ms a mask, and a length
of 200 takes a second: docs/decisions/0015.) -0 is not an integer to xgrammar. A declared key may be written again as
another key, in escapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from dovetail.grammar import patterns
from dovetail.grammar.cache import Cache
from dovetail.grammar.schemas.keywords import ABOUT, ABOUT_ALL, COMPOUND, TYPES, asserts, kind_of
from dovetail.grammar.schemas.references import Place, encoded
from dovetail.grammar.schemas.walk import SchemaWalk, SpelledSchema

_CACHED, _CACHED_BYTES = 1024, 16 * 2**20
#: xgrammar refuses larger counts and integers.
_MAX_COUNT, _LARGEST = 2**31 - 1, 2**63 - 2
#: Bounds of numbers. xgrammar writes six decimals and no exponent.
_SMALLEST_BOUND, _LARGEST_BOUND = 1e-6, 1e15
#: Of `multipleOf`: the largest divisor, and the largest distance between the bounds.
_MAX_DIVISOR, _MAX_RANGE = 1_024, 9_999
#: A constant with more levels has no white space, because engines bound the depth of a tag. An `enum` with more such
#: constants has none either.
_MAX_LEVELS, _MAX_CONSTANTS = 4, 1_000

#: xgrammar reads the first of these, and nothing beside it.
_EXCLUSIVE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
#: Formats that xgrammar implements as JSON Schema defines them.
_FORMATS = frozenset(("duration", "ipv6", "uri", "uri-reference", "uri-template"))
_LABEL, _ATOM = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", r"[\w!#$%&'*+/=?^`{|}~-]+"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
#: Formats as patterns, without their maximum lengths, quoted names and `xn--` labels.
_PARTIAL_FORMATS = {"hostname": _HOST, "email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOST}"}

_SPELLED: Cache[SpelledSchema] = Cache(_CACHED, _CACHED_BYTES)


def spell(schema: Any) -> SpelledSchema:
    """The schema for xgrammar. What is not a schema stays as it is, so that compiling refuses it.

    Raises `RecursionError` for a schema that is nested deeper than `bounds` allows.
    """
    key = encoded(schema)
    return _SPELLED.get(key, len(key), lambda: _spell(schema))


def _spell(schema: Any) -> SpelledSchema:
    walk = TagWalk(schema)
    try:
        return SpelledSchema(walk.whole(), tuple(walk.unenforced))
    except (AttributeError, LookupError, TypeError, ValueError):  # a keyword with a value of the wrong type
        return SpelledSchema(schema, ())


class TagWalk(SchemaWalk):
    def whole(self) -> Any:
        self.walk()
        if not self._remove_infinite():
            return False
        if self.definitions and isinstance(self.root, dict):
            self.root["$defs"] = self.definitions
        return {} if self.root is True else self.root

    def _remove_infinite(self) -> bool:
        """Remove the schemas that no finite value fits. Returns whether a finite value fits the whole."""
        finite = self.finite()
        for spelled, place in self.spelled:
            if "anyOf" in spelled:
                spelled["anyOf"] = [branch for branch in spelled["anyOf"] if branch in finite]
            for keyword in ("items", "additionalProperties"):
                if keyword in spelled and spelled[keyword] not in finite:
                    spelled[keyword] = False
            if "prefixItems" in spelled:
                first = [item in finite for item in spelled["prefixItems"]]
                if not all(first):
                    spelled["prefixItems"], spelled["items"] = spelled["prefixItems"][: first.index(False)], False
            if "properties" in spelled:
                declared = {name: each for name, each in spelled["properties"].items() if each in finite}
                if len(declared) < len(spelled["properties"]) and spelled.get("additionalProperties") is not False:
                    self.drop(place, "properties")  # the key may be written as one that is not declared
                spelled["properties"] = declared
            if not all(each in finite for each in spelled.get("patternProperties", {}).values()):
                del spelled["patternProperties"]  # `additionalProperties` is false beside it
        return self.root in finite

    def spell(self, place: Place) -> Any:
        schema = place.schema
        if not isinstance(schema, Mapping):
            return schema
        keywords = self.keywords(schema)
        asserted = [keyword for keyword in keywords if asserts(keywords, keyword)]
        if not asserted:
            return True
        exclusive = next((keyword for keyword in _EXCLUSIVE if keyword in schema), None)
        if exclusive is None:
            return self._of_types(place, keywords, asserted)
        enforced = {exclusive}
        spelled: Any
        if exclusive in ("const", "enum"):
            enforced.add("type")
            spelled = self._values(place, [schema["const"]] if exclusive == "const" else schema["enum"])
        elif exclusive == "$ref":
            spelled = {"$ref": self.reference(place)}
        elif exclusive == "allOf" and len(schema["allOf"]) == 1:
            spelled = self.below(place, "allOf")[0]
        elif exclusive == "allOf":
            others = [keyword for keyword in asserted if keyword != "allOf"]
            enforced = {*others}
            spelled = self._of_types(place, keywords, others)
        else:
            branches = [branch for branch in self.below(place, exclusive) if branch is not False]
            spelled = {"anyOf": branches} if branches else False
            if exclusive == "oneOf" and not self.is_any_of(place):
                enforced.clear()
        self.drop(place, *(keyword for keyword in asserted if keyword not in enforced))
        return self._add(place, spelled)

    def _add(self, place: Place, spelled: Any) -> Any:
        if isinstance(spelled, dict):
            self.spelled.append((spelled, place))
        return spelled

    def _any_of(self, place: Place, options: list[Any]) -> Any:
        if True in options:
            return True
        options = [option for option in options if option is not False]
        if len(options) < 2:
            return options[0] if options else False
        return self._add(place, {"anyOf": options})

    # -- constants ----------------------------------------------------------------------------------------------------

    def _values(self, place: Place, values: list[Any]) -> Any:
        """Any of `values` that has a type of the schema."""
        types = _types(place.schema)
        valid = [value for value in values if _has_type(value, types)]
        few = sum(map(_is_rewritten, valid)) <= _MAX_CONSTANTS
        plain = [value for value in valid if not (few and _is_rewritten(value))]
        options = [self._add(place, {"enum": plain})] if plain else []
        options += (self._constant(place, value) for value in valid if few and _is_rewritten(value))
        return self._any_of(place, options)

    def _constant(self, place: Place, value: Any) -> Any:
        """One value, with white space in it and its own digits. xgrammar's constants have no space, and 17 digits."""
        spelled: dict[str, Any] = {"enum": [value]}
        if _is_short_fraction(value):
            spelled = {"type": "number", "minimum": value, "maximum": value}
        if isinstance(value, Mapping):
            members = {name: self._constant(place, each) for name, each in value.items()}
            spelled = {"type": "object", "properties": members, "required": [*members], "additionalProperties": False}
        elif isinstance(value, list):
            first = {"prefixItems": [self._constant(place, each) for each in value]} if value else {}
            spelled = {"type": "array", **first, "items": False, "minItems": len(value)}
        return self._add(place, spelled)

    # -- values by type -----------------------------------------------------------------------------------------------

    def _of_types(self, place: Place, keywords: dict[str, Any], asserted: list[str]) -> Any:
        if not asserted:
            return True
        self.drop(place, *(keyword for keyword in asserted if keyword in ABOUT_ALL and keyword != "type"))
        spelled: dict[str, Any] = {}
        types: list[str] = []
        for kind in _types(keywords):
            own = {each: keywords[each] for each in asserted if each in ABOUT[_number_or(kind)]}
            possible = True
            match kind:
                case "integer" | "number":
                    possible = self._number(place, own, spelled, whole=kind == "integer")
                case "string":
                    possible = self._string(place, own, spelled)
                case "array":
                    possible = self._array(place, keywords, own, spelled)
                case "object":
                    possible = self._object(place, keywords, own, spelled)
            if possible:
                types.append(kind)
        if not types:
            return False
        return self._add(place, {"type": types if len(types) > 1 else types[0], **spelled})

    # Each of the next four methods spells the keywords `own`, which are about one type. It returns False if no value of
    # this type is valid.

    def _number(self, place: Place, own: dict[str, Any], spelled: dict[str, Any], *, whole: bool) -> bool:
        """Integers get bounds that are integers, because xgrammar refuses others."""
        for keyword in ABOUT["number"][:4]:
            bound = own.get(keyword)
            if bound is None:
                continue
            if abs(bound) > _LARGEST or not (whole or bound == 0 or _SMALLEST_BOUND <= abs(bound) <= _LARGEST_BOUND):
                self.drop(place, keyword)
            elif whole:
                spelled[keyword] = (math.ceil if keyword in ("minimum", "exclusiveMaximum") else math.floor)(bound)
            else:
                spelled[keyword] = bound
        low, above = spelled.get("minimum", -math.inf), spelled.get("exclusiveMinimum", -math.inf)
        high, below = spelled.get("maximum", math.inf), spelled.get("exclusiveMaximum", math.inf)
        least, most = (max(low, above + 1), min(high, below - 1)) if whole else (max(low, above), min(high, below))
        divisor = own.get("multipleOf", 1)
        distance = most - least
        unbounded = least == -math.inf and most == math.inf
        if whole and divisor % 1 == 0 and divisor <= _MAX_DIVISOR and (distance <= _MAX_RANGE or unbounded):
            if "multipleOf" in own:
                spelled["multipleOf"] = int(divisor)
            return bool(unbounded or least <= most // divisor * divisor)
        if "multipleOf" in own:
            self.drop(place, "multipleOf")
        return bool(distance > 0 or (distance == 0 and (whole or not (least == above or most == below))))

    def _string(self, place: Place, own: dict[str, Any], spelled: dict[str, Any]) -> bool:
        name, enforced = own.get("format", ""), ""
        if name in patterns.FORMATS:
            spelled["pattern"], enforced = patterns.FORMATS[name], "format"
        elif name in _PARTIAL_FORMATS:
            spelled["pattern"] = _PARTIAL_FORMATS[name]
        elif name in _FORMATS:
            spelled["format"], enforced = name, "format"
        elif "pattern" in own and (pattern := patterns.of_plain_json(own["pattern"])) is not None:
            spelled["pattern"], enforced = pattern, "pattern"
        self.drop(place, *(keyword for keyword in own if keyword != enforced))
        return _count(own.get("minLength", 0)) <= _count(own.get("maxLength", math.inf))

    def _array(self, place: Place, keywords: dict[str, Any], own: dict[str, Any], spelled: dict[str, Any]) -> bool:
        enforced = ["items", "prefixItems", "additionalItems"]
        rest = "items"
        if "unevaluatedItems" in own and {rest, "contains", "if"}.isdisjoint(keywords):
            rest = "unevaluatedItems"
            enforced.append(rest)
        first = self.below(place, "prefixItems") if "prefixItems" in keywords else []
        others = self.below(place, rest) if rest in keywords else True
        least, most = self._counts(own, spelled, enforced, "minItems", "maxItems")
        if most <= len(first):
            first, others = first[: int(most)], False
        if first:  # xgrammar wants them to be objects
            spelled["prefixItems"] = [self._add(place, {}) if each is True else each for each in first]
        spelled["items"] = others
        self.drop(place, *(keyword for keyword in own if keyword not in enforced))
        return least <= most

    def _object(self, place: Place, keywords: dict[str, Any], own: dict[str, Any], spelled: dict[str, Any]) -> bool:
        enforced = ["required", "additionalProperties"]
        rest = "additionalProperties"
        if "unevaluatedProperties" in own and {rest, "if", "dependentSchemas", "dependencies"}.isdisjoint(keywords):
            rest = "unevaluatedProperties"
            enforced.append(rest)
        others = self.below(place, rest) if rest in keywords else True
        declared, by_pattern = (
            self.below(place, keyword) if keyword in keywords else {} for keyword in ("properties", "patternProperties")
        )
        required = [name for name in keywords.get("required", ()) if isinstance(name, str)]
        named = {*declared, *required}
        key = patterns.of_plain_json(*by_pattern) if len(by_pattern) == 1 else None
        if by_pattern and others is False and not named and key is not None:
            (value,) = by_pattern.values()
            spelled["patternProperties"] = {key: value}
            enforced.append("patternProperties")
        elif by_pattern:  # any key that is not declared may match one of the patterns
            enforced.remove("additionalProperties")
            others = self._any_of(place, [*by_pattern.values(), others])
        if "propertyNames" in own and not named and not by_pattern and others is not False:
            spelled |= self._key_names(place, enforced)
        if named:
            spelled["properties"] = declared | {name: others for name in required if name not in declared}
        if required:
            spelled["required"] = required
        spelled["additionalProperties"] = others
        if others is False or not any(map(_needs_escapes, declared)):
            enforced.append("properties")  # else the same key may be written as one that is not declared
        least, most = self._counts(own, spelled, enforced, "minProperties", "maxProperties")
        closed = others is False and "patternProperties" not in spelled
        if not closed and least > len({*required}) + 1:
            enforced.remove("minProperties")  # the same key may come twice
        self.drop(place, *(keyword for keyword in own if keyword not in enforced))
        return max(least, len({*required})) <= (min(most, len(named)) if closed else most)

    def _key_names(self, place: Place, enforced: list[str]) -> dict[str, Any]:
        """`propertyNames` with the type string, because xgrammar would allow keys of other types."""
        names = self.references.below(place, "propertyNames")
        if not isinstance(names.schema, Mapping) or not names.schema.keys().isdisjoint(COMPOUND):
            return {}
        spelled = self.spell(names._replace(schema={**names.schema, "type": "string"}))
        if spelled is False:
            return {}
        enforced.append("propertyNames")
        return {} if spelled == {"type": "string"} else {"propertyNames": spelled}

    def _counts(
        self, own: dict[str, Any], spelled: dict[str, Any], enforced: list[str], lower: str, upper: str
    ) -> tuple[float, float]:
        for keyword in (lower, upper):
            if keyword in own and (count := _count(own[keyword])) <= _MAX_COUNT:
                spelled[keyword] = int(count)
                enforced.append(keyword)
        return spelled.get(lower, 0), spelled.get(upper, math.inf)


def _is_rewritten(value: Any) -> bool:
    """Whether a constant is spelled as something else than a constant."""
    return 0 < _levels(value) <= _MAX_LEVELS or _is_short_fraction(value)


def _is_short_fraction(value: Any) -> bool:
    """Whether a value is a fraction with at most six decimals, which bounds can express."""
    in_range = isinstance(value, float) and _SMALLEST_BOUND <= abs(value) <= _LARGEST_BOUND
    return in_range and round(value, 6) == value and value % 1 != 0


def _levels(value: Any) -> int:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_levels, inner), default=0)


def _count(number: Any) -> float:
    return number if isinstance(number, int | float) and number % 1 == 0 else math.inf


def _needs_escapes(name: str) -> bool:
    return json.dumps(name) != f'"{name}"'


def _types(schema: Mapping[str, Any]) -> list[str]:
    """The types of a schema, each once. "number" includes "integer"."""
    declared = schema.get("type", TYPES)
    types = [declared] if isinstance(declared, str) else [*dict.fromkeys(declared)]
    return [kind for kind in types if kind != "integer" or "number" not in types]


def _number_or(kind: str) -> str:
    return "number" if kind == "integer" else kind


def _has_type(value: Any, types: list[str]) -> bool:
    kind = kind_of(value)
    return kind in types or (kind == "number" and "integer" in types and value % 1 == 0)
