"""The schemas of the proof: files with one JSON Schema a line, as in walle's tests, and some made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: By what a grammar has to do for them. Each is of an object that a few tokens can write.
MADE_UP: dict[str, dict[str, Any]] = {
    "kinds": {
        "properties": {
            "city": {"type": "string", "minLength": 1, "maxLength": 12},
            "days": {"type": "integer", "minimum": 0, "maximum": 14},
            "ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
            "unit": {"enum": ["c", "f", None, 3]},
            "on": {"type": "boolean"},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "lists": {
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
            "pair": {"prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False, "minItems": 2},
        },
        "required": ["tags"],
    },
    "refers to itself": {
        "properties": {"tree": {"$ref": "#/$defs/tree"}},
        "required": ["tree"],
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "children": {"items": {"$ref": "#/$defs/tree"}}},
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    },
    "either": {
        "properties": {
            "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            "how": {
                "oneOf": [
                    {"properties": {"kind": {"const": "car"}, "seats": {"type": "integer"}}, "required": ["kind"]},
                    {"properties": {"kind": {"const": "bus"}, "line": {"type": "string"}}, "required": ["kind"]},
                ],
                "type": "object",
            },
        },
        "required": ["how"],
    },
    "patterns": {
        "properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"}},
        "patternProperties": {"^x-": {"type": "integer", "multipleOf": 5}},
        "additionalProperties": False,
    },
}


def made_up() -> dict[str, dict[str, Any]]:
    """Parameters of tools, by name."""
    return {name: {"type": "object", **schema} for name, schema in MADE_UP.items()}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The schemas in `folder`/*/valid.jsonl as parameters of tools, by file and line. Raises `ValueError`.

    A schema that is not of an object becomes a property of one, because arguments have names.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/valid.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            schema = json.loads(line)
            by_name[f"{path.parent.name}:{number}"] = schema if schema.get("type") == "object" else _under_a_key(schema)
    if not by_name:
        raise ValueError(f"{folder} holds no */valid.jsonl")
    return by_name


def _under_a_key(schema: dict[str, Any]) -> dict[str, Any]:
    # A schema with an `$id` resolves references itself.
    value = schema if "$id" in schema else _moved(schema)
    properties = {"value": value}
    return {"type": "object", "properties": properties, "required": ["value"], "additionalProperties": False}


def _moved(schema: Any) -> Any:
    """A schema with its references changed for one level further down."""
    if isinstance(schema, list):
        return [_moved(it) for it in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.replace("#", "#/properties/value", 1) if key == "$ref" and isinstance(value, str) else _moved(value)
        for key, value in schema.items()
    }
