"""Declarations as TypeScript: the cases that the render tests of Kimi and gpt-oss lack."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import InvalidRequest
from dovetail.formats.declarations import Undeclarable, in_typescript, typescript_order
from dovetail.formats.families.harmony_prompt import declared_types


def field(schema: Any) -> str:
    """The declaration of a parameter `x` with this schema."""
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}}},
    }
    declared = in_typescript([tool])
    return declared.partition("(_: {\n")[2].partition("\n}) => any;")[0]


@pytest.mark.parametrize(
    ("schema", "declared"),
    [
        (True, "  x?: any"),
        (False, "  x?: null"),
        ({"type": "array", "items": True}, "  x?: Array<any>"),
        (
            {"type": "array", "items": {"type": "string", "description": "a word"}},
            "  x?: Array<\n    // a word\n    string\n  >",
        ),
    ],
)
def test_a_field(schema: Any, declared: str) -> None:
    assert field(schema) == declared


@pytest.mark.parametrize(
    "schema", [{"$ref": "#/$defs/missing"}, {"$ref": "elsewhere"}, {"type": ["tuple"]}, {"anyOf": 1}]
)
def test_a_schema_without_a_typescript_form_is_undeclarable(schema: Any) -> None:
    with pytest.raises(Undeclarable):
        field(schema)


def nested(schema: Any, levels: int) -> Any:
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


MANY = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}


@pytest.mark.parametrize("declare", [in_typescript, declared_types])
@pytest.mark.parametrize(
    "schema",
    [
        nested(MANY, 100),
        nested({"type": "string", "description": "a" * 5_000_000}, 2),
        nested({"type": "string", "enum": ["a" * 5_000_000]}, 2),
        nested({"type": "string", "description": "a" * 2_000_000}, 100),
    ],
)
def test_schemas_that_are_too_long_are_refused(declare: Any, schema: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        declare([tool({"type": "object"}), tool(schema)])
    assert caught.value.param == "tools[1].function.parameters"
    assert len(str(caught.value)) < 300


def test_lines_of_a_comment_are_counted_with_their_indentation() -> None:
    with pytest.raises(InvalidRequest):
        in_typescript([tool(nested({"type": "string", "description": "a\n" * 100_000}, 100))])


def test_examples_are_counted_with_their_indentation() -> None:
    with pytest.raises(InvalidRequest):
        declared_types([tool(nested({"type": "string", "examples": [""] * 100_000}, 50))])


@pytest.mark.parametrize("declare", [in_typescript, declared_types])
def test_the_limit_is_for_all_tools_together(declare: Any) -> None:
    schema = nested({"type": "string", "description": "a" * 500_000}, 3)
    assert declare([tool(schema)])
    with pytest.raises(InvalidRequest):
        declare([tool(schema)] * 9)


def test_required_names_that_are_not_strings_are_ignored() -> None:
    schema = {"required": ["b", 5, {}], "properties": {"a": {}, "b": {}}}
    assert [*typescript_order(schema)["properties"]] == ["b", "a"]
    assert "b?: any" not in declared_types([tool(schema)])


def test_without_functions_nothing_is_declared() -> None:
    assert in_typescript([{"type": "builtin"}]) == ""
