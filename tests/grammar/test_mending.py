"""What is not JSON Schema in a tool's schema is left out; the rest, and what is well formed, stays as it is."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

import dovetail
from dovetail.errors import SchemaRefused
from dovetail.grammar.schemas.check import Checker
from dovetail.grammar.schemas.mending import mended
from tests.conftest import SHARED


def of(schema: Any, **beside: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **beside}


#: A schema, what is left of it, and what is said to be left out.
SLOPPY: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (of({"type": "string", "required": True}), of({"type": "string"}), ["#/properties/a/required"]),
    (of({"type": "any"}), of({}), ["#/properties/a/type"]),
    (of({"type": ["string", None]}), of({}), ["#/properties/a/type"]),
    (of({"type": "string"}, required="a"), of({"type": "string"}), ["#/required"]),
    (of({"type": "string"}, additionalProperties="false"), of({"type": "string"}), ["#/additionalProperties"]),
    (of({"type": "string", "title": None, "description": 3}), of({"type": "string"}), []),
    (of({"type": "integer", "minimum": None}), of({"type": "integer"}), ["#/properties/a/minimum"]),
    (of({"type": "string", "minLength": "1"}), of({"type": "string"}), ["#/properties/a/minLength"]),
    (of({"type": "array", "items": None}), of({"type": "array"}), ["#/properties/a/items"]),
    (of(3, additionalProperties=False), of(True, additionalProperties=False), ["#/properties/a"]),
    (of({"anyOf": [{"type": "str"}, 3]}), of({"anyOf": [{}, True]}), ["#/properties/a/anyOf/0/type"]),
    (of({"not": {"type": "str"}}), of({}), ["#/properties/a/not"]),
    ({"properties": None}, {}, ["#/properties"]),
    ({"$schema": "mine", **of({})}, of({}), []),
    (
        {"$defs": {"x": {"type": "any"}}, **of({"$ref": "#/$defs/x"})},
        {"$defs": {"x": {}}, **of({"$ref": "#/$defs/x"})},
        ["#/$defs/x/type"],
    ),
    (of({"oneOf": [{"type": "number", "minimum": "0"}, {"type": "integer"}]}), of({}), ["#/properties/a/oneOf"]),
    ({"$defs": None, **of({})}, of({}), ["#/$defs"]),
    (of({"readOnly": "yes", "examples": "x", "$comment": 3}), of({}), []),
    (of({"items": []}), of({}), ["#/properties/a/items"]),
    ({"properties": ["a"], "additionalProperties": False}, {}, ["#/properties", "#/additionalProperties"]),
    (of({"contains": {}, "minContains": "0"}), of({}), ["#/properties/a/contains", "#/properties/a/minContains"]),
]
AS_THEY_ARE: list[dict[str, Any]] = [
    {},
    of({"type": "array", "items": [{"type": "string"}]}),
    of({"type": "number", "minimum": 0, "exclusiveMinimum": True}),
    of({"type": "string", "nullable": True, "x-any": 3, "default": float("nan")}),
    {"$schema": "http://json-schema.org/draft-07/schema#", **of({"type": "string"})},
]


@pytest.mark.parametrize(("schema", "left", "lost"), SLOPPY, ids=lambda it: json.dumps(it)[:50])
def test_what_is_no_schema_is_left_out(schema: dict[str, Any], left: dict[str, Any], lost: list[str]) -> None:
    found, told = mended(schema)
    assert (found, set(lost) <= set(told), bool(told)) == (left, True, bool(lost))
    jsonschema.Draft202012Validator.check_schema(dict(found))
    Checker({"type": "object", **found}, "tools")
    assert mended(found) == (found, ())


@pytest.mark.parametrize("name", ["properties", "$defs", "items", "anyOf", "type", "contains", "additionalProperties"])
def test_a_parameter_may_be_called_like_a_keyword(name: str) -> None:
    schema = {"properties": {name: {"type": "any", "properties": {name: {"required": True}}}, "b": {"type": "string"}}}
    left = {"properties": {name: {"properties": {name: {}}}, "b": {"type": "string"}}}
    assert mended(schema)[0] == left


@pytest.mark.parametrize("schema", AS_THEY_ARE, ids=str)
def test_what_some_draft_has_stays(schema: dict[str, Any]) -> None:
    assert mended(schema) == (schema, ())
    assert mended(schema)[0] is schema


def test_what_cannot_be_mended_stays() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2_000):
        deep = {"properties": {"a": deep}}
    for schema in (deep, {"properties": {f"k{i}": {"type": "str", "title": None} for i in range(1_000)}}):
        found, told = mended(schema)
        assert found is schema
        assert told == ()


def test_schemas_of_others_are_well_formed() -> None:
    folder = SHARED / "schemas" / "walle"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    for file in sorted(folder.rglob("*.json")):
        held = json.loads(file.read_text())
        for each in held if isinstance(held, list) else [held]:
            if isinstance(each, dict) and isinstance(each.get("schema"), dict) and each.get("is_valid", True):
                assert mended(each["schema"])[0] == each["schema"] or mended(each["schema"])[1], file


def test_a_tool_that_is_strict_itself_is_told_instead() -> None:
    fmt = dovetail.format("kimi_k25")
    function = {"name": "f", "parameters": of({"type": "string", "minLength": "1"})}
    grammar = fmt.grammar([{"type": "function", "function": function}])
    assert grammar is not None
    assert list(grammar.unenforced("lark")) == [("tools[0].function.parameters", "#/properties/a/minLength")]
    with pytest.raises(SchemaRefused, match="#/properties/a is no schema"):
        fmt.grammar([{"type": "function", "function": {**function, "strict": True, "parameters": of(3)}}])
