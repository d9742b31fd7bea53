"""Whether a value of a schema can come to an end: one that needs another like itself cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_SCALARS = frozenset(("null", "boolean", "number", "integer", "string"))
_TYPES = (*sorted(_SCALARS), "array", "object")

Resolve = Callable[[Mapping[str, Any]], Any]


class Endings:
    """`schemas` are all those in one schema; `resolve` gives what the `$ref` of one leads to, None if there is nothing.

    A schema ends when some value of it needs no other but of schemas that end: found from those that need none, in as
    many rounds as one needs another.
    """

    def __init__(self, schemas: Iterator[Mapping[str, Any]], resolve: Resolve) -> None:
        self._resolve = resolve
        self._ending: set[int] = set()
        pending = list(schemas)
        while True:
            left = [schema for schema in pending if not self._found(schema)]
            if len(left) == len(pending):
                return
            pending = left

    def ends(self, schema: Any) -> bool:
        """Whether some value of it ends. What is no schema is not judged."""
        return id(schema) in self._ending if isinstance(schema, Mapping) else schema is not False

    def _found(self, schema: Mapping[str, Any]) -> bool:
        if self._whole(schema):
            self._ending.add(id(schema))
            return True
        return False

    def _whole(self, schema: Mapping[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        if "$ref" in schema and (target := self._resolve(schema)) is not None and not self.ends(target):
            return False
        if not all(map(self.ends, _list(schema, "allOf"))):
            return False
        for key in ("anyOf", "oneOf"):
            if _list(schema, key) and not any(map(self.ends, schema[key])):
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
            return all(self.ends(declared.get(name, other)) for name in needed)
        if kind == "array":
            least = schema.get("minItems", 0)
            first = _list(schema, "prefixItems")
            least = least if isinstance(least, int) else 0
            return all(map(self.ends, first[:least])) and (least <= len(first) or self.ends(schema.get("items", True)))
        return True


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
