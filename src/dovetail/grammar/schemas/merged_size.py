"""How large a schema becomes when llguidance merges the schemas that apply to the same value into one.

The library multiplies two unions that apply to the same value: it makes all pairs of branches, each with a copy of what
is beside the unions. It counts merges and gives up after 50,000, but it does not count the size of a copy, so the
copies may fill gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dovetail.grammar.schemas.finite import Resolve
from dovetail.grammar.schemas.keywords import listed

_UNIONS = ("anyOf", "oneOf")
#: Keywords that assert nothing by themselves.
_SILENT = (
    *("allOf", "$ref", "$defs", "definitions", "$id", "$schema", "$comment", "$anchor"),
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
)
#: Keywords without schemas that are copied.
_NO_SCHEMAS = ("enum", "const", "required", *_SILENT[2:])
#: The search for schemas that apply together takes time too: this many of them count as one copy.
_FOUND_PER_COPY = 10

_Schemas = Sequence[Mapping[str, Any]]


class MergedSize:
    """Counts the copies that merging makes, up to `most`.

    `resolve(schema)` returns the target of the `$ref` in `schema`, or None.
    """

    def __init__(self, resolve: Resolve, most: int) -> None:
        self._resolve = resolve
        self._most = most
        self._sizes: dict[int, int] = {}  # by the id of the schema
        self._counted: set[frozenset[int]] = set()

    def of(self, schemas: Iterable[Any]) -> int:
        """An upper bound of the number of schemas that are made where `schemas` apply to the same value. More than
        `most` if there are more; 0 if these schemas have been counted before."""
        together = list(self._together(schemas))
        key = frozenset(map(id, together))
        if key in self._counted:
            return 0
        self._counted.add(key)
        return len(together) // _FOUND_PER_COPY + self._copies(together)

    def _copies(self, together: _Schemas) -> int:
        asserting = [schema for schema in together if not set(schema).issubset(_SILENT)]
        unions = [schema[key] for schema in asserting for key in _UNIONS if isinstance(schema.get(key), list)]
        if len(asserting) < 2:
            only_a_union = len(unions) == 1 and set(asserting[0]).issubset((*_SILENT, *_UNIONS))
            if not unions or only_a_union:
                return 0  # there is nothing to merge
        counts = [max(1, sum(map(self._alternatives, union))) for union in unions]
        inside = [sum(map(self._size, union)) for union in unions]
        pairs = 1
        for count in counts:
            pairs = min(pairs * count, self._most + 1)
        beside = sum(map(self._size, asserting)) - sum(inside)
        size = pairs * beside + sum(pairs // count * inner for count, inner in zip(counts, inside, strict=True))
        for overlap in _overlaps(asserting, unions):
            if size > self._most or len(self._counted) > self._most:
                return self._most + 1
            size += pairs * self.of(overlap)
        return size

    def _together(self, schemas: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
        """The schemas that apply to every value of `schemas`: these, their `allOf` and the targets of their `$ref`."""
        seen: set[int] = set()
        pending = list(schemas)
        while pending:
            schema = pending.pop()
            if isinstance(schema, Mapping) and id(schema) not in seen:
                seen.add(id(schema))
                yield schema
                pending += listed(schema, "allOf")
                if "$ref" in schema:
                    pending.append(self._resolve(schema))

    def _alternatives(self, schema: Any) -> int:
        """The number of alternatives in the unions of a schema."""
        count = 1
        for key in _UNIONS:
            count *= max(1, sum(map(self._alternatives, listed(schema, key))))
        return min(count, self._most + 1)

    def _size(self, schema: Any) -> int:
        """The number of schemas in a schema, with itself and the values of `enum`."""
        if not isinstance(schema, Mapping | list):
            return 1
        if id(schema) not in self._sizes:
            inner: Iterable[Any] = schema
            if isinstance(schema, Mapping):
                inner = (value for key, value in schema.items() if key not in _NO_SCHEMAS)
            nested = sum(self._size(each) for each in inner if isinstance(each, Mapping | list))
            self._sizes[id(schema)] = 1 + nested + len(listed(schema, "enum"))
        return self._sizes[id(schema)]


def _overlaps(schemas: _Schemas, unions: Iterable[Iterable[Any]]) -> Iterator[list[Any]]:
    """Lists of schemas for the same key, or for items. They apply together because the schemas around them do."""
    by_key: dict[str, list[Any]] = {}
    for schema in schemas:
        for name, inner in _children(schema):
            by_key.setdefault(name, []).append(inner)
    yield from (inner for inner in by_key.values() if len(inner) > 1)
    for union in unions:
        for branch in union:
            yield from ([inner, *by_key[name]] for name, inner in _children(branch) if name in by_key)


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas for each key of an object and, as if these were keys, for items and for other keys."""
    if isinstance(schema, Mapping):
        if isinstance(properties := schema.get("properties"), Mapping):
            yield from properties.items()
        for keyword in ("items", "additionalProperties"):
            if isinstance(schema.get(keyword), Mapping):
                yield f"{keyword}/", schema[keyword]
