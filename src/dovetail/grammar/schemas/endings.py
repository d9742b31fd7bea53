"""Whether a value of a schema can come to an end: one that needs another like itself cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_SCALARS = frozenset(("null", "boolean", "number", "integer", "string"))
_TYPES = (*sorted(_SCALARS), "array", "object")

Resolve = Callable[[Mapping[str, Any]], Any]


class Endings:
    """`schemas` are all those in one schema; `resolve` gives what the `$ref` of one leads to, None if there is nothing.

    A schema ends when some value of it needs no other but of schemas that end. One that waits for another is looked at
    again when that is found to end.
    """

    def __init__(self, schemas: Iterator[Mapping[str, Any]], resolve: Resolve) -> None:
        self._resolve = resolve
        self._ending: set[int] = set()
        self._needed: list[Mapping[str, Any]] = []  # by the schema that is looked at, and not known to end
        waiting: dict[int, list[Mapping[str, Any]]] = {}
        pending = list(schemas)  # from the last on: what is held comes behind what holds it
        while pending:
            schema = pending.pop()
            self._needed = []
            if id(schema) in self._ending:
                continue
            if self._whole(schema):
                self._ending.add(id(schema))
                pending += waiting.pop(id(schema), ())
            else:
                for needed in self._needed:
                    waiting.setdefault(id(needed), []).append(schema)

    def ends(self, schema: Any) -> bool:
        """Whether some value of it ends. What is no schema is not judged."""
        return id(schema) in self._ending if isinstance(schema, Mapping) else schema is not False

    def _ends(self, schema: Any) -> bool:
        if not self.ends(schema) and isinstance(schema, Mapping):
            self._needed.append(schema)
        return self.ends(schema)

    def _whole(self, schema: Mapping[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        if "$ref" in schema and (target := self._resolve(schema)) is not None and not self._ends(target):
            return False
        if not all(map(self._ends, _list(schema, "allOf"))):
            return False
        for key in ("anyOf", "oneOf"):
            if _list(schema, key) and not any(map(self._ends, schema[key])):
                return False
        types = schema.get("type", _TYPES)
        types = [types] if isinstance(types, str) else types if isinstance(types, list | tuple) else _TYPES
        return any(self._of_type(schema, kind) for kind in types)

    def _of_type(self, schema: Mapping[str, Any], kind: Any) -> bool:
        if kind == "object":
            declared = schema.get("properties")
            declared = declared if isinstance(declared, Mapping) else {}
            other = schema.get("additionalProperties", True)
            needed = (name for name in _list(schema, "required") if isinstance(name, str))
            return all(self._ends(declared.get(name, other)) for name in needed)
        if kind == "array":
            least = schema.get("minItems", 0)
            first = _list(schema, "prefixItems")
            least = least if isinstance(least, int) else 0
            return all(map(self._ends, first[:least])) and (
                least <= len(first) or self._ends(schema.get("items", True))
            )
        return True


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
