"""How large a grammar may be: what is beyond is refused before the library, which takes minutes or dies of it, sees it.

Each bound was measured: what is within all of them compiles in half a second (docs/decisions/0018).
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
from dovetail.grammar.schemas.merged_size import MergedSize
from dovetail.grammar.schemas.references import Place, References, placed, shortened_pointer

_CACHED = 1_024

MAX_TOOLS = 1_000
MAX_DEPTH = 100  # of objects and lists in a schema; the library reads 127
#: A long chain of references overflows the library's stack, with the levels between one and the next. A chain passes
#: each definition once, so what is referred to in all bounds it.
MAX_REFERENCES = 200
MAX_REFERENCE_LEVELS = 1_500  # 3,000 overflow
#: In all schemas together, from here on. A name that is required and not declared costs as much as a property.
MAX_PROPERTIES = 5_000
#: In one object: what may follow a key is any later one, so that their number counts twice over.
MAX_OPTIONAL = 1_000
MAX_VALUES = 20_000  # of `enum`
MAX_BRANCHES = 2_000  # of `anyOf`, `oneOf` and `allOf`
MAX_PARTS = 100_000  # objects and lists
MAX_LETTERS = 200_000  # of names, of texts among values, of patterns
MAX_BITS = 1_100  # of an integer: beyond, it is none to any reader of JSON
#: The validator joins each reference to the identifiers around it, and keeps three times as much: 20,000 and one of
#: 100,000 letters end the process.
MAX_JOINED = 500_000
#: Schemas that it has when it has merged those that hold together.
MAX_MERGED = 10_000
#: States of the automata for `multipleOf`: for each divisor the least common multiple of all in its schema, which may
#: hold at once. Of a divisor its digits count, without the zeros at its ends.
MAX_STATES = 50_000

#: Keywords that hold schemas by name, and those that hold values; all others hold schemas, or no objects.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("enum", "const", "default", "examples", "example")
_UNIONS = ("anyOf", "oneOf", "allOf")

_Path = tuple[Any, ...]  # the path above, and a key


def check(schemas: Iterable[JsonSchema]) -> None:
    """Raise `SchemaRefused`, naming the field of the request and the place in its schema, for more than the library can
    be given, and for what no answer could come to the end of."""
    counted = _Counted()
    origins: set[str] = set()
    for schema in schemas:
        origins.add(schema.origin)
        if len(origins) > MAX_TOOLS:
            raise SchemaRefused(f"there are more than {MAX_TOOLS} tools, which cannot be enforced", param="tools")
        counted.add(schema)


def check_once(schemas: Sequence[JsonSchema]) -> None:
    """As `check`, for schemas that come with request after request: what was within bounds is not looked at again."""
    try:
        said = hashlib.blake2b(msgspec.msgpack.encode(schemas)).digest()
    except (OverflowError, RecursionError, ValueError):  # which JSON may hold, but not this
        check(schemas)
    else:
        _within.get(said, 0, lambda: check(schemas))


_within: Cache[None] = Cache(_CACHED, 0)


class _Counted:
    """What the schemas of a grammar have in all."""

    def __init__(self) -> None:
        self._origin = self._at = ""
        self._properties = self._values = self._branches = self._states = 0
        self._parts = self._letters = self._merged = 0

    def add(self, held: JsonSchema) -> None:
        self._origin, self._at = held.origin, held.at
        self._references: dict[str, int] = {}  # and how deep in the schema each stands
        self._divisors, self._multiple = 0, 1
        self._longest = self._relative = self._joined = 0
        schemas: list[tuple[Mapping[str, Any], _Path]] = []
        pending: list[tuple[Any, _Path, int]] = [(held.schema, (), 0)]
        while pending:
            value, path, depth = pending.pop()
            if depth > MAX_DEPTH:
                self._refuse(path, f"is nested more than {MAX_DEPTH} deep")
            self._parts += isinstance(value, Mapping | list)
            if self._parts > MAX_PARTS:
                self._refuse(path, f"is where the tools' schemas get to have more than {MAX_PARTS} parts")
            if isinstance(value, Mapping):
                schemas.append((value, path))
                self._keywords(value, path, depth)
                for key, inner in value.items():
                    self._integer(inner, (path, key))
                    if key in _BY_NAME and isinstance(inner, Mapping):
                        self._spelled(inner, (path, key))
                        self._schemas(inner, (path, key))
                        pending += ((it, ((path, key), name), depth + 2) for name, it in inner.items())
                    elif key not in _VALUES:
                        pending.append((inner, (path, key), depth + 1))
            elif isinstance(value, list):
                pending += ((it, (path, i), depth + 1) for i, it in enumerate(value))
        self._states += self._divisors * self._multiple
        self._together(held.schema, schemas)

    def _keywords(self, schema: Mapping[str, Any], path: _Path, depth: int) -> None:
        names = set(_of(schema, "properties", Mapping))
        names.update(name for name in _of(schema, "required", list) if isinstance(name, str))
        self._properties += len(names) + len(_of(schema, "patternProperties", Mapping))
        if self._properties > MAX_PROPERTIES:
            self._refuse(path, f"is where the tools' properties get to be more than {MAX_PROPERTIES}")
        required = _of(schema, "required", list)
        optional = len(names) - len({name for name in required if isinstance(name, str)})
        if optional > MAX_OPTIONAL:
            self._refuse(path, f"has more than {MAX_OPTIONAL} properties that are not required")
        self._values += len(_of(schema, "enum", list))
        if self._values > MAX_VALUES:
            self._refuse((path, "enum"), f"is where the tools' values get to be more than {MAX_VALUES}")
        self._branches += sum(len(_of(schema, key, list)) for key in _UNIONS)
        if self._branches > MAX_BRANCHES:
            self._refuse(path, f"is where the tools' choices get to be more than {MAX_BRANCHES}")
        for key in ("required", "enum", "const", "pattern"):
            if key in schema:
                self._spelled([schema[key]], (path, key))
        if digits := _digits(schema.get("multipleOf")):
            self._divisors += 1
            self._multiple = math.lcm(self._multiple, digits)
            if self._states + self._divisors * self._multiple > MAX_STATES:
                self._refuse((path, "multipleOf"), f"needs more than {MAX_STATES} states with the divisors before it")
        named = [name for key in ("$id", "id") if isinstance(name := schema.get(key), str)]
        for name in named:
            if "://" in name:
                self._longest = max(self._longest, len(name))
            else:  # which adds to those around it
                self._relative += len(name)
        self._joined += len(named) + sum(key in schema for key in ("$ref", "$dynamicRef", "$recursiveRef"))
        if (self._longest + self._relative) * self._joined > MAX_JOINED:
            self._refuse(path, f"is where references get to be more than {MAX_JOINED} letters with their identifiers")
        if isinstance(target := schema.get("$ref"), str):
            self._refer(target, depth, (path, "$ref"))

    def _schemas(self, named: Mapping[str, Any], path: _Path) -> None:
        for name, schema in named.items() if path[1] in ("properties", "patternProperties") else ():
            if not isinstance(schema, Mapping | bool):
                self._refuse((path, name), "is no schema, which is an object, true or false")

    def _spelled(self, values: Any, path: _Path) -> None:
        """Count the letters of names and of texts among values."""
        pending = [(values, 0)]
        while pending:
            value, depth = pending.pop()
            if isinstance(value, str):
                self._letters += len(value)
            elif isinstance(value, Mapping):
                pending += ((key, depth) for key in value)
                pending += ((it, depth + 1) for it in (() if path[1] in _BY_NAME else value.values()))
            elif isinstance(value, list):
                pending += ((it, depth + 1) for it in value)
            else:
                self._integer(value, path)
            if depth > MAX_DEPTH:
                self._refuse(path, f"is nested more than {MAX_DEPTH} deep")
            if self._letters > MAX_LETTERS:
                self._refuse(
                    path, f"is where the tools' names, values and patterns get to be more than {MAX_LETTERS} letters"
                )

    def _integer(self, value: Any, path: _Path) -> None:
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            self._refuse(path, f"is a number of more than {MAX_BITS} bits")

    def _refer(self, target: str, depth: int, path: _Path) -> None:
        self._references[target] = max(depth, self._references.get(target, 0))
        if len(self._references) > MAX_REFERENCES:
            self._refuse(path, f"is the reference to more than {MAX_REFERENCES} definitions")
        if sum(self._references.values()) > MAX_REFERENCE_LEVELS:
            self._refuse(path, f"is where references stand more than {MAX_REFERENCE_LEVELS} levels deep in all")

    def _together(self, root: Mapping[str, Any], schemas: list[tuple[Mapping[str, Any], _Path]]) -> None:
        """What follows from references, and from schemas that hold together."""
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
                if self._merged > MAX_MERGED:
                    self._refuse(
                        path, f"is where the tools' choices get to be more than {MAX_MERGED} when they are merged"
                    )

    def _refuse(self, path: _Path, complaint: str) -> NoReturn:
        place = placed(shortened_pointer((*_keys(path),)), self._at)
        raise SchemaRefused(f"{self._origin} cannot be enforced: {place} {complaint}", param=self._origin)


def _targets(root: Any, referring: Iterable[tuple[Mapping[str, Any], _Path]]) -> dict[int, Any]:
    """What schemas with a `$ref` refer to, each by the identity of the schema."""
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


def _of(schema: Mapping[str, Any], key: str, kind: type[Any]) -> Any:
    value = schema.get(key)
    return value if isinstance(value, kind) else ()


def _keys(path: _Path) -> list[Any]:
    """A path's keys, from the top."""
    keys = []
    while path:
        path, key = path
        keys.append(key)
    return keys[::-1]


def _digits(divisor: Any) -> int:
    """What a number's digits are, without the zeros at its ends: 25 for 0.025. 0 for what is no number."""
    if isinstance(divisor, bool) or not isinstance(divisor, int | float):
        return 0
    try:
        digits = Decimal(repr(divisor)).normalize().as_tuple().digits
    except (InvalidOperation, ValueError):  # a number of thousands of digits
        return MAX_STATES + 1
    return int("".join(map(str, digits)) or "0")
