"""Flat schemas: a parameter's schema as alternatives without `$ref`, `allOf`, `anyOf` and `oneOf`.

A grammar that writes parameters as text needs them to tell strings from other values. `references` always resolves the
references of the tool's whole schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dovetail.grammar.schemas.exclusive import are_exclusive
from dovetail.grammar.schemas.keywords import ABOUT, ABOUT_ALL, ASSERTIONS, COMPOUND, TYPES, kind_of
from dovetail.grammar.schemas.references import Place, References, pointer

KINDS = frozenset(TYPES)
#: The keywords that restrict values of a type, by the type.
ASSERTS = {kind: frozenset((*keywords, *ABOUT_ALL)) for kind, keywords in ABOUT.items()}

_MIN = ("minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties")
_MAX = ("maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties")
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = (*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas")
_VALUES = ("enum", "const", "default", "examples")
_MOST_ALTERNATIVES = 32
_DEEPEST = 16


class NotSimpleError(Exception):
    """A schema cannot be written as flat schemas."""


def alternatives(schema: Any, references: References, depth: int = 0) -> list[dict[str, Any]]:
    """The flat schemas of which a valid value satisfies at least one; no value is valid if there are none.

    A flat schema has no keyword of `COMPOUND`, and `enum` in place of `const`. `oneOf` is treated as `anyOf`: see
    `overlapping`. Raises `NotSimpleError`.
    """
    if isinstance(schema, bool):
        return [{}] if schema else []
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        raise NotSimpleError
    own = {key: value for key, value in schema.items() if key in ASSERTIONS and key not in COMPOUND}
    if "const" in own:
        own = _merged(own, {"enum": [own.pop("const")]})
    named, values = _list_of_types(own.get("type", [])), own.get("enum", [])
    if not all(kind in KINDS or kind == "integer" for kind in map(str, named)) or not isinstance(values, list):
        raise NotSimpleError
    flats = [own]
    parts = [[_target(references, schema["$ref"])]] if "$ref" in schema else []
    parts += [[part] for part in _list(schema.get("allOf", ()))]
    parts += [_list(schema[word]) for word in ("anyOf", "oneOf") if word in schema]
    for part in parts:
        others = [other for each in part for other in alternatives(each, references, depth + 1)]
        if len(flats) * len(others) > _MOST_ALTERNATIVES:
            raise NotSimpleError
        flats = [_merged(one, other) for one in flats for other in others]
    return [one for one in flats if one.get("type") != [] and one.get("enum") != []]


def overlapping(place: Place, references: References) -> Iterator[str]:
    """JSON pointers to each `oneOf` that may be stricter than `anyOf`, in the schema at `place` and in those that it
    refers to or combines."""
    pending, seen = [place], set()
    while pending:
        place = pending.pop()
        if place.path in seen or not isinstance(place.schema, Mapping):
            continue
        seen.add(place.path)
        for keyword in ("allOf", "anyOf", "oneOf"):
            if isinstance(branches := place.schema.get(keyword), list):
                if keyword == "oneOf" and not are_exclusive(references, place, branches):
                    yield pointer((*place.path, keyword))
                pending += (references.below(place, keyword, i) for i in range(len(branches)))
        if (target := references.resolved(place, place.schema.get("$ref"))) is not None:
            pending.append(target)


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The flat schema of the values that are valid for both."""
    merged = dict(one)
    for key, value in other.items():
        if key not in merged:
            merged[key] = value
        elif key in _OBJECTS:
            pass  # see `_merged_objects`
        elif key == "type":
            merged[key] = [kind for kind in _list_of_types(value) if kind in _list_of_types(merged[key])]
        elif key == "enum":
            merged[key] = [each for each in _list(merged[key]) if is_among(each, _list(value))]
        elif key in (*_MIN, *_MAX):
            if not all(isinstance(each, int | float) for each in (value, merged[key])):
                raise NotSimpleError
            merged[key] = (max if key in _MIN else min)(value, merged[key])
        elif merged[key] != value:
            raise NotSimpleError
    if not _OBJECTS.isdisjoint(one) and not _OBJECTS.isdisjoint(other):
        merged |= _merged_objects(one, other)
    return merged


_OBJECTS = frozenset(("properties", "required", "additionalProperties"))


