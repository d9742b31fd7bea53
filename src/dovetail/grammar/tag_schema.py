"""A JSON Schema as xgrammar (0.2.7 and 0.2.8 as found) takes it: what it cannot enforce is left out, and listed.

xgrammar reads the first of `$ref`, `const`, `enum`, `anyOf`, `oneOf` and `allOf` that a schema has and nothing beside
it, forbids keys and items that are not declared, ignores every keyword without a `type`, and refuses what no value
fits. So it is given a schema that says the same in other words, with the keywords that it implements and no others.
What is left out only widens the language. `tests/grammar/test_tag_schema.py` holds the list to it.

Strings with a pattern, a format or a length take no escapes. So patterns are kept only where none is needed, and
lengths never: what is too long is found afterwards, and what cannot be written is not. (A pattern of the JSON with its
escapes takes 0.6 to 44 ms a mask, and a length of 200 a second: docs/decisions/0015.) -0 is no integer. A key that is
declared may come again as one that is not, in escapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.grammar import patterns
from dovetail.grammar.kept import Kept
from dovetail.grammar.schemas.endings import Endings
from dovetail.grammar.schemas.keywords import ABOUT, ABOUT_ALL, COMPOUND, TYPES, asserts, is_old
from dovetail.grammar.schemas.kinds import kind_of
from dovetail.grammar.schemas.references import Place, References, pointer, spelled
from dovetail.grammar.schemas.separate import separate

_CACHED, _CACHED_CHARACTERS = 1024, 16 * 2**20
#: Counts and integers beyond are refused.
_MOST, _LARGEST = 2**31 - 1, 2**63 - 2
#: Of bounds of numbers, which have six decimals to xgrammar and no exponent.
_LEAST, _HIGHEST = 1e-6, 1e15
#: Of integers, and between bounds.
_DIVISOR, _MULTIPLES = 1_024, 9_999
#: Objects and lists in a constant in which white space may be written, as engines bound how deep a tag may be; and such
#: constants of one `enum`.
_DEEPEST, _FEW = 4, 1_000

_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
#: As xgrammar has them.
_FORMATS = frozenset(("duration", "ipv6", "uri", "uri-reference", "uri-template"))
_LABEL, _ATOM = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", r"[\w!#$%&'*+/=?^`{|}~-]+"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
#: Without their lengths, quoted names and what `xn--` is for.
_IN_PART = {"hostname": _HOST, "email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOST}"}


class Written(msgspec.Struct, frozen=True):
    """A schema for xgrammar, and JSON pointers (`#/properties/a/not`) to what it leaves out, or keeps in part only."""

    schema: Any
    unenforced: tuple[str, ...]


_KEPT: Kept[Written] = Kept(_CACHED, _CACHED_CHARACTERS)


def written(schema: Any) -> Written:
    """What is no schema at all stays as it is, for others to refuse. Raises `RecursionError` for one nested deeper than
    `bounds` allows."""
    asked = spelled(schema)
    return _KEPT.get(asked, len(asked), lambda: _written(schema))


def _written(schema: Any) -> Written:
    writing = _Writing(schema)
    try:
        return Written(writing.whole(), tuple(writing.lost))
    except (AttributeError, LookupError, TypeError, ValueError):  # a keyword that has what it may not have
        return Written(schema, ())


class _Writing:
    def __init__(self, root: Any) -> None:
        self._references = References(root)
        self._old = is_old(root)
        #: By path: the definitions that are referred to.
        self._names: dict[tuple[str, ...], str] = {}
        self._pending: list[Place] = []
        #: Every schema that was written, and where it came from.
        self._places: list[tuple[dict[str, Any], Place]] = []
        #: In order, each once.
        self.lost: dict[str, None] = {}

    def whole(self) -> Any:
        said = self._schema(self._references.root)
        definitions: dict[str, Any] = {}
        while self._pending:
            place = self._pending.pop()
            definitions[self._names[place.path]] = self._schema(place)
        if not self._end(said, definitions):
            return False
        if definitions and isinstance(said, dict):
            said["$defs"] = definitions
        return {} if said is True else said

    def _end(self, whole: Any, definitions: Mapping[str, Any]) -> bool:
        """Leave out what no value fits, or none that comes to an end. False: the whole is such."""

        def target(said: Mapping[str, Any]) -> Any:
            return whole if said["$ref"] == "#" else definitions.get(said["$ref"].removeprefix("#/$defs/"))

        endings = Endings((said for said, _ in self._places), target)
        for said, place in self._places:
            if "anyOf" in said:
                said["anyOf"] = [it for it in said["anyOf"] if endings.ends(it)]
            for keyword in ("items", "additionalProperties"):
                if keyword in said and not endings.ends(said[keyword]):
                    said[keyword] = False
            if "prefixItems" in said:
                first = [endings.ends(it) for it in said["prefixItems"]]
                if not all(first):
                    said["prefixItems"], said["items"] = said["prefixItems"][: first.index(False)], False
            if "properties" in said:
                declared = {name: it for name, it in said["properties"].items() if endings.ends(it)}
                if len(declared) < len(said["properties"]) and said.get("additionalProperties") is not False:
                    self._lose(place, "properties")  # such a key may come as one that is not declared
                said["properties"] = declared
            if not all(map(endings.ends, said.get("patternProperties", {}).values())):
                del said["patternProperties"]  # beside which no other keys are allowed
        return endings.ends(whole)

    def _lose(self, place: Place, *keywords: str) -> None:
        for keyword in keywords:
            if keyword in place.schema:
                self.lost[pointer((*place.path, keyword))] = None

    def _schema(self, place: Place) -> Any:
        schema = place.schema
        if not isinstance(schema, Mapping):
            return schema
        asserted = [keyword for keyword in schema if asserts(schema, keyword)]
        alone = next((keyword for keyword in _ALONE if keyword in schema), None)
        if not asserted:
            return True
        if alone is None:
            return self._of_types(place, asserted)
        kept = {alone}
        if alone in ("const", "enum"):
            kept.add("type")
            said = self._values(place, [schema["const"]] if alone == "const" else schema["enum"])
        elif alone == "$ref":
            said = {"$ref": self._reference(place, schema["$ref"])}
        elif alone == "allOf" and len(schema["allOf"]) == 1:
            said = self._branches(place, "allOf")[0]
        elif alone == "allOf":
            kept = {*asserted} - {"allOf"}
            said = self._of_types(place, [keyword for keyword in asserted if keyword != "allOf"])
        else:
            options = [it for it in self._branches(place, alone) if it is not False]
            said = {"anyOf": options} if options else False
            if alone == "oneOf" and not separate(self._references, place, schema["oneOf"]):
                kept.clear()
        self._lose(place, *(keyword for keyword in asserted if keyword not in kept))
        return self._wrote(place, said)

    def _wrote(self, place: Place, said: Any) -> Any:
        if isinstance(said, dict):
            self._places.append((said, place))
        return said

    def _branches(self, place: Place, keyword: str) -> list[Any]:
        return [self._schema(self._references.below(place, keyword, i)) for i in range(len(place.schema[keyword]))]

    def _reference(self, place: Place, reference: Any) -> Any:
        target = self._references.resolved(place, reference)
        if target is None:
            return reference  # which is refused
        if not target.path:
            return "#"
        if target.path not in self._names:
            self._names[target.path] = str(len(self._names))
            self._pending.append(target)
        return f"#/$defs/{self._names[target.path]}"

    def _values(self, place: Place, values: list[Any]) -> Any:
        """One of some values, if it is of a type that the schema has."""
        types = _types(place.schema)
        valid = [value for value in values if _is_of(value, types)]
        few = sum(map(_is_said, valid)) <= _FEW
        plain = [value for value in valid if not (few and _is_said(value))]
        options = [self._wrote(place, {"enum": plain})] if plain else []
        options += (self._constant(place, value) for value in valid if few and _is_said(value))
        return self._any_of(place, options)

    def _constant(self, place: Place, value: Any) -> Any:
        """Just this value, with white space in it, and no more digits than it has: xgrammar's own constants have no
        space, and 17 digits."""
        said: dict[str, Any] = {"enum": [value]}
        if _is_short(value):
            said = {"type": "number", "minimum": value, "maximum": value}
        if isinstance(value, Mapping):
            members = {name: self._constant(place, it) for name, it in value.items()}
            said = {"type": "object", "properties": members, "required": [*members], "additionalProperties": False}
        elif isinstance(value, list):
            first = {"prefixItems": [self._constant(place, it) for it in value]} if value else {}
            said = {"type": "array", **first, "items": False, "minItems": len(value)}
        return self._wrote(place, said)

    # -- values of some types -----------------------------------------------------------------------------------------

    def _of_types(self, place: Place, asserted: list[str]) -> Any:
        schema = place.schema
        if not asserted:
            return True
        self._lose(place, *(keyword for keyword in asserted if keyword in ABOUT_ALL and keyword != "type"))
        said: dict[str, Any] = {}
        types: list[str] = []
        for kind in _types(schema):
            own = [keyword for keyword in asserted if keyword in ABOUT[_plain(kind)]]
            possible = True
            match kind:
                case "integer" | "number":
                    possible = self._number(place, own, said, whole=kind == "integer")
                case "string":
                    possible = self._string(place, own, said)
                case "array":
                    possible = self._array(place, own, said)
                case "object":
                    possible = self._object(place, own, said)
            if possible:
                types.append(kind)
        if not types:
            return False
        return self._wrote(place, {"type": types if len(types) > 1 else types[0], **said})

    # Each of these adds what is said of one type, and gives False where no value of it is valid.

    def _number(self, place: Place, own: list[str], said: dict[str, Any], *, whole: bool) -> bool:
        """Of integers the bounds are integers, as xgrammar wants them to be."""
        schema = place.schema
        for keyword in ABOUT["number"][:4]:
            bound = schema.get(keyword)
            if isinstance(bound, bool):  # draft 4: a word about the bound beside it
                bound = schema.get(keyword.replace("exclusiveM", "m")) if bound else None
            elif schema.get(keyword.replace("m", "exclusiveM", 1)) is True:
                continue  # said by that
            if bound is None:
                continue
            if abs(bound) > _LARGEST or not (whole or bound == 0 or _LEAST <= abs(bound) <= _HIGHEST):
                self._lose(place, keyword)
            elif whole:
                said[keyword] = (math.ceil if keyword in ("minimum", "exclusiveMaximum") else math.floor)(bound)
            else:
                said[keyword] = bound
        low, above = said.get("minimum", -math.inf), said.get("exclusiveMinimum", -math.inf)
        high, below = said.get("maximum", math.inf), said.get("exclusiveMaximum", math.inf)
        least, most = (max(low, above + 1), min(high, below - 1)) if whole else (max(low, above), min(high, below))
        divisor = schema.get("multipleOf", 1)
        between = most - least
        unbounded = least == -math.inf and most == math.inf
        if whole and divisor % 1 == 0 and divisor <= _DIVISOR and (between <= _MULTIPLES or unbounded):
            if "multipleOf" in own:
                said["multipleOf"] = int(divisor)
            return bool(unbounded or least <= most // divisor * divisor)
        if "multipleOf" in own:
            self._lose(place, "multipleOf")
        return bool(between > 0 or (between == 0 and (whole or not (least == above or most == below))))

    def _string(self, place: Place, own: list[str], said: dict[str, Any]) -> bool:
        schema = place.schema
        least, most = _count(schema.get("minLength", 0)), _count(schema.get("maxLength", math.inf))
        kept: list[str] = []
        if "format" in own and schema["format"] in patterns.FORMATS:
            said["pattern"] = patterns.FORMATS[schema["format"]]
            kept.append("format")
        elif "format" in own and schema["format"] in _IN_PART:
            said["pattern"] = _IN_PART[schema["format"]]
        elif "format" in own and schema["format"] in _FORMATS:
            said["format"] = schema["format"]
            kept.append("format")
        elif "pattern" in own and (pattern := patterns.of_plain_json(schema["pattern"])) is not None:
            said["pattern"] = pattern
            kept.append("pattern")
        self._lose(place, *(keyword for keyword in own if keyword not in kept))
        return least <= most

    def _array(self, place: Place, own: list[str], said: dict[str, Any]) -> bool:
        schema = place.schema
        kept = ["items", "prefixItems", "additionalItems"]
        leading, rest = "prefixItems", "items"
        if isinstance(schema.get("items"), list):  # in drafts before 2020-12
            leading, rest = "items", "additionalItems"
        if "unevaluatedItems" in own and {rest, "contains", "if"}.isdisjoint(schema):
            rest = "unevaluatedItems"
            kept.append(rest)
        known = leading in schema and not (self._old and leading == "prefixItems")
        first = self._branches(place, leading) if known else []
        others = self._schema(self._references.below(place, rest)) if rest in schema else True
        least, most = self._counts(place, said, kept, "minItems", "maxItems")
        if most <= len(first):
            first, others = first[: int(most)], False
        if first:  # which xgrammar wants to be objects
            said["prefixItems"] = [self._wrote(place, {}) if it is True else it for it in first]
        said["items"] = others
        self._lose(place, *(keyword for keyword in own if keyword not in kept))
        return least <= most

    def _object(self, place: Place, own: list[str], said: dict[str, Any]) -> bool:
        schema = place.schema
        kept = ["required", "additionalProperties"]
        rest = "additionalProperties"
        if "unevaluatedProperties" in own and {rest, "if", "dependentSchemas", "dependencies"}.isdisjoint(schema):
            rest = "unevaluatedProperties"
            kept.append(rest)
        others = self._schema(self._references.below(place, rest)) if rest in schema else True
        declared, by_pattern = self._by_name(place, "properties"), self._by_name(place, "patternProperties")
        required = [name for name in schema.get("required", ()) if isinstance(name, str)]
        named = {*declared, *required}
        key = patterns.of_plain_json(*by_pattern) if len(by_pattern) == 1 else None
        if by_pattern and others is False and not named and key is not None:
            (value,) = by_pattern.values()
            said["patternProperties"] = {key: value}
            kept.append("patternProperties")
        elif by_pattern:  # any key that is not declared may be one of those
            kept.remove("additionalProperties")
            others = self._any_of(place, [*by_pattern.values(), others])
        if "propertyNames" in own and not named and not by_pattern and others is not False:
            said |= self._key_names(place, kept)
        if named:
            said["properties"] = declared | {name: others for name in required if name not in declared}
        if required:
            said["required"] = required
        said["additionalProperties"] = others
        if others is False or not any(map(_needs_escapes, declared)):
            kept.append("properties")  # else the same key may come as one that is not declared
        least, most = self._counts(place, said, kept, "minProperties", "maxProperties")
        closed = others is False and "patternProperties" not in said
        if not closed and least > len({*required}) + 1:
            kept.remove("minProperties")  # the same key may come twice
        self._lose(place, *(keyword for keyword in own if keyword not in kept))
        return max(least, len({*required})) <= (min(most, len(named)) if closed else most)

    def _by_name(self, place: Place, keyword: str) -> dict[str, Any]:
        names = place.schema.get(keyword, ())
        return {name: self._schema(self._references.below(place, keyword, name)) for name in names}

    def _any_of(self, place: Place, schemas: list[Any]) -> Any:
        if True in schemas:
            return True
        options = [said for said in schemas if said is not False]
        if len(options) < 2:
            return options[0] if options else False
        return self._wrote(place, {"anyOf": options})

    def _key_names(self, place: Place, kept: list[str]) -> dict[str, Any]:
        """What is said of all keys: a string, as xgrammar would take other values for keys, too."""
        named = self._references.below(place, "propertyNames")
        if not isinstance(named.schema, Mapping) or not named.schema.keys().isdisjoint(COMPOUND):
            return {}
        said = self._schema(named._replace(schema={**named.schema, "type": "string"}))
        if said is False:
            return {}
        kept.append("propertyNames")
        return {} if said == {"type": "string"} else {"propertyNames": said}

    def _counts(
        self, place: Place, said: dict[str, Any], kept: list[str], lower: str, upper: str
    ) -> tuple[float, float]:
        for keyword in (lower, upper):
            if keyword in place.schema and (count := _count(place.schema[keyword])) <= _MOST:
                said[keyword] = int(count)
                kept.append(keyword)
        return said.get(lower, 0), said.get(upper, math.inf)


def _is_said(value: Any) -> bool:
    """Whether a constant is said in other words than as a constant."""
    return 0 < _depth(value) <= _DEEPEST or _is_short(value)


def _is_short(value: Any) -> bool:
    """Whether it is a fraction that bounds can say."""
    return isinstance(value, float) and _LEAST <= abs(value) <= _HIGHEST and round(value, 6) == value and value % 1 != 0


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _count(number: Any) -> float:
    return number if isinstance(number, int | float) and number % 1 == 0 else math.inf


def _needs_escapes(name: str) -> bool:
    return json.dumps(name) != f'"{name}"'


def _types(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema has, each once; an integer is a number."""
    named = schema.get("type", TYPES)
    types = [named] if isinstance(named, str) else [*dict.fromkeys(named)]
    return [kind for kind in types if kind != "integer" or "number" not in types]


def _plain(kind: str) -> str:
    return "number" if kind == "integer" else kind


def _is_of(value: Any, types: list[str]) -> bool:
    kind = kind_of(value)
    return kind in types or (kind == "number" and "integer" in types and value % 1 == 0)
