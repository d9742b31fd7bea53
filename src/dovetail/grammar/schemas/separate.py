"""Whether no value fits two branches of a `oneOf`, as far as that can be seen: then it says what `anyOf` says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from dovetail.grammar.schemas.keywords import TYPES
from dovetail.grammar.schemas.references import Place, References

_MOST = 64  # branches that are compared each with each
_COMPARISONS = 100  # for each of these: a grammar has 2,000 in all (`bounds`), and a comparison takes some microseconds
_DEEPEST = 6  # properties in properties
_TYPES = frozenset(TYPES)


def separate(references: References, place: Place, branches: Sequence[Any]) -> bool:
    """True where every two of the `branches` of the `oneOf` at `place` are shown to have no value in common."""
    if len(branches) > _MOST:
        return False
    return _Compared(references, len(branches) * _COMPARISONS).all_apart(
        [references.below(place, "oneOf", i) for i in range(len(branches))]
    )


class _Compared:
    """Comparisons of schemas, as far as there are not too many of them."""

    def __init__(self, references: References, most: int) -> None:
        self._references = references
        self._left = most
        #: By identity, what is read of a schema; by path and key, what it says of the key.
        self._read: dict[int, _Read] = {}
        self._said: dict[tuple[tuple[str, ...], str], list[Place] | None] = {}

    def all_apart(self, branches: Sequence[Place]) -> bool:
        read = [list(_conjuncts(self._references, branch)) for branch in branches]
        return all(self._apart(first, second, 0) for first, second in combinations(read, 2))

    def _apart(self, first: Sequence[Place], second: Sequence[Place], depth: int) -> bool:
        return any(self._two_apart(one, other, depth) for one in first for other in second)

    def _two_apart(self, one: Place, other: Place, depth: int) -> bool:
        a, b = one.schema, other.schema
        self._left -= 1
        if a is False or b is False:
            return True
        if not isinstance(a, Mapping) or not isinstance(b, Mapping) or self._left < 0:
            return False
        (kinds, these, names), (others, those, keys) = self._reading(a), self._reading(b)
        types = kinds & others
        if not types:
            return True
        if these is not None and those is not None and these.isdisjoint(those):
            return True
        if types != {"object"} or depth > _DEEPEST:
            return False
        if any(_forbids(b, name) for name in names) or any(_forbids(a, name) for name in keys):
            return True
        for name in dict.fromkeys((*names, *keys)):
            here, there = self._declared(one, name), self._declared(other, name)
            if here is not None and there is not None and self._apart(here, there, depth + 1):
                return True
        return False

    def _reading(self, schema: Mapping[str, Any]) -> _Read:
        found = self._read.get(id(schema))
        if found is None:
            found = self._read[id(schema)] = (_types(schema), _values(schema), _required(schema))
        return found

    def _declared(self, place: Place, name: str) -> list[Place] | None:
        asked = place.path, name
        if asked not in self._said:
            self._said[asked] = _declared(self._references, place, name)
        return self._said[asked]


#: Types, the only values there are, and names that are required.
_Read = tuple[frozenset[str], "frozenset[tuple[str, str]] | None", list[str]]


def _conjuncts(references: References, place: Place) -> Iterator[Place]:
    """The schemas that all have to hold at a place: itself, what it refers to, and what is in its `allOf`."""
    pending = [place]
    seen: set[tuple[str, ...]] = set()
    while pending:
        place = pending.pop()
        if place.path in seen or len(seen) > _MOST:
            continue
        seen.add(place.path)
        yield place
        if not isinstance(place.schema, Mapping):
            continue
        if "$ref" in place.schema and (target := references.resolved(place, place.schema["$ref"])) is not None:
            pending.append(target)
        if isinstance(all_of := place.schema.get("allOf"), list):
            pending += (references.below(place, "allOf", i) for i in range(len(all_of)))


def _declared(references: References, place: Place, name: str) -> list[Place] | None:
    """What an object's schema says of one of its keys by name."""
    properties = place.schema.get("properties")
    if not isinstance(properties, Mapping) or name not in properties:
        return None
    return list(_conjuncts(references, references.below(place, "properties", name)))


def _forbids(schema: Mapping[str, Any], name: str) -> bool:
    """Whether an object may not have the key."""
    declared = schema.get("properties", {})
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return closed and isinstance(declared, Mapping) and name not in declared


def _required(schema: Mapping[str, Any]) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that a value of the schema may have; integers are numbers."""
    types = _TYPES
    if "type" in schema:
        named = schema["type"]
        named = named if isinstance(named, list) else [named]
        types = frozenset("number" if name == "integer" else str(name) for name in named)
    if (values := _values(schema)) is not None:
        types &= {kind for kind, _ in values}
    return types


def _values(schema: Mapping[str, Any]) -> frozenset[tuple[str, str]] | None:
    """The only values of a schema, each as its type and its JSON; None if there may be others."""
    if "const" in schema:
        return frozenset((_value(schema["const"]),))
    if isinstance(values := schema.get("enum"), list):
        return frozenset(map(_value, values))
    return None


def _value(value: Any) -> tuple[str, str]:
    match value:
        case None:
            return "null", ""
        case bool():
            return "boolean", str(value)
        case int() | float():
            return "number", str(value)
        case str():
            return "string", value
        case list():
            return "array", json.dumps(value)
    return "object", json.dumps(value, sort_keys=True)
