"""`ParameterTypes`: the JSON types that a tool's schema allows for each parameter.

The schema comes from the request and may be anything. A part that makes no sense is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from dovetail.conversation import TYPE_NAMES

#: Every type: of an argument of which nothing is known.
ANY: Final = frozenset(("string", "number", "integer", "boolean", "null", "object", "array"))
#: Every type except string: of a value that is written as JSON.
VALUES: Final = ANY - {"string"}
STRING: Final = frozenset(("string",))
NULL: Final = frozenset(("null",))

#: Keys under which models put all arguments of a call, although the tool has no such parameter.
WRAPPERS: Final = ("arguments", "input", "parameters")

#: Keywords with which a schema may have other parameters than its `properties`.
_MORE_PARAMETERS: Final = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf")

#: Each type alone, by its name.
_TYPES: Final = {name: frozenset((name,)) for name in ANY}

# Limits, because a schema may refer to itself, and may do so twice at every step.
_DEEPEST: Final = 32
_MOST_STEPS: Final = 512


class ParameterTypes:
    """The types of one tool's parameters, by key. `schema` may be anything.

    `schemas`: the schemas of one value in the tool's arguments; then the types belong to its members and items.
    """

    def __init__(self, schema: Any, schemas: Sequence[Any] | None = None) -> None:
        self._root = schema
        self._schemas = [schema] if schemas is None else schemas
        self._known: dict[str, frozenset[str]] = {}
        self._steps = 0

    def __getitem__(self, key: str) -> frozenset[str]:
        """The JSON types that the parameter may have; `ANY` if the schema does not declare them."""
        types = self._known.get(key)
        if types is None:
            self._steps = _MOST_STEPS
            types = _union([self._types(schema, 0) for schema in self._of_member(key)])
            self._known[key] = types
        return types

    def declares(self, key: str) -> bool:
        """Whether the tool has a parameter of this name, as far as its schema tells."""
        self._steps = _MOST_STEPS
        return any(True for _ in self._declared(self._root, key, 0))

    def has_member(self, key: str) -> bool:
        """Whether the values that this is about have a member of this name, as far as their schemas tell."""
        self._steps = _MOST_STEPS
        return any(True for _ in self._of_member(key))

    def own_keys(self) -> list[str]:
        """The parameters that the tool's schema lists itself."""
        properties = self._root.get("properties") if isinstance(self._root, Mapping) else None
        return [*properties] if isinstance(properties, Mapping) else []

    def excludes(self, key: str) -> bool:
        """Whether the tool certainly has no parameter of this name: its schema lists its parameters, and no others."""
        root = self._root
        if not isinstance(root, Mapping) or not isinstance(root.get("properties"), Mapping):
            return False
        return key not in root["properties"] and not any(root.get(word) for word in _MORE_PARAMETERS)

    @property
    def required(self) -> frozenset[str]:
        """The names of the parameters that a call must have."""
        listed = _list(self._root.get("required")) if isinstance(self._root, Mapping) else ()
        return frozenset(name for name in listed if isinstance(name, str))

    def is_wrapper(self, key: str) -> bool:
        """Whether `key` is one of `WRAPPERS` and no parameter of the tool, whose schema is known."""
        return key in WRAPPERS and isinstance(self._root, Mapping) and not self.declares(key)

    def of_items(self) -> frozenset[str]:
        """The types that the items of an array may have."""
        self._steps = _MOST_STEPS
        return _union([self._types(schema, 0) for schema in self._of_items()])

    def inside(self, key: str | None) -> ParameterTypes:
        """The types of the members and items of a parameter; None: of the items of an array."""
        self._steps = _MOST_STEPS
        return ParameterTypes(self._root, [*(self._of_items() if key is None else self._of_member(key))])

    def _of_member(self, key: str) -> Iterator[Any]:
        for schema in self._schemas:
            yield from self._declared(schema, key, 0)

    def _of_items(self) -> Iterator[Any]:
        for schema in self._schemas:
            yield from self._items(schema, 0)

    def _items(self, schema: Any, depth: int) -> Iterator[Any]:
        """The schemas that `schema` declares for the items of an array."""
        if isinstance(schema, Mapping) and self._step(depth):
            if isinstance(schema.get("items"), Mapping):
                yield schema["items"]
            for part in self._parts(schema):
                yield from self._items(part, depth + 1)

    def _declared(self, schema: Any, key: str, depth: int) -> Iterator[Any]:
        """The schemas that `schema` declares for the parameter `key`."""
        if not isinstance(schema, Mapping) or not self._step(depth):
            return
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            yield properties[key]
            return
        if isinstance(schema.get("additionalProperties"), Mapping):
            yield schema["additionalProperties"]
        for part in self._parts(schema):
            yield from self._declared(part, key, depth + 1)

    def _parts(self, schema: Mapping[str, Any]) -> list[Any]:
        """The schemas that a schema refers to or combines."""
        parts = [self._referred(schema["$ref"])] if "$ref" in schema else []
        return [*parts, *(part for word in ("allOf", "anyOf", "oneOf") for part in _list(schema.get(word)))]

    def _types(self, schema: Any, depth: int) -> frozenset[str]:
        if not isinstance(schema, Mapping) or not self._step(depth):
            return ANY
        declared = [_named(schema["type"]) if "type" in schema else ANY]
        if enum := _list(schema.get("enum")):
            declared.append(_union([types_of(value) for value in enum]))
        if "const" in schema:
            declared.append(types_of(schema["const"]))
        if "$ref" in schema:
            declared.append(self._types(self._referred(schema["$ref"]), depth + 1))
        for word in ("anyOf", "oneOf"):
            if word in schema:
                declared.append(_union([self._types(part, depth + 1) for part in _list(schema[word])]))
        declared += [self._types(part, depth + 1) for part in _list(schema.get("allOf"))]
        types = ANY.intersection(*declared) or ANY
        if types == ANY and "properties" in schema:
            types = frozenset(("object",))
        elif types == ANY and "items" in schema:
            types = frozenset(("array",))
        return types | {"null"} if schema.get("nullable") is True else types

    def _step(self, depth: int) -> bool:
        self._steps -= 1
        return self._steps >= 0 and depth <= _DEEPEST

    def _referred(self, pointer: Any) -> Any:
        """The value that a reference such as `#/$defs/name` points at, or None."""
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return None
        at = self._root
        for part in pointer[1:].split("/")[1:]:
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(at, Mapping):
                at = at.get(part)
            elif part.isdecimal() and len(part) < 9 and int(part) < len(_list(at)):
                at = at[int(part)]
            else:
                return None
        return at


def _union(types: Iterable[frozenset[str]]) -> frozenset[str]:
    """All of `types`; `ANY` if there are none, because a schema without alternatives declares nothing."""
    return frozenset().union(*types) or ANY


def _named(types: Any) -> frozenset[str]:
    if isinstance(types, str) and (known := _TYPES.get(types)) is not None:
        return known
    names = [name.lower() for name in ([types] if isinstance(types, str) else _list(types)) if isinstance(name, str)]
    known = frozenset(TYPE_NAMES.get(name, name) for name in names)
    return known if known <= ANY and known else ANY


def types_of(value: Any) -> frozenset[str]:
    match value:
        case str():
            return STRING
        case bool():
            return frozenset(("boolean",))
        case int() | float():
            return frozenset(("number", "integer"))
        case None:
            return frozenset(("null",))
        case Mapping():
            return frozenset(("object",))
        case _:
            return frozenset(("array",))


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
