"""Whether the branches of a `oneOf` exclude each other, as far as that is easy to see. Such a `oneOf` means `anyOf`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from dovetail.grammar.schemas.keywords import TYPES, kind_of, listed
from dovetail.grammar.schemas.references import Path, Place, References

_MAX_BRANCHES = 64  # each is compared with each
#: For each branch. A grammar has 2,000 branches at most (`bounds`), and a comparison takes some microseconds.
_MAX_COMPARISONS = 100
_MAX_LEVELS = 6  # properties in properties
_TYPES = frozenset(TYPES)


def are_exclusive(references: References, place: Place, branches: Sequence[Any]) -> bool:
    """Whether no value fits two of the `branches` of the `oneOf` at `place`. False if that is not easy to see."""
    if len(branches) > _MAX_BRANCHES:
        return False
    comparison = _Comparison(references, len(branches) * _MAX_COMPARISONS)
    return comparison.all_exclude([references.below(place, "oneOf", i) for i in range(len(branches))])


class _Summary(NamedTuple):
    """What is compared of one schema: `values` are the only ones that it allows, None if it has no `enum` or
    `const`."""

    types: frozenset[str]
    values: frozenset[tuple[str, str]] | None
    required: list[str]


class _Comparison:
    """Compares schemas, at most `most` pairs of them."""

    def __init__(self, references: References, most: int) -> None:
        self._references = references
        self._remaining = most
        self._summaries: dict[int, _Summary] = {}  # by the id of the schema
        self._declared: dict[tuple[Path, str], list[Place] | None] = {}

    def all_exclude(self, branches: Sequence[Place]) -> bool:
        conjuncts = [list(self._conjuncts(branch)) for branch in branches]
        return all(self._exclude(one, other, 0) for one, other in combinations(conjuncts, 2))

    def _exclude(self, one: Sequence[Place], other: Sequence[Place], level: int) -> bool:
        return any(self._two_exclude(a, b, level) for a in one for b in other)

    def _two_exclude(self, one: Place, other: Place, level: int) -> bool:
        a, b = one.schema, other.schema
        self._remaining -= 1
        if a is False or b is False:
            return True
        if not isinstance(a, Mapping) or not isinstance(b, Mapping) or self._remaining < 0:
            return False
        first, second = self._summary(a), self._summary(b)
        types = first.types & second.types
        if not types:
            return True
        if first.values is not None and second.values is not None and first.values.isdisjoint(second.values):
            return True
        if types != {"object"} or level > _MAX_LEVELS:
            return False
        if any(_forbids(b, name) for name in first.required) or any(_forbids(a, name) for name in second.required):
            return True
        for name in dict.fromkeys((*first.required, *second.required)):
            here, there = self._property(one, name), self._property(other, name)
            if here is not None and there is not None and self._exclude(here, there, level + 1):
                return True
        return False

    def _summary(self, schema: Mapping[str, Any]) -> _Summary:
        summary = self._summaries.get(id(schema))
        if summary is None:
            required = [name for name in listed(schema, "required") if isinstance(name, str)]
            summary = self._summaries[id(schema)] = _Summary(_types(schema), _values(schema), required)
        return summary

    def _property(self, place: Place, name: str) -> list[Place] | None:
        """The schemas that apply to the property `name` of an object; None if it is not declared."""
        key = place.path, name
        if key not in self._declared:
            properties = place.schema.get("properties")
            declared = isinstance(properties, Mapping) and name in properties
            inner = self._references.below(place, "properties", name) if declared else None
            self._declared[key] = None if inner is None else list(self._conjuncts(inner))
        return self._declared[key]

    def _conjuncts(self, place: Place) -> Iterator[Place]:
        """The schemas that all have to hold at `place`: itself, the target of its `$ref`, and those of its `allOf`."""
        pending = [place]
        seen: set[Path] = set()
        while pending:
            place = pending.pop()
            if place.path in seen or len(seen) > _MAX_BRANCHES:
                continue
            seen.add(place.path)
            yield place
            if not isinstance(place.schema, Mapping):
                continue
            if "$ref" in place.schema:
                target = self._references.resolved(place, place.schema["$ref"])
                pending += [target] if target is not None else []
            pending += (self._references.below(place, "allOf", i) for i in range(len(listed(place.schema, "allOf"))))


def _forbids(schema: Mapping[str, Any], name: str) -> bool:
    """Whether no object of the schema has the key `name`."""
    declared = schema.get("properties", {})
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return closed and isinstance(declared, Mapping) and name not in declared


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that a value of the schema may have. Integers are numbers."""
    types = _TYPES
    if "type" in schema:
        declared = schema["type"]
        declared = declared if isinstance(declared, list) else [declared]
        types = frozenset("number" if name == "integer" else str(name) for name in declared)
    if (values := _values(schema)) is not None:
        types &= {kind for kind, _ in values}
    return types


def _values(schema: Mapping[str, Any]) -> frozenset[tuple[str, str]] | None:
    """The values of `const` or `enum`, each as its type and its JSON; None if the schema has neither."""
    if "const" in schema:
        return frozenset((_value(schema["const"]),))
    return frozenset(map(_value, schema["enum"])) if isinstance(schema.get("enum"), list) else None


def _value(value: Any) -> tuple[str, str]:
    return kind_of(value), json.dumps(value, sort_keys=True)
