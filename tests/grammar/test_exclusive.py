"""Branches of a `oneOf` exclude each other where that is easy to see, and never where a value fits two of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from dovetail.grammar.schemas.exclusive import are_exclusive
from dovetail.grammar.schemas.references import References

_DEFS = {"a": {"const": "a"}, "object": {"properties": {"k": {"$ref": "#/$defs/a"}}, "required": ["k"]}}


def exclusive(*branches: Any) -> bool:
    references = References({"oneOf": [*branches], "$defs": _DEFS})
    return are_exclusive(references, references.root, branches)


def tagged(*values: Any, **beside: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": {"enum": [*values]}}, "required": ["k"], **beside}


@pytest.mark.parametrize(
    ("branches", "expected"),
    [
        (({"type": "string"}, {"type": ["null", "integer"]}), True),
        (({"type": "number"}, {"type": "integer"}), False),
        (({"const": "a"}, {"enum": ["b", None]}), True),
        (({"const": 1}, {"const": True}), True),
        (({"const": 1}, {"const": 1.0}), False),
        (({"const": [1]}, {"const": [1.0]}), False),
        (({"const": 5, "type": "string"}, {"const": 5}), True),
        ((tagged("a"), tagged("b", "c"), tagged("d")), True),
        ((tagged("a"), tagged("b", "a")), False),
        ((tagged("a"), {**tagged("b"), "required": []}), False),
        ((tagged("a"), {"$ref": "#/$defs/object"}), False),
        ((tagged("b"), {"$ref": "#/$defs/object", "type": "object"}), True),
        ((tagged("b"), {"type": "object", **_DEFS["object"]}), True),
        ((tagged("a", additionalProperties=False), tagged("a", required=["k", "more"])), True),
        ((tagged("a", additionalProperties=False, patternProperties={}), tagged("a", required=["more"])), False),
        ((False, {}), True),
        ((True, {}), False),
        (({"$ref": "#/nowhere"}, {"$ref": "#/$defs/a"}), False),
        (({"properties": 5, "enum": 5}, {"properties": []}), False),
    ],
)
def test_easy_cases_are_seen(branches: tuple[Any, ...], expected: bool) -> None:
    assert exclusive(*branches) == expected
    assert exclusive(*reversed(branches)) == expected


def test_the_work_is_bounded() -> None:
    """Beyond the bounds nothing is compared, so the `oneOf` counts as one that may be stricter than `anyOf`."""
    assert exclusive(*({"const": i} for i in range(64)))
    assert not exclusive(*({"const": i} for i in range(65)))
    assert exclusive({"enum": [*range(64)]}, {"const": 64})
    assert not exclusive({"enum": [*range(65)]}, {"const": 65})


_SCALARS = (None, True, 0, 1, 1.0, 1.5, "", "a")
_VALUES: list[Any] = [*_SCALARS, [], [1], {}, *({"k": value} for value in _SCALARS), {"k": 1, "more": 1}, {"more": 1}]
_scalars = st.one_of(
    st.builds(lambda kind: {"type": kind}, st.sampled_from("null boolean integer number string array object".split())),
    st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from(_SCALARS), min_size=1, max_size=3)),
    st.sampled_from(({"$ref": "#/$defs/a"}, {"$ref": "#/$defs/object"}, True, False)),
)
_objects = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from(("k", "more")), _scalars, max_size=2)},
    optional={
        "required": st.lists(st.sampled_from(("k", "more")), max_size=2, unique=True),
        "additionalProperties": st.booleans(),
    },
)


@given(st.lists(_scalars | _objects, min_size=2, max_size=3))
def test_no_value_fits_two_exclusive_branches(branches: list[Any]) -> None:
    if exclusive(*branches):
        validators = [Draft202012Validator({"allOf": [branch], "$defs": _DEFS}) for branch in branches]
        for one, other in itertools.combinations(validators, 2):
            assert not any(one.is_valid(value) and other.is_valid(value) for value in _VALUES)
