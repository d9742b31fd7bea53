"""Numbers have a bound on their digits, and are what JSON Schema means; other JSON is as the library writes it."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable
from typing import Any

import llguidance
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import SchemaRefused
from dovetail.formats.declared import value_syntax
from dovetail.grammar import Grammar, JsonSchema, Regex, RuleRef, Rules, numbers
from dovetail.grammar.lark_schema import spell
from dovetail.grammar.matcher import vocabulary
from tests.grammar.walks import BYTES, END, allows, blindly, matcher

_INTEGER, _NUMBER = {"type": "integer"}, {"type": "number"}
MOST = numbers.MOST_DIGITS


def digits_after(schema: Any, text: str, most: int = 200) -> int:
    """How many more digits the grammar of a schema allows after `text`."""
    constraint = matcher(schema)
    assert all(constraint.advance(token) for token in BYTES.encode(text)), text
    return next((count for count in range(most) if not constraint.advance(BYTES.encode("3")[0])), most)


@pytest.mark.parametrize(
    ("schema", "text", "before"),
    [
        (_INTEGER, "1", 1),
        (_INTEGER, "-1", 1),
        (_NUMBER, "1", 1),
        (_NUMBER, "0.", 0),
        (_NUMBER, "1e", MOST - 3),
        ({"type": ["integer", "null"]}, "1", 1),
        ({"anyOf": [_INTEGER, {"type": "string"}]}, "1", 1),
        ({"type": "integer", "minimum": 0}, "1", 1),
        ({"type": "integer", "minimum": 17}, "2", 1),
        ({"type": "integer", "maximum": 5}, "-1", 1),
        ({"type": "number", "minimum": 0}, "0.", 0),
        ({"type": "number", "minimum": 0, "maximum": 1}, "0.", 0),
        ({"type": "number", "exclusiveMinimum": -2, "maximum": 7}, "-1.", 0),
        ({}, "1", 1),
        ({}, '{"a": [1, 0.', 0),
        ({"type": "object", "properties": {"a": _INTEGER}}, '{"a": 1', 1),
        ({"type": "object", "properties": {"a": _INTEGER}}, '{"b": 1', 1),
        ({"type": "object", "additionalProperties": _NUMBER}, '{"b": 0.', 0),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": _INTEGER}}, "[1", 1),
        ({"items": _NUMBER, "minItems": 2, "maxItems": 2}, "[1, 1", 1),
    ],
)
def test_digits_have_a_bound(schema: Any, text: str, before: int) -> None:
    assert digits_after(schema, text) == MOST - before


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": 10**45}, 10**45 + 1),
        ({"type": "object", "properties": {"a": {"type": "integer", "exclusiveMinimum": 10**60}}}, {"a": 10**60 + 1}),
        ({"const": 10**50}, 10**50),
        ({"enum": [1, 10**50]}, 10**50),
        ({"type": "integer", "minimum": 10**14}, 10**14),
        ({"type": "number", "minimum": 10**14}, 10**14 + 0.5),
    ],
)
def test_a_bound_of_the_schema_may_need_more_digits(schema: Any, value: Any) -> None:
    assert allows(schema, json.dumps(value))


@given(st.integers(-(2**127), 2**128 - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_that_programs_write_are_possible(whole: int, number: float) -> None:
    assert re.fullmatch(numbers.INTEGER, str(whole))
    assert re.fullmatch(numbers.NUMBER, json.dumps(number))
    if 1e-6 <= abs(number) < 1e21:  # JavaScript writes these without an exponent
        assert re.fullmatch(numbers.NUMBER, f"{number:.{22}f}".rstrip("0").rstrip("."))


def test_the_same_numbers_in_other_syntaxes() -> None:
    """A number alone, in a tag and in its rules; Python's arguments and bare keys."""
    for schema, regex in ((_INTEGER, numbers.INTEGER), (_NUMBER, numbers.NUMBER)):
        assert {"type": "regex", "pattern": regex} in Grammar(JsonSchema(schema, "x")).structural_tag(BYTES.control)[
            "format"
        ]["elements"]
        rules = Rules(RuleRef("a"), {"a": JsonSchema(schema, "x")})
        assert f"{{0,{MOST - 1}}}" in json.dumps(Grammar(rules).structural_tag(BYTES.control))
    assert {value_syntax.INTEGER, value_syntax.NUMBER} == {Regex(numbers.INTEGER), Regex(numbers.NUMBER)}
    dropped = Grammar(JsonSchema({"type": "integer", "minimum": 10**45}, "x")).structural_tag(BYTES.control)
    assert "json_schema" in json.dumps(dropped)


_BOUND = st.integers(-12, 12)
_BOUNDS = st.fixed_dictionaries(
    {},
    optional={"minimum": _BOUND, "exclusiveMinimum": _BOUND, "maximum": _BOUND, "exclusiveMaximum": _BOUND},
)
_DECIMALS = st.builds(
    lambda whole, fraction: f"{whole}{fraction}",
    st.integers(-120, 120).map(str) | st.just("-0"),
    st.sampled_from(("", ".0", ".00", ".5", ".05", ".50")),
)


@given(_BOUNDS, _DECIMALS, st.booleans())
def test_bounds_are_those_of_the_schema(bounds: dict[str, int], text: str, whole: bool) -> None:
    value = float(text)
    valid = (
        bounds.get("minimum", value) <= value <= bounds.get("maximum", value)
        and ("exclusiveMinimum" not in bounds or bounds["exclusiveMinimum"] < value)
        and ("exclusiveMaximum" not in bounds or value < bounds["exclusiveMaximum"])
    )
    zero = text.startswith("-") and value == 0 and bounds  # within bounds the library has no -0 either
    valid = valid and not zero and not (whole and "." in text)
    schema = {"type": "integer" if whole else "number", **bounds}
    with contextlib.suppress(SchemaRefused):  # no number is within the bounds
        assert allows(schema, text) == valid


