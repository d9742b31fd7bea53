"""Bounds of a grammar's size. A schema beyond them is refused before the library sees it, which would take minutes or
die.

Each bound was measured: a grammar within all of them compiles in half a second (docs/decisions/0018).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import msgspec

from dovetail.errors import SchemaRefused
from dovetail.grammar.cache import Cache
from dovetail.grammar.nodes import JsonSchema
from dovetail.grammar.schemas.finite import FiniteSchemas
from dovetail.grammar.schemas.keywords import VALUES, listed
from dovetail.grammar.schemas.merged_size import MergedSize
from dovetail.grammar.schemas.references import Place, References, placed, shortened_pointer

_CACHED = 1_024

MAX_TOOLS = 1_000
MAX_DEPTH = 100  # of objects and lists in a schema; the library reads 127
#: A long chain of references overflows the library's stack, and so do the levels of a schema between two references. A
#: chain passes each definition once, so the number of targets bounds its length.
MAX_REFERENCES = 200
MAX_REFERENCE_LEVELS = 1_500  # 3,000 overflow
#: From here on, in all schemas together. A name that is required and not declared costs as much as a property.
MAX_PROPERTIES = 5_000
#: In one object. After each optional key any later one may follow, so the cost grows with the square.
MAX_OPTIONAL = 1_000
MAX_VALUES = 20_000  # of `enum`
MAX_BRANCHES = 2_000  # of `anyOf`, `oneOf` and `allOf`
MAX_PARTS = 100_000  # objects and lists
MAX_LETTERS = 200_000  # of names, patterns, and texts in values
MAX_BITS = 1_100  # of an integer; readers of JSON do not accept longer ones
#: Letters of references. The validator joins each reference with the identifiers around it, and needs three times the
#: memory: 20,000 references and an identifier of 100,000 letters end the process.
MAX_JOINED = 500_000
#: Schemas that llguidance makes when it merges those that apply to the same value.
MAX_MERGED = 10_000
#: States of the automata for `multipleOf`. The divisors of a schema may apply to the same number, so each counts the
#: least common multiple of all. Zeros at the ends of a divisor do not count.
MAX_STATES = 50_000

#: Keywords whose value is an object of schemas by name.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_UNIONS = ("anyOf", "oneOf", "allOf")

_Link = tuple[Any, ...]  # a path as a linked list: the path above, and a key


def check(schemas: Iterable[JsonSchema]) -> None:
    """Check that the schemas of a grammar are within the bounds, and that each has a finite value.

    Raises `SchemaRefused` with the field of the request and the JSON pointer of the culprit.
    """
    counts = _Counts()
    origins: set[str] = set()
    for schema in schemas:
        origins.add(schema.origin)
        if len(origins) > MAX_TOOLS:
            raise SchemaRefused(f"there are more than {MAX_TOOLS} tools, which cannot be enforced", param="tools")
        counts.add(schema)


def check_once(schemas: Sequence[JsonSchema]) -> None:
    """As `check`. Schemas that were within the bounds in an earlier request are not checked again."""
    try:
        key = hashlib.blake2b(msgspec.msgpack.encode(schemas)).digest()
    except (OverflowError, RecursionError, ValueError):  # JSON may contain it, and msgpack may not
        check(schemas)
    else:
        _CHECKED.get(key, 0, lambda: check(schemas))


_CHECKED: Cache[None] = Cache(_CACHED, 0)


class _Counts:
    """Counts over all schemas of a grammar, in the order of the tools. The schema that exceeds a bound is refused."""

    def __init__(self) -> None:
        self._origin = self._at = ""
        self._properties = self._values = self._branches = self._states = 0
        self._parts = self._letters = self._merged = 0

    def add(self, schema: JsonSchema) -> None:
        self._origin, self._at = schema.origin, schema.at
        self._references: dict[str, int] = {}  # with the depth in the schema
        self._divisors, self._multiple = 0, 1
        self._longest = self._relative = self._joined = 0
        schemas: list[tuple[Mapping[str, Any], _Link]] = []
        pending: list[tuple[Any, _Link, int]] = [(schema.schema, (), 0)]
        while pending:
            value, path, depth = pending.pop()
            if depth > MAX_DEPTH:
                self._refuse(path, f"is nested more than {MAX_DEPTH} deep")
            self._parts += isinstance(value, Mapping | list)
            self._limit(self._parts, MAX_PARTS, "parts", path)
            if isinstance(value, Mapping):
                schemas.append((value, path))
                self._keywords(value, path, depth)
                for key, inner in value.items():
                    self._integer(inner, (path, key))
                    if key in _BY_NAME and isinstance(inner, Mapping):
                        self._add_letters(inner, (path, key))
                        self._schemas(inner, (path, key))
                        pending += ((each, ((path, key), name), depth + 2) for name, each in inner.items())
                    elif key not in VALUES:
                        pending.append((inner, (path, key), depth + 1))
            elif isinstance(value, list):
                pending += ((each, (path, i), depth + 1) for i, each in enumerate(value))
        self._states += self._divisors * self._multiple
        self._related(schema.schema, schemas)

    def _keywords(self, schema: Mapping[str, Any], path: _Link, depth: int) -> None:
        required = {name for name in listed(schema, "required") if isinstance(name, str)}
        names = {*_mapping(schema, "properties"), *required}
        self._properties += len(names) + len(_mapping(schema, "patternProperties"))
        self._limit(self._properties, MAX_PROPERTIES, "properties", path)
        if len(names) - len(required) > MAX_OPTIONAL:
            self._refuse(path, f"has more than {MAX_OPTIONAL} properties that are not required")
        self._values += len(listed(schema, "enum"))
        self._limit(self._values, MAX_VALUES, "values", (path, "enum"))
        self._branches += sum(len(listed(schema, key)) for key in _UNIONS)
        self._limit(self._branches, MAX_BRANCHES, "choices", path)
        for key in ("required", "enum", "const", "pattern"):
            if key in schema:
                self._add_letters([schema[key]], (path, key))
        if digits := _digits(schema.get("multipleOf")):
            self._divisors += 1
            self._multiple = math.lcm(self._multiple, digits)
            states = self._states + self._divisors * self._multiple
            self._limit(states, MAX_STATES, "states of divisors", (path, "multipleOf"))
        self._identifiers(schema, path)
        if isinstance(target := schema.get("$ref"), str):
            self._reference(target, depth, (path, "$ref"))

    def _identifiers(self, schema: Mapping[str, Any], path: _Link) -> None:
        identifiers = [name for key in ("$id", "id") if isinstance(name := schema.get(key), str)]
        for name in identifiers:
            if "://" in name:
                self._longest = max(self._longest, len(name))
            else:  # it is joined to the identifiers around it
                self._relative += len(name)
        self._joined += len(identifiers) + sum(key in schema for key in ("$ref", "$dynamicRef", "$recursiveRef"))
        letters = (self._longest + self._relative) * self._joined
        self._limit(letters, MAX_JOINED, "letters of references and their identifiers", path)

    def _schemas(self, by_name: Mapping[str, Any], path: _Link) -> None:
        for name, schema in by_name.items() if path[1] in ("properties", "patternProperties") else ():
            if not isinstance(schema, Mapping | bool):
                self._refuse((path, name), "is no schema, which is an object, true or false")

    def _add_letters(self, values: Any, path: _Link) -> None:
        """Count the letters of names, and of the texts in values."""
        pending = [(values, 0)]
        while pending:
            value, depth = pending.pop()
            if isinstance(value, str):
                self._letters += len(value)
            elif isinstance(value, Mapping):
                pending += ((key, depth) for key in value)
                pending += ((each, depth + 1) for each in (() if path[1] in _BY_NAME else value.values()))
            elif isinstance(value, list):
                pending += ((each, depth + 1) for each in value)
            else:
                self._integer(value, path)
            if depth > MAX_DEPTH:
                self._refuse(path, f"is nested more than {MAX_DEPTH} deep")
            self._limit(self._letters, MAX_LETTERS, "letters of names, values and patterns", path)

    def _integer(self, value: Any, path: _Link) -> None:
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            self._refuse(path, f"is a number of more than {MAX_BITS} bits")

    def _reference(self, target: str, depth: int, path: _Link) -> None:
        self._references[target] = max(depth, self._references.get(target, 0))
        self._limit(len(self._references), MAX_REFERENCES, "definitions that are referred to", path)
        self._limit(sum(self._references.values()), MAX_REFERENCE_LEVELS, "levels of references", path)

    def _related(self, root: Mapping[str, Any], schemas: list[tuple[Mapping[str, Any], _Link]]) -> None:
        """Check what follows from references, and from schemas that apply to the same value."""
        referring = [(schema, path) for schema, path in schemas if "$ref" in schema]
        targets = _targets(root, referring) if referring else {}

        def resolve(schema: Mapping[str, Any]) -> Any:
            return targets.get(id(schema))

        if referring:
            finite = FiniteSchemas((schema for schema, _ in schemas), resolve)
            for schema, path in () if root in finite else referring:
                if isinstance(target := resolve(schema), Mapping) and target not in finite:
                    self._refuse((path, "$ref"), "refers to a schema of which every value is infinite")
        merged_size = MergedSize(resolve, MAX_MERGED)
        for schema, path in schemas:
            if "$ref" in schema or any(key in schema for key in _UNIONS):
                self._merged += merged_size.of([schema])
                self._limit(self._merged, MAX_MERGED, "merged choices", path)

    def _limit(self, count: int, most: int, what: str, path: _Link) -> None:
        if count > most:
            self._refuse(path, f"makes more than {most} {what} in all tools together")

    def _refuse(self, path: _Link, complaint: str) -> NoReturn:
        place = placed(shortened_pointer((*_keys(path),)), self._at)
        raise SchemaRefused(f"{self._origin} cannot be enforced: {place} {complaint}", param=self._origin)


def _targets(root: Any, referring: Iterable[tuple[Mapping[str, Any], _Link]]) -> dict[int, Any]:
    """The target of each `$ref`, by the id of the schema that has it."""
    references = References(root)
    targets: dict[int, Any] = {}
    known: dict[tuple[str, str], Place | None] = {}
    for schema, path in referring:
        if not isinstance(schema["$ref"], str):
            continue
        place = references.below(references.root, *_keys(path))
        key = place.base, schema["$ref"]
        if key not in known:
            known[key] = references.resolved(place, schema["$ref"])
        if (target := known[key]) is not None:
            targets[id(schema)] = target.schema
    return targets


def _mapping(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, Mapping) else {}


def _keys(path: _Link) -> list[Any]:
    """The keys of a path, from the root."""
    keys = []
    while path:
        path, key = path
        keys.append(key)
    return keys[::-1]


def _digits(divisor: Any) -> int:
    """The digits of a number as an integer, without leading and trailing zeros: 25 for 0.025. 0 if it is not a
    number."""
    if isinstance(divisor, bool) or not isinstance(divisor, int | float):
        return 0
    try:
        digits = Decimal(repr(divisor)).normalize().as_tuple().digits
    except (InvalidOperation, ValueError):  # a number of thousands of digits
        return MAX_STATES + 1
    return int("".join(map(str, digits)) or "0")
