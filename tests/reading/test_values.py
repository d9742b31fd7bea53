"""The type of a parameter by its tool's schema, for any schema."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.reading.values import ANY, ParameterTypes


def types_of(schema: Any, **around: Any) -> frozenset[str]:
    return ParameterTypes({"type": "object", "properties": {"k": schema}, **around})["k"]


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, "string"),
        ({"type": "integer"}, "integer"),
        ({"type": ["string", "null"]}, "string null"),
        ({"type": "string", "nullable": True}, "string null"),
        ({"type": "STRING"}, "string"),
        ({"type": "float"}, "number"),
        ({"enum": ["a", "b"]}, "string"),
        ({"enum": [1, None, True, {}, []]}, "integer number null boolean object array"),
        ({"type": "integer", "enum": [1, 2]}, "integer"),
        ({"const": 2.5}, "integer number"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string null"),
        ({"oneOf": [{"type": "number"}, {"enum": ["auto"]}]}, "number string"),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, "integer"),
        ({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, "object"),
        ({"properties": {"a": {"type": "string"}}}, "object"),
        ({"items": {"type": "string"}}, "array"),
    ],
)
def test_types(schema: Any, types: str) -> None:
    assert types_of(schema) == frozenset(types.split())


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        None,
        "string",
        [],
        {"type": "no such type"},
        {"type": []},
        {"type": ["string", 7]},
        {"type": 7},
        {"enum": []},
        {"enum": "abc"},
        {"anyOf": []},
        {"anyOf": [{}, {"type": "string"}]},
        {"type": "string", "const": 1},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "https://elsewhere/schema"},
        {"$ref": 3},
        {"$ref": "#"},
    ],
)
def test_a_schema_without_a_type_allows_any(schema: Any) -> None:
    known = types_of(schema)
    assert known == ANY or (schema == {"type": ["string", 7]} and known == {"string"}) or known == {"object"}


@pytest.mark.parametrize(
    "pointer", ["#/$defs/a~1b", "#/$defs/a%2Fb", "#/definitions/list/1", "#/properties/other/items", "#/$defs/again"]
)
def test_references(pointer: str) -> None:
    defs = {"a/b": {"type": "null"}, "again": {"$ref": "#/$defs/a~1b"}}
    other = {"type": "array", "items": {"type": "null"}}
    schema = {
        "properties": {"k": {"$ref": pointer}, "other": other},
        "$defs": defs,
        "definitions": {"list": [{"type": "string"}, {"type": "null"}]},
    }
    assert ParameterTypes(schema)["k"] == {"null"}


def test_references_that_lead_nowhere_or_round() -> None:
    defs: dict[str, Any] = {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}}
    assert types_of({"$ref": "#/$defs/a"}, **{"$defs": defs}) == ANY
    assert types_of({"$ref": "#/$defs/9/x"}, **{"$defs": [1]}) == ANY
    wide = {"anyOf": [{"$ref": "#/$defs/w"}] * 40}
    assert types_of({"$ref": "#/$defs/w"}, **{"$defs": {"w": wide}}) == ANY


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/p", "$defs": {"p": {"properties": {"k": {"type": "null"}}}}},
        {"allOf": [{"properties": {"other": {}}}, {"properties": {"k": {"type": "null"}}}]},
        {"oneOf": [{"properties": {"k": {"type": "null"}}}, 7]},
        {"additionalProperties": {"type": "null"}},
    ],
)
def test_where_parameters_are_declared(schema: Any) -> None:
    assert ParameterTypes(schema)["k"] == {"null"}


@pytest.mark.parametrize("schema", [None, [], "x", {}, {"properties": []}, {"$ref": "#"}, {"properties": {"x": {}}}])
def test_an_undeclared_parameter_may_be_any_type(schema: Any) -> None:
    assert ParameterTypes(schema)["k"] == ANY


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"items": {"type": "null"}}, {"null"}),
        ({"anyOf": [True, {"items": {"type": "null"}}]}, {"null"}),
        (True, ANY),
        ({"items": [{"type": "null"}]}, ANY),
    ],
)
def test_the_items_of_an_array(schema: Any, types: frozenset[str]) -> None:
    assert ParameterTypes({"properties": {"k": schema}}).inside("k").of_items() == types


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(("string", "null", "#", "#/$defs/a", "k")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("type", "anyOf", "oneOf", "allOf", "$ref", "$defs", "properties", "items", "enum", "const", "k", "a")
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(json_values)
def test_no_schema_raises(schema: Any) -> None:
    types = ParameterTypes(schema)
    assert types["k"] and types["k"] <= ANY
    assert types["a"] and types["a"] <= ANY