# -- the rest of JSON -------------------------------------------------------------------------------------------------

LIBRARY = vocabulary(BYTES, END).library
#: Parts that are written as rules.
SCHEMAS: list[Any] = [
    {"type": "string"},
    {"type": "boolean"},
    {"type": ["null", "string", "array"], "items": {"type": "boolean"}},
    {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"type": "null"}, "maxItems": 1},
    {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2},
    {"type": "array", "items": False},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["b"]},
    {"type": "object", "properties": {"a": {"type": "null"}, "é/\\": False}, "additionalProperties": {"type": "null"}},
    {
        "type": "object",
        "properties": {name: {"enum": [1]} for name in "abc"},
        "required": ["a"],
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "string", "maxLength": 2}},
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    },
    {"anyOf": [{"type": "string", "pattern": "^x+$"}, {"type": "string", "format": "date"}, {"type": "null"}]},
]


_DIGITS = frozenset(BYTES.encode("0123456789"))


def _follow(text: str) -> tuple[Callable[[], list[int]], Callable[[int], bool], Callable[[], bool]]:
    follows = llguidance.LLMatcher(LIBRARY, llguidance.LLMatcher.grammar_from_lark(text))
    assert not follows.is_error(), follows.get_error()

    def allowed() -> list[int]:
        mask = follows.compute_bitmask()
        return [token for token in range(BYTES.vocab_size) if mask[token // 8] >> (token % 8) & 1]

    return allowed, lambda token: follows.try_consume_tokens([token]) == 1, follows.is_accepting


def _both(schema: Any) -> tuple[str, str]:
    """The grammar as rules, and as the library writes it alone."""
    return Grammar(JsonSchema(schema, "x")).lark(), f"start: %json {json.dumps(spell(schema).schema)}\n"


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_rules_allow_what_the_library_allows(schema: Any) -> None:
    """At each byte of random answers both allow the same bytes, but for the digits of long numbers."""
    grammars, rng = _both(schema), random.Random(0)
    for _ in range(30):
        (allowed, advance, _), (same, follow, _) = map(_follow, grammars)

        def both(allowed: Any = allowed, same: Any = same) -> list[int]:
            ours = allowed()
            assert set(ours) ^ set(same()) <= _DIGITS
            return ours

        blindly(both, lambda token, a=advance, b=follow: a(token) and b(token), rng, 60)  # type: ignore[misc]


def test_strings_are_spelled_as_the_library_spells_them() -> None:
    rules, library = map(_follow, _both({"type": "string"}))
    for prefix in ('"', '"a\\', '"\\u', '"\\u0', '"\\u00', '"\\u000', '"\\u001', '"\\u007', '"\\u01', '"é', '"\\n'):
        (allowed, advance, _), (same, follow, _) = map(_follow, _both({"type": "string"}))
        for token in BYTES.encode(prefix):
            assert advance(token) == follow(token)
        assert allowed() == same(), prefix
    assert rules[0]() == library[0]()


@pytest.mark.parametrize(
    "text", ["{ }", "{  \n  }", '{"a" : 1 , "b":2}', '{\n  "a": 1\n}', ' {"a": 1}', '{"a": 1} ', '{     "a": 1}']
)
def test_white_space_is_where_the_library_has_it(text: str) -> None:
    schema = {"type": "object", "properties": {"a": _INTEGER}}
    (_, advance, ends), (_, follow, stops) = map(_follow, _both(schema))
    ours, theirs = (
        all(step(token) for token in BYTES.encode(text)) and at_end()
        for step, at_end in ((advance, ends), (follow, stops))
    )
    assert ours == theirs


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"\ud800": _INTEGER}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 1}}, "required": ["a"]},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "object", "required": 3},
    ],
)
def test_what_nothing_fits_is_refused_by_the_library(schema: Any) -> None:
    with pytest.raises(SchemaRefused, match="here cannot be enforced: #"):
        matcher(schema)


@pytest.mark.parametrize(
    ("branches", "text"),
    [
        ([{"type": "integer"}, {"type": "number", "maximum": 100}], "-7.5"),
        ([{"const": -1}, {"type": "number", "minimum": -10, "maximum": 0}], "-1.5"),
        ([{"enum": [-1, -2]}, {"type": "integer", "maximum": 0}], "-15"),
        ([{"type": "number", "minimum": 0}, {"type": "number", "minimum": 0.5}], "0.25"),
        ([{"type": "number", "multipleOf": 0.5}, {"type": "number", "minimum": 0}], "2.9"),
        ([{"$ref": "#/$defs/n"}, {"type": "integer", "maximum": 0}], "2.5"),
    ],
)
def test_numbers_beside_each_other_do_not_end_one_another(branches: list[Any], text: str) -> None:
    """llguidance's lexer takes the longest text that any of them has at its place."""
    schema = {"anyOf": branches, "$defs": {"n": {"type": "number", "minimum": 0}}}
    assert allows(schema, text)


def test_a_bound_that_is_not_exact_is_the_librarys() -> None:
    assert not allows({"type": "number", "exclusiveMinimum": 2**53}, f"{2**53}.0")


@pytest.mark.timeout(60)
def test_references_are_looked_at_once() -> None:
    """A hostile schema: 60 references to each of six levels are 60 ** 6 paths."""
    levels = {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 60} for i in range(6)}
    schema = {"anyOf": [{"$ref": "#/$defs/n0"}, {"type": "null"}], "$defs": {**levels, "n6": {"type": "string"}}}
    assert allows(schema, '"a"') and not allows(schema, "1")
