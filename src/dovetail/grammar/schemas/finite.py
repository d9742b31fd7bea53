"""Which schemas have a finite value: a schema whose every value contains another value like itself has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail.grammar.schemas.keywords import TYPES, listed

Resolve = Callable[[Mapping[str, Any]], Any]


class FiniteSchemas:
    """The schemas, among all `schemas` of one JSON Schema, that have a finite value.

    `resolve(schema)` returns the target of the `$ref` in `schema`, or None. A schema is finite if some value of it
    needs only values of finite schemas. When a schema turns out to be finite, the schemas that wait for it are checked
    again.
    """

    def __init__(self, schemas: Iterable[Mapping[str, Any]], resolve: Resolve) -> None:
        self._resolve = resolve
        self._finite: set[int] = set()
        self._needed: list[Mapping[str, Any]] = []  # by the schema that is being checked, and not known to be finite
        waiting: dict[int, list[Mapping[str, Any]]] = {}
        pending = list(schemas)  # checked from the last to the first, because inner schemas come after outer ones
        while pending:
            schema = pending.pop()
            self._needed = []
            if id(schema) in self._finite:
                continue
            if self._is_finite(schema):
                self._finite.add(id(schema))
                pending += waiting.pop(id(schema), ())
            else:
                for needed in self._needed:
                    waiting.setdefault(id(needed), []).append(schema)

    def __contains__(self, schema: object) -> bool:
        """Whether some value of `schema` is finite. True for everything that is not a schema."""
        return id(schema) in self._finite if isinstance(schema, Mapping) else schema is not False

    def _check(self, schema: Any) -> bool:
        if schema not in self and isinstance(schema, Mapping):
            self._needed.append(schema)
        return schema in self

    def _is_finite(self, schema: Mapping[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        if "$ref" in schema and (target := self._resolve(schema)) is not None and not self._check(target):
            return False
        if not all(map(self._check, listed(schema, "allOf"))):
            return False
        for union in (listed(schema, "anyOf"), listed(schema, "oneOf")):
            if union and not any(map(self._check, union)):
                return False
        types = schema.get("type", TYPES)
        types = [types] if isinstance(types, str) else types if isinstance(types, list | tuple) else TYPES
        return any(self._has_finite(schema, kind) for kind in types)

    def _has_finite(self, schema: Mapping[str, Any], kind: Any) -> bool:
        """Whether some value of the type `kind` is finite."""
        if kind == "object":
            declared = schema.get("properties")
            declared = declared if isinstance(declared, Mapping) else {}
            others = schema.get("additionalProperties", True)
            required = (name for name in listed(schema, "required") if isinstance(name, str))
            return all(self._check(declared.get(name, others)) for name in required)
        if kind == "array":
            least = schema.get("minItems", 0)
            first = listed(schema, "prefixItems")
            least = least if isinstance(least, int) else 0
            return all(map(self._check, first[:least])) and (
                least <= len(first) or self._check(schema.get("items", True))
            )
        return True
