"""Which keywords of combined schemas the grammar of Python calls does not enforce, and which schemas it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.errors import SchemaRefused
from dovetail.formats.answers import value_grammar
from dovetail.formats.declared.python_values import PYTHON
from dovetail.grammar import Choice, Concat, Loosened, Regex, RuleRef


def of(schema: Any, **definitions: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "$defs": definitions}


NULL = {"type": "null"}
STRING = {"type": "string"}
#: A schema of a parameter, definitions, and which of its keywords are not enforced.
COMBINED: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"enum": ["x"], "const": "x"}, {}, ["enum"]),
    ({"allOf": [STRING]}, {}, []),
    ({"allOf": [{"$ref": "#/$defs/s"}], "description": "so"}, {"s": STRING}, []),
    ({"allOf": [STRING, {"minLength": 1}]}, {}, ["allOf"]),
    ({"allOf": [True]}, {}, []),
    ({"properties": {"b": NULL}, "allOf": [{"required": ["b"]}]}, {}, ["allOf"]),
    ({"type": "string", "anyOf": [{"type": "string", "minLength": 1}, {"type": "string", "maxLength": 0}]}, {}, []),
    ({"type": "string", "anyOf": [{"minLength": 1}, {"maxLength": 0}]}, {}, ["anyOf"]),
    ({"type": "string", "anyOf": [{"type": "integer"}], "allOf": [STRING]}, {}, ["allOf", "anyOf"]),
    ({"oneOf": [STRING, {"type": "string", "minLength": 1}]}, {}, ["oneOf"]),
    ({"$ref": "#/$defs/s/1"}, {"s": [STRING, NULL]}, []),
    ({"type": "string", "format": "markdown"}, {}, ["format"]),
    ({"type": "array", "items": [NULL], "additionalItems": False}, {}, []),
    ({"type": "array", "prefixItems": [NULL], "maxItems": 1}, {}, []),
    ({"type": "array", "prefixItems": [NULL, NULL], "minItems": 1, "maxItems": 4}, {}, []),
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"enum": "x"}, "#/properties/a/enum is no list"),
    ({"type": [[]]}, "#/properties/a/type is no type"),
    ({"type": "string", "minLength": None}, "#/properties/a/minLength is no number"),
    ({"allOf": [3]}, "#/properties/a/allOf/0 is no JSON Schema"),
    ({"type": "array", "prefixItems": 3}, "#/properties/a/prefixItems is no list"),
    ({"anyOf": [{"enum": [{"k": i}]} for i in range(31_000)]}, "# is too large"),
]


def shortened(it: Any) -> str:
    return json.dumps(it)[:60]


@pytest.mark.parametrize(("schema", "definitions", "lost"), COMBINED, ids=shortened)
def test_unenforced_keywords_of_combined_schemas_are_listed(
    schema: dict[str, Any], definitions: dict[str, Any], lost: list[str]
) -> None:
    item, _ = value_grammar.arguments(of(schema, **definitions), "tools[0]", "t", PYTHON)
    unenforced = item.pointers if isinstance(item, Loosened) else ()
    assert list(unenforced) == [f"#/properties/a/{keyword}" for keyword in lost]


ITSELF: list[dict[str, Any]] = [
    {"$ref": "#/properties/a"},
    {"allOf": [{"$ref": "#/properties/a"}]},
    {"anyOf": [{"$ref": "#/properties/a"}]},
]


@pytest.mark.parametrize("schema", ITSELF, ids=shortened)
def test_a_schema_that_only_refers_to_itself_has_no_value(schema: dict[str, Any]) -> None:
    """It has no value: left out where it may be, refused where it is required."""
    whole = {**of(schema), "additionalProperties": False}
    _, rules = value_grammar.arguments(whole, "tools[0]", "t", PYTHON)
    assert rules["t1"] == Concat(())  # there are no arguments but none
    with pytest.raises(SchemaRefused, match="nothing can be valid to #/properties/a"):
        value_grammar.arguments({**whole, "required": ["a"]}, "tools[0]", "t", PYTHON)


def test_an_alternative_that_refers_to_itself_adds_nothing() -> None:
    schema = of({"anyOf": [{"$ref": "#/properties/a"}, {"type": "string", "minLength": 1}]})
    _, rules = value_grammar.arguments(schema, "tools[0]", "t", PYTHON)
    itself, other = next(rule.options for rule in rules.values() if isinstance(rule, Choice))
    assert isinstance(itself, RuleRef) and isinstance(other, Regex)
    assert rules[itself.name] == Choice((itself, other))


def test_a_chain_that_is_too_long_is_refused() -> None:
    chain: dict[str, Any] = {str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}]} for i in range(400)}
    with pytest.raises(SchemaRefused, match="too many levels"):
        value_grammar.arguments(of({"$ref": "#/$defs/0"}, **chain, **{"400": STRING}), "tools[0]", "t", PYTHON)


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=shortened)
def test_what_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        value_grammar.arguments(of(schema), "tools[0]", "t", PYTHON)
    assert message in caught.value.message
