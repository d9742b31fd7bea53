"""What Python's grammar makes of schemas that are put together: what it does not keep of them, or why it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.errors import SchemaRefused
from dovetail.formats import python_grammar
from dovetail.grammar import Wider


def of(schema: Any, **definitions: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "$defs": definitions}


NULL = {"type": "null"}
STRING = {"type": "string"}
#: A schema of a parameter, definitions, and which of its keywords are not kept.
PUT_TOGETHER: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"enum": ["x"], "const": "x"}, {}, ["enum"]),
    ({"allOf": [STRING, {"minLength": 1}, {"maxLength": 3}]}, {}, []),
    ({"allOf": [STRING, {"type": "integer"}]}, {}, ["allOf"]),
    ({"allOf": [True, STRING]}, {}, []),
    ({"allOf": [False, STRING]}, {}, []),
    (
        {
            "properties": {"b": NULL},
            "required": ["b"],
            "allOf": [{"properties": {"c": NULL}, "required": ["c"]}],
        },
        {},
        [],
    ),
    ({"properties": {"b": NULL}, "allOf": [{"properties": {"b": STRING}}]}, {}, ["allOf"]),
    ({"type": "string", "anyOf": [{"minLength": 1}, {"maxLength": 0}]}, {}, []),
    ({"type": "string", "anyOf": [{"type": "integer"}]}, {}, ["anyOf"]),
    ({"oneOf": [STRING, {"type": "string", "minLength": 1}]}, {}, ["oneOf"]),
    ({"allOf": [STRING, {"$ref": "#/$defs/s"}]}, {"s": {"$ref": "#/$defs/t"}, "t": {"maxLength": 2}}, []),
    ({"allOf": [STRING, {"$ref": "#/$defs/s"}]}, {"s": True}, []),
    ({"allOf": [STRING, {"$ref": "#/$defs/s", "minLength": 1}]}, {"s": STRING}, ["allOf"]),
    (
        {"allOf": [STRING, {"$ref": "#/$defs/0"}]},
        {str(i): {"$ref": f"#/$defs/{i + 1}"} if i < 40 else STRING for i in range(41)},
        ["allOf"],
    ),
    ({"$ref": "#/$defs/s/1"}, {"s": [STRING, NULL]}, []),
    ({"type": "string", "format": "markdown"}, {}, ["format"]),
    ({"type": "array", "items": [NULL], "additionalItems": False}, {}, []),
    ({"type": "array", "prefixItems": [NULL], "maxItems": 1}, {}, []),
    ({"type": "array", "prefixItems": [NULL, NULL], "minItems": 1, "maxItems": 4}, {}, []),
    ({"type": "string", "anyOf": [{"minLength": i} for i in range(520)]}, {}, ["anyOf"]),
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"enum": "x"}, "#/properties/a/enum is no list"),
    ({"type": [[]]}, "#/properties/a/type is no type"),
    ({"type": "string", "minLength": None}, "#/properties/a/minLength is no number"),
    ({"allOf": [3]}, "#/properties/a is made of what is no JSON Schema"),
    ({"type": "array", "prefixItems": 3}, "#/properties/a/prefixItems is no list"),
    ({"$ref": "#/properties/a"}, "#/properties/a refers to itself"),
    ({"anyOf": [{"enum": [{"k": i}]} for i in range(31_000)]}, "# is too large"),
]


def shortened(it: Any) -> str:
    return json.dumps(it)[:60]


@pytest.mark.parametrize(("schema", "definitions", "lost"), PUT_TOGETHER, ids=shortened)
def test_what_of_several_schemas_is_kept(schema: dict[str, Any], definitions: dict[str, Any], lost: list[str]) -> None:
    item, _ = python_grammar.arguments(of(schema, **definitions), "tools[0]", "t")
    told = item.pointers if isinstance(item, Wider) else ()
    assert list(told) == [f"#/properties/a/{keyword}" for keyword in lost]


@pytest.mark.parametrize(("schema", "told"), REFUSED, ids=shortened)
def test_what_is_refused(schema: dict[str, Any], told: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        python_grammar.arguments(of(schema), "tools[0]", "t")
    assert told in caught.value.message
