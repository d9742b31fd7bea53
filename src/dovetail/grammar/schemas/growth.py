"""How large a schema becomes where the library multiplies it out: schemas that hold together are merged into one.

Of two unions that hold together, it makes one of all pairs, each with a copy of all that stands beside them. It counts
merges, and gives up after 50,000; how large each copy is it does not count, and that fills gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

_UNIONS = ("anyOf", "oneOf")
#: What says nothing, or nothing of its own.
_SILENT = (
    *("allOf", "$ref", "$defs", "definitions", "$id", "$schema", "$comment", "$anchor"),
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
)
#: What holds no schemas, or none that are copied.
_NO_SCHEMAS = ("enum", "const", "required", *_SILENT[2:])

#: Finding out which hold together takes time too: so many that are found count as a copy.
_WALKED = 10

Resolve = Callable[[Mapping[str, Any]], Any]
_Parts = Sequence[Mapping[str, Any]]


class Grown:
    """Copies of schemas, in all. `resolve` gives what the `$ref` of a schema leads to, None if there is nothing."""

    def __init__(self, resolve: Resolve, most: int) -> None:
        self._resolve = resolve
        self._most = most
        self._sizes: dict[int, int] = {}
        self._met: set[frozenset[int]] = set()

    def of(self, schemas: Iterable[Any]) -> int:
        """How many schemas are made where `schemas` hold together, at most, and what is counted for finding that out;
        something above `most` where that is more. Nothing for those that were asked for before."""
        parts = list(self._together(schemas))
        met = frozenset(map(id, parts))
        if met in self._met:
            return 0
        self._met.add(met)
        return len(parts) // _WALKED + self._copies(parts)

    def _copies(self, parts: _Parts) -> int:
        saying = [part for part in parts if not set(part).issubset(_SILENT)]
        unions = [part[key] for part in saying for key in _UNIONS if isinstance(part.get(key), list)]
        if len(saying) < 2 and (not unions or (len(unions) == 1 and set(saying[0]).issubset((*_SILENT, *_UNIONS)))):
            return 0  # nothing holds together with anything
        counts = [max(1, sum(map(self._alternatives, union))) for union in unions]
        inside = [sum(map(self._size, union)) for union in unions]
        pairs = 1
        for count in counts:
            pairs = min(pairs * count, self._most + 1)
        beside = sum(map(self._size, saying)) - sum(inside)
        grown = pairs * beside + sum(pairs // count * size for count, size in zip(counts, inside, strict=True))
        for same in _overlaps(saying, unions):
            if grown > self._most or len(self._met) > self._most:
                return self._most + 1
            grown += pairs * self.of(same)
        return grown

    def _together(self, schemas: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
        """Every schema that holds where these hold."""
        seen: set[int] = set()
        pending = list(schemas)
        while pending:
            schema = pending.pop()
            if isinstance(schema, Mapping) and id(schema) not in seen:
                seen.add(id(schema))
                yield schema
                pending += _list(schema, "allOf")
                if "$ref" in schema:
                    pending.append(self._resolve(schema))

    def _alternatives(self, schema: Any) -> int:
        """Of how many a union the schema is."""
        found = 1
        for key in _UNIONS:
            found *= max(1, sum(map(self._alternatives, _list(schema, key))))
        return min(found, self._most + 1)

    def _size(self, schema: Any) -> int:
        """Schemas in a schema, itself and single values included."""
        if not isinstance(schema, Mapping | list):
            return 1
        if id(schema) not in self._sizes:
            inner: Iterable[Any] = schema
            if isinstance(schema, Mapping):
                inner = (value for key, value in schema.items() if key not in _NO_SCHEMAS)
            nested = sum(self._size(it) for it in inner if isinstance(it, Mapping | list))
            self._sizes[id(schema)] = 1 + nested + len(_list(schema, "enum"))
        return self._sizes[id(schema)]


def _overlaps(parts: _Parts, unions: Iterable[Iterable[Any]]) -> Iterator[list[Any]]:
    """Schemas of the same key, or of items, which hold together because those around them do."""
    keys: dict[str, list[Any]] = {}
    for part in parts:
        for name, held in _keys(part):
            keys.setdefault(name, []).append(held)
    yield from (held for held in keys.values() if len(held) > 1)
    for union in unions:
        for branch in union:
            yield from ([held, *keys[name]] for name, held in _keys(branch) if name in keys)


def _keys(schema: Any) -> Iterator[tuple[str, Any]]:
    """What a schema says of each key, and of items, as if these were one."""
    if isinstance(schema, Mapping):
        if isinstance(properties := schema.get("properties"), Mapping):
            yield from properties.items()
        for keyword in ("items", "additionalProperties"):
            if isinstance(schema.get(keyword), Mapping):
                yield f"{keyword}/", schema[keyword]


def _list(schema: Any, key: str) -> list[Any]:
    value = schema.get(key) if isinstance(schema, Mapping) else None
    return value if isinstance(value, list) else []
