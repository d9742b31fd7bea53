"""What Python's grammar makes of schemas that are put together: what it does not keep of them, or why it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.errors import SchemaRefused
from dovetail.formats import python_grammar
from dovetail.grammar import Choice, Concat, Loosened, Regex, RuleRef


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
    ({"properties": {"b": NULL}, "additionalProperties": False, "allOf": [{"properties": {"c": NULL}}]}, {}, ["allOf"]),
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
    ({"anyOf": [{"enum": [{"k": i}]} for i in range(31_000)]}, "# is too large"),
]


def shortened(it: Any) -> str:
    return json.dumps(it)[:60]


@pytest.mark.parametrize(("schema", "definitions", "lost"), PUT_TOGETHER, ids=shortened)
def test_what_of_several_schemas_is_kept(schema: dict[str, Any], definitions: dict[str, Any], lost: list[str]) -> None:
    item, _ = python_grammar.arguments(of(schema, **definitions), "tools[0]", "t")
    told = item.pointers if isinstance(item, Loosened) else ()
    assert list(told) == [f"#/properties/a/{keyword}" for keyword in lost]


ITSELF: list[dict[str, Any]] = [
    {"$ref": "#/properties/a"},
    {"type": "string", "allOf": [{"$ref": "#/properties/a"}]},
    {"required": ["x"], "allOf": [{"required": ["y"], "allOf": [{"$ref": "#/properties/a"}]}]},
    {"properties": {"x": NULL}, "allOf": [{"properties": {"y": NULL}, "allOf": [{"$ref": "#/properties/a"}]}]},
    {"type": "string", "anyOf": [{"$ref": "#/properties/a"}]},
]


@pytest.mark.parametrize("schema", ITSELF, ids=shortened)
def test_what_refers_to_itself_at_once_is_never_written(schema: dict[str, Any]) -> None:
    """It has no value: left out where it may be, refused where it is required."""
    whole = {**of(schema), "additionalProperties": False}
    _, rules = python_grammar.arguments(whole, "tools[0]", "t")
    assert rules["t1"] == Concat(())  # there are no arguments but none
    with pytest.raises(SchemaRefused, match="nothing can be valid to #/properties/a"):
        python_grammar.arguments({**whole, "required": ["a"]}, "tools[0]", "t")


def test_what_refers_to_itself_or_to_another_is_the_other() -> None:
    schema = of({"type": "string", "anyOf": [{"$ref": "#/properties/a"}, {"minLength": 1}]})
    _, rules = python_grammar.arguments(schema, "tools[0]", "t")
    itself, other = next(rule.options for rule in rules.values() if isinstance(rule, Choice))
    assert isinstance(itself, RuleRef) and isinstance(other, Regex)
    assert rules[itself.name] == Choice((itself, other))


def test_a_chain_that_is_too_long_is_refused() -> None:
    chain: dict[str, Any] = {str(i): {"minLength": 1, "allOf": [{"$ref": f"#/$defs/{i + 1}"}]} for i in range(400)}
    with pytest.raises(SchemaRefused, match="too many levels"):
        python_grammar.arguments(of({"$ref": "#/$defs/0"}, **chain, **{"400": STRING}), "tools[0]", "t")


@pytest.mark.parametrize(("schema", "told"), REFUSED, ids=shortened)
def test_what_is_refused(schema: dict[str, Any], told: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        python_grammar.arguments(of(schema), "tools[0]", "t")
    assert told in caught.value.message
