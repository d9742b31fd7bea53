"""The bound of a check is computed in bounded time and memory, and is above what the validator visits."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.grammar.schemas.check import Checker
from dovetail.grammar.schemas.references import Place, References
from dovetail.grammar.schemas.validation_cost import UNBOUNDED, ValidationCost, width
from tests.examples import examples
from tests.grammar.test_check import values
from tests.grammar.test_lark_schema import schemas

pytestmark = pytest.mark.slow

_LIMIT = 250_000
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

    def part(i: int) -> Any:
        return {k: {"$ref": f"#/$defs/{i}"} for k in _keys(width)} if keyword in _BY_NAME else [_to(i)] * width

    def _to(i: int) -> Any:
        return {"$ref": f"#/$defs/{i}"}

    return {**_to(0), "$defs": {**{str(i): {keyword: part(i + 1)} for i in range(60)}, "60": {}}}


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
def test_the_count_stops_before_it_takes_much_itself(schema: Any, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved, below, read = References.resolved, References.below, 0

    def counted(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal read
            read += 1
            return method(*arguments)

        return call

    monkeypatch.setattr(References, "resolved", counted(resolved))
    monkeypatch.setattr(References, "below", counted(below))
    tracemalloc.start()
    try:
        assert ValidationCost(schema, backtracking=False).of(value, _LIMIT) > _LIMIT
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()
    assert read <= 100_000


def _visits(references: References, place: Place, value: Any) -> int:
    """The slow reference: one for each schema and each value that the schema applies to, without stopping early."""
    schema = place.schema
    if not isinstance(schema, dict):
        return 1
    return 1 + sum(_visits(references, inner, each) for inner, each in _pairs(references, place, value))


def _pairs(references: References, place: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    schema, below = place.schema, references.below
    for key in ("allOf", "anyOf", "oneOf"):
        yield from ((below(place, key, i), value) for i in range(len(schema.get(key, ()))))
    if isinstance(value, dict):
        declared = schema.get("properties", {})
        yield from ((below(place, "properties", name), value[name]) for name in declared if name in value)
        if "additionalProperties" in schema:
            yield from ((below(place, "additionalProperties"), value[name]) for name in value if name not in declared)
        if "propertyNames" in schema:
            yield from ((below(place, "propertyNames"), name) for name in value)
    if isinstance(value, list):
        first = len(schema.get("prefixItems", ()))
        yield from ((below(place, "prefixItems", i), each) for i, each in enumerate(value[:first]))
        for key, items in (("items", value[first:]), ("contains", value)):
            yield from ((below(place, key), each) for each in items if key in schema)


@given(schemas, values)
@examples(300)
def test_the_bound_is_above_the_visits(schema: dict[str, Any], value: Any) -> None:
    references = References(schema)
    bound = ValidationCost(schema, backtracking=False).of(value, math.inf)
    assert _visits(references, references.root, value) <= bound < UNBOUNDED


@given(schemas, st.booleans(), values)
def test_a_quick_check_is_within_the_bound(schema: dict[str, Any], hard: bool, value: Any) -> None:
    """The bound for a character of JSON, which is known before the arguments are read, is above that for their
    value."""
    if hard:
        schema = {"allOf": [schema, {"uniqueItems": True, "patternProperties": {"^a|b{2,9}$": schema}}]}
    cost = ValidationCost(schema, backtracking=hard)
    assert cost.of(value, math.inf) <= cost.per_character * (len(json.dumps(value)) + 1)


def test_a_schema_may_refer_to_itself_in_what_is_in_a_value() -> None:
    tree = {"properties": {"v": {"type": "integer"}, "n": {"$ref": "#"}}, "required": ["v"]}
    cost = ValidationCost(tree, backtracking=False)
    value: Any = {"v": 1}
    for _ in range(150):
        value = {"v": 1, "n": value}
    assert cost.per_character == UNBOUNDED
    assert cost.of(value, math.inf) < 150 * 20


def test_a_branch_that_refers_to_its_own_schema_is_not_checked() -> None:
    checker = Checker({"dependentSchemas": {"a": {"$ref": "#"}}}, "x")
    fault = checker.fault('{"a": 1}')
    assert fault is not None and fault.kind == "unchecked_arguments"


@pytest.mark.parametrize("keyword", ["unevaluatedProperties", "uniqueItems"])
def test_keywords_that_compare_or_ask_take_time(keyword: str) -> None:
    """`unevaluatedProperties` asks each schema, in branches too, about each key. `uniqueItems` compares what is
    below."""
    schema: dict[str, Any] = {"allOf": [{"anyOf": [{"properties": {f"k{i}": {}}} for i in range(300)]}]}
    value: Any = [_keys(1_000)] if keyword == "uniqueItems" else _keys(1_000)
    without, beside = (
        ValidationCost({**schema, **more}, backtracking=False).of(value, math.inf) for more in ({}, {keyword: True})
    )
    assert beside - without >= (2_000 if keyword == "uniqueItems" else 300 * 1_000 / 2)


@pytest.mark.parametrize(
    ("regex", "states"),
    [
        ("abc", 3),
        ("a{3}", 3),
        ("a{2,5}b", 6),
        ("(a{10}b){10}", 110),
        ("((a{10}){10}){10}", 1000),
        ("[a-z]{3}|x+", 4),
        ("a{,3}", 5),
        ("^a{1,99}", 1),
        ("^[a-z]-.{1,99}b{3}c*$", 5),
        ("^(a{99})$", 99),
        ("^a|b{99}", 100),
        ("[", 1),
        ("", 0),
    ],
)
def test_how_wide_a_regex_is(regex: str, states: int) -> None:
    assert width(regex) == states
