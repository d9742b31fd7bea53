"""Counting the looks comes to an end as soon as the check would: in so many steps, and in little memory."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings

from dovetail.grammar.schemas.check import Checker
from dovetail.grammar.schemas.looks import Looks
from tests.grammar.test_check import values
from tests.grammar.test_lark_schema import schemas

_LIMIT = 5_000
_X = {"$ref": "#/$defs/x"}


def _x(schema: Any) -> Any:
    return {**_X, "$defs": {"x": schema}}


def _keys(count: int) -> dict[str, int]:
    return {f"p{i}": 0 for i in range(count)}


def _nest(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def _laughs(keyword: str, width: int) -> Any:
    """Each level refers to the next so many times."""

    def held(i: int) -> Any:
        return {k: {"$ref": f"#/$defs/{i}"} for k in _keys(width)} if keyword in _BY_NAME else [_to(i)] * width

    def _to(i: int) -> Any:
        return {"$ref": f"#/$defs/{i}"}

    return {**_to(0), "$defs": {**{str(i): {keyword: held(i + 1)} for i in range(60)}, "60": {}}}


_BY_NAME = ("dependentSchemas", "dependencies")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"dependentSchemas": {"p0": {"$ref": "#"}}}, _keys(1)),
        (_x({"dependentSchemas": {key: _X for key in _keys(300)}}), _keys(300)),
        (_x({"dependencies": {key: _X for key in _keys(2_000)}}), _keys(2_000)),
        (_laughs("dependentSchemas", 3), _keys(3)),
        (_laughs("allOf", 2), 1),
        (_laughs("anyOf", 100), 1),
        (_x({"anyOf": [_X] * 100}), {}),
        (_x({"not": _X}), {}),
        (_x({"if": _X, "then": _X, "else": _X}), {}),
        (_x({"unevaluatedProperties": _X, "anyOf": [{"properties": {"a": _X}}]}), _nest(150)),
        (_x({"patternProperties": {f"^a{{{i}}}": _X for i in range(100)}}), _nest(150)),
        (_x({"properties": {"a": {"if": _X, "then": _X}}}), _nest(150)),
        ({"allOf": [_X] * 1_000, **_x({"prefixItems": [{}] * 1_000})}, [0] * 1_000),
        ({"allOf": [_X] * 1_000, **_x({"properties": {str(i): {} for i in range(1_000)}})}, _keys(1_000)),
        (_x({"propertyNames": {"allOf": [{"minLength": 1}] * 1_000}}), _keys(5_000)),
    ],
)
def test_it_stops_before_it_takes_much(schema: Any, value: Any) -> None:
    looks = Looks(schema, turning=False)
    read, reads = looks._read, 0

    def counted(place: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(place)

    looks._read = counted  # type: ignore[method-assign]
    tracemalloc.start()
    try:
        assert looks.at(value, _LIMIT) > _LIMIT
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
    assert reads <= 4 * _LIMIT


def test_what_depends_on_a_key_is_looked_at_where_that_is_there() -> None:
    schema = {"dependentSchemas": {"a": {"$ref": "#"}, "b": {"required": ["c"]}}}
    checker = Checker(schema, "x")
    for arguments, kind in (('{"c": 1}', None), ('{"b": 1}', "schema_mismatch"), ('{"a": 1}', "unchecked_arguments")):
        fault = checker.fault(json.dumps(json.loads(arguments)))
        assert (fault and fault.kind) == kind
    # That the names are looked for takes the library time nevertheless.
    many = Checker({"items": {"dependentSchemas": {f"k{i}": {} for i in range(1_000)}}}, "x")
    fault = many.fault(json.dumps([{}] * 5_000))
    assert fault is not None and fault.kind == "unchecked_arguments"


def test_names_that_are_looked_for_and_not_there_take_time() -> None:
    schema = {"anyOf": [_X] * 100, **_x({"properties": {f"k{i}": {} for i in range(900)}})}
    assert Looks(schema, turning=False).at(_keys(5_000), math.inf) > 100 * 900 / 50
    assert Looks(schema, turning=False).at({}, math.inf) < 100


def test_what_asks_each_schema_about_each_key_takes_time() -> None:
    """Those in its branches too."""
    branches: dict[str, Any] = {"allOf": [{"anyOf": [{"properties": {f"k{i}": {}}} for i in range(300)]}]}
    asked, not_asked = (
        Looks({**branches, keyword: {}}, turning=False).at(_keys(1_000), math.inf)
        for keyword in ("unevaluatedProperties", "unevaluatedItems")
    )
    assert asked - not_asked > 300 * 1_000 / 200


@given(schemas, values, values)
@settings(max_examples=200)
def test_values_cost_together_what_they_cost_apart(schema: dict[str, Any], one: Any, other: Any) -> None:
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    looks = Looks({"items": schema, **definitions}, turning=False)

    def at(*items: Any) -> float:
        return looks.at(list(items), math.inf)

    assert at(one, other, one) + 2 * at() == pytest.approx(2 * at(one) + at(other))
