"""Whether the branches of a `oneOf` exclude each other, as far as that is easy to see. Such a `oneOf` means `anyOf`.

Two branches exclude each other if they allow other types or other values, if a property that both require does (the
usual discriminator), or if one requires a property that the other forbids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from dovetail.grammar.schemas.keywords import TYPES, kind_of, listed
from dovetail.grammar.schemas.references import Place, References

#: Bounds of the work: each branch is compared with each, by some of its properties and a few values of each.
_MAX_BRANCHES, _MAX_PROPERTIES, _MAX_VALUES = 64, 16, 64
_MAX_REFERENCES = 32  # one after the other
_TYPES = frozenset(TYPES)


class _Values(NamedTuple):
    """The types of a schema's values, and the only values that it allows: None if these are not a few scalars."""

    types: frozenset[str]
    few: frozenset[tuple[str, Any]] | None

    def exclude(self, other: _Values) -> bool:
        if self.types.isdisjoint(other.types):
            return True
        return self.few is not None and other.few is not None and self.few.isdisjoint(other.few)


class _Branch(NamedTuple):
    """What is compared of a branch. `keys`: the only keys of its objects; None if others are allowed."""

    values: _Values
    required: frozenset[str]
    keys: frozenset[str] | None
    properties: Mapping[str, _Values]


def are_exclusive(references: References, place: Place, branches: Sequence[Any]) -> bool:
    """Whether no value fits two of the `branches` of the `oneOf` at `place`. False if that is not easy to see."""
    if len(branches) > _MAX_BRANCHES:
        return False
    known: dict[int, _Values] = {}  # by the id of the schema
    compared = [_branch(references, references.below(place, "oneOf", i), known) for i in range(len(branches))]
    return all(_exclude(one, other) for one, other in combinations(compared, 2))


def _exclude(one: _Branch, other: _Branch) -> bool:
    if one.values.exclude(other.values):
        return True
    if one.values.types & other.values.types != {"object"}:
        return False
    if any(a.keys is not None and not b.required <= a.keys for a, b in ((one, other), (other, one))):
        return True
    shared = one.properties.keys() & other.properties.keys()
    return any(one.properties[name].exclude(other.properties[name]) for name in shared)


def _branch(references: References, place: Place, known: dict[int, _Values]) -> _Branch:
    place = _target(references, place)
    schema = place.schema if isinstance(place.schema, Mapping) else {}
    declared = schema.get("properties")
    declared = declared if isinstance(declared, Mapping) else {}
    required = frozenset(name for name in listed(schema, "required") if isinstance(name, str))
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    inner = {name: references.below(place, "properties", name) for name in declared if name in required}
    values = {name: _values(references, each, known) for name, each in inner.items()}
    discriminators = sorted(values.items(), key=lambda item: item[1].few is None)[:_MAX_PROPERTIES]
    keys = frozenset(declared) if is_closed else None
    return _Branch(_values(references, place, known), required, keys, dict(discriminators))


def _target(references: References, place: Place) -> Place:
    """The schema that the `$ref` at `place` leads to. What is beside a reference is ignored, so nothing is excluded by
    it."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(place.schema, Mapping) or "$ref" not in place.schema:
            break
        target = references.resolved(place, place.schema["$ref"])
        if target is None:
            break
        place = target
    return place


def _values(references: References, place: Place, known: dict[int, _Values]) -> _Values:
    schema = _target(references, place).schema
    if id(schema) not in known:
        known[id(schema)] = _values_of(schema)
    return known[id(schema)]


def _values_of(schema: Any) -> _Values:
    if not isinstance(schema, Mapping):
        return _Values(frozenset() if schema is False else _TYPES, None)
    types = _TYPES
    if "type" in schema:
        declared = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        types = frozenset("number" if name == "integer" else str(name) for name in declared)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return _Values(types, None)
    types &= {kind_of(value) for value in values}
    if len(values) > _MAX_VALUES or not types.isdisjoint(("array", "object")):
        return _Values(types, None)
    return _Values(types, frozenset((kind_of(value), value) for value in values if kind_of(value) in types))