def _merged_objects(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    if "patternProperties" in one or "patternProperties" in other:
        raise NotSimpleError
    properties: dict[str, Any] = {}
    for name in (*properties_of(one), *properties_of(other)):
        both = [properties_of(each).get(name, each.get("additionalProperties", True)) for each in (one, other)]
        properties[name] = _both(*both)
    merged: dict[str, Any] = {"properties": properties}
    merged["required"] = list(dict.fromkeys((*required_of(one), *required_of(other))))
    if "additionalProperties" in one or "additionalProperties" in other:
        merged["additionalProperties"] = _both(*(each.get("additionalProperties", True) for each in (one, other)))
    return merged


def _both(one: Any, other: Any) -> Any:
    if one is False or other is False:
        return False
    parts = [each for each in (one, other) if each is not True]
    return {"allOf": parts} if len(parts) > 1 else parts[0] if parts else True


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise NotSimpleError
    return properties


def required_of(schema: Mapping[str, Any]) -> list[str]:
    required = _list(schema.get("required", ()))
    if not all(isinstance(name, str) for name in required):
        raise NotSimpleError
    return required


def kinds_of(flat: Mapping[str, Any]) -> frozenset[str]:
    """The types that `type` and `enum` of a flat schema allow. Integers count as numbers."""
    kinds = KINDS
    if "type" in flat:
        kinds &= frozenset("number" if kind == "integer" else kind for kind in _list_of_types(flat["type"]))
    if "enum" in flat:
        kinds &= frozenset(map(kind_of, _list(flat["enum"])))
    return kinds


def is_free(flat: Mapping[str, Any], kind: str) -> bool:
    """Whether a flat schema allows every value of a type, which may be "integer", too."""
    number = "number" if kind == "integer" else kind
    if kind == "number" and "type" in flat and "number" not in _list_of_types(flat["type"]):
        return False
    return number in kinds_of(flat) and ASSERTS[number].isdisjoint(flat.keys() - {"type"})


def of_kinds(flat: Mapping[str, Any], kinds: Iterable[str]) -> dict[str, Any] | None:
    """The flat schema, restricted to values of these types; None if it allows no such value."""
    left = [kind for kind in sorted(kinds_of(flat)) if kind in kinds]
    if not left:
        return None
    if "enum" in flat:
        return {**flat, "enum": [each for each in _list(flat["enum"]) if kind_of(each) in left]}
    integers = "type" in flat and "number" not in _list_of_types(flat["type"])
    named = ["integer" if kind == "number" and integers else kind for kind in left]
    return {**flat, "type": named[0] if len(named) == 1 else named}


def carrying(schema: Any, references: References) -> Any:
    """The schema on its own, with everything that it refers to in its `$defs`."""
    names: dict[tuple[str, ...], str] = {}
    definitions: dict[str, Any] = {}

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(each) for each in value]
        if not isinstance(value, Mapping):
            return value
        copied: dict[str, Any] = {}
        for key, inner in value.items():
            if key in _DEFINITIONS and isinstance(inner, Mapping):
                continue
            if key in _BY_NAME and isinstance(inner, Mapping):
                copied[key] = {name: moved(it) for name, it in inner.items()}
            elif key == "$ref" and isinstance(inner, str):
                copied[key] = referred(inner)
            else:
                copied[key] = inner if key in _VALUES else moved(inner)
        return copied

    def referred(reference: str) -> str:
        place = references.resolved(references.root, reference)
        if place is None:
            return reference  # the grammar library reports the fault
        if place.path not in names:
            name = place.path[-1] if place.path else "#"
            names[place.path] = name = name if name not in definitions else f"{name}#{len(names)}"
            definitions[name] = None  # a schema may refer to itself
            definitions[name] = moved(place.schema)
        name = names[place.path].replace("~", "~0").replace("/", "~1")
        return f"#/$defs/{name}"

    copied = moved(schema)
    return {**copied, "$defs": definitions} if definitions else copied


def _target(references: References, reference: Any) -> Any:
    place = references.resolved(references.root, reference)
    if place is None:
        raise NotSimpleError
    return place.schema


def _list_of_types(named: Any) -> list[str]:
    return [named] if isinstance(named, str) else _list(named)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise NotSimpleError
    return list(value)


def is_among(value: Any, values: Iterable[Any]) -> bool:
    """Whether a value is among `values`, compared as JSON Schema does: true is not 1."""
    return any(value == other and kind_of(value) == kind_of(other) for other in values)
