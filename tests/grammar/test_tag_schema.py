"""Schemas for xgrammar allow every valid value, and a keyword that they do not enforce is listed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.grammar import Grammar, JsonSchema
from dovetail.grammar.schemas.check import Checker
from dovetail.grammar.tag_schema import spell
from tests.examples import examples
from tests.grammar import test_lark_schema
from tests.grammar.test_lark_schema import without
from tests.grammar.walks import BYTES, END, blindly

xgrammar = pytest.importorskip("xgrammar", reason="needs pip install --no-deps xgrammar apache-tvm-ffi")

_INTEGER = {"type": "integer"}
_STRING = {"type": "string"}
_OBJECT = {"type": "object"}
_A = {"properties": {"a": _INTEGER}}
_ENDLESS = _OBJECT | {"properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}
_ENDLESS_ROOT = _OBJECT | {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}
_VOCABULARY = xgrammar.TokenizerInfo([BYTES.token_bytes(i) for i in range(BYTES.vocab_size)], stop_token_ids=[*END])
_COMPILER = xgrammar.GrammarCompiler(_VOCABULARY, max_threads=1)

#: A schema, values of it, other values, and what is not enforced.
SCHEMAS: list[tuple[dict[str, Any], list[Any], list[Any], list[str]]] = [
    # Schemas that xgrammar refuses as they are.
    ({"$id": "http://a/b", "$ref": "#/$defs/x", "$defs": {"x": _INTEGER}}, [1], ["x"], []),
    ({"$ref": "#x", "$defs": {"x": {"$anchor": "x", "type": "integer"}}}, [1], ["x"], []),
    (_OBJECT | {"properties": {"a": _INTEGER, "b": False}}, [{"a": 1}, {"c": 1}], [{"b": 1}], ["#/properties"]),
    (
        _OBJECT | {"properties": {"a": _INTEGER, "b": False}, "additionalProperties": False},
        [{}, {"a": 1}],
        [{"b": 1}],
        [],
    ),
    (_INTEGER | {"minimum": 0.5, "maximum": 2.5}, [1, 2], [0, 3], []),
    (_INTEGER | {"exclusiveMinimum": 0.5, "exclusiveMaximum": 2.5}, [1, 2], [0, 3], []),
    (_INTEGER | {"exclusiveMinimum": -0.5, "exclusiveMaximum": 2.0}, [0, 1], [-1, 2], []),
    ({"type": ["integer", "null"], "minimum": 0.2, "maximum": 0.8}, [None], [0, 1], []),
    ({"type": ["integer", "number"], "minimum": 0.5}, [0.5, 1], [0.25], []),
    ({"type": ["number", "null"], "minimum": 2, "exclusiveMaximum": 2}, [None], [2], []),
    (_INTEGER | {"minimum": 1e30}, [], [2], ["#/minimum"]),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 1}, [1], [0], []),
    ({"type": ["array", "null"], "minItems": 2, "maxItems": 1}, [None], [[], [1]], []),
    ({"type": "array", "minItems": 2.0, "maxItems": 2.0}, [[1, 2]], [[1], [1, 2, 3]], []),
    ({"type": "array", "prefixItems": [_INTEGER, False]}, [[], [1]], [[1, 2]], []),
    ({"type": "array", "prefixItems": [_INTEGER, _INTEGER], "maxItems": 1}, [[], [1]], [[1, 2], ["x"]], []),
    ({"type": "array", "prefixItems": [_INTEGER], "unevaluatedItems": False}, [[], [1]], [[1, 2]], []),
    ({"type": ["object", "null"], "required": ["a"], "maxProperties": 0}, [None], [{}, {"a": 1}], []),
    (
        {"type": ["string", "null"], "minLength": 3, "maxLength": 2},
        [None],
        ["ab", "abc"],
        ["#/minLength", "#/maxLength"],
    ),
    ({"anyOf": [False, _INTEGER]}, [1], ["x"], []),
    ({"enum": ["a", 1], "type": "string"}, ["a"], [1], []),
    (_STRING | {"pattern": r"^\p{L}$"}, ["a"], ["3"], ["#/pattern"]),
    (_STRING | {"pattern": r"^a\b"}, ["a"], ["ab"], ["#/pattern"]),
    (_STRING | {"pattern": "^[a-z]{0,101}$"}, ["a" * 101], ["A"], ["#/pattern"]),
    # Schemas of which it allows too few values.
    (_STRING | {"pattern": "^a.b$"}, ["axb", 'a"b', "a\\b"], ["b"], ["#/pattern"]),
    (_STRING | {"pattern": "a"}, ["a", 'x"a', "\na"], ["b"], ["#/pattern"]),
    (_STRING | {"pattern": r"^(?:[a-z]|\d){2,3}$"}, ["a1", "abc"], ["a", "A1", "a1bc"], []),
    (_STRING | {"pattern": r"^\w+@[\w-]+(\.[a-z]{2,3})+?$"}, ["a@b.cd"], ["a@b", "@b.cd"], []),
    (_STRING | {"pattern": "^$"}, [""], ["a"], []),
    (_STRING | {"format": "date"}, ["2024-02-29"], ["2023-02-29"], []),
    (_STRING | {"format": "ipv4"}, ["1.2.3.4"], ["01.2.3.4"], []),
    (_STRING | {"format": "hostname"}, ["a.example", "A.example"], ["-a"], ["#/format"]),
    (_STRING | {"format": "email"}, ["a.b+c@d.example"], ["a", "@b.c"], ["#/format"]),
    (_STRING | {"format": "json-pointer"}, ["/a~1b", '/"'], ["a"], ["#/format"]),
    (_STRING | {"format": "date", "pattern": "^20"}, ["2024-02-29"], ["1924-02-29", "20"], ["#/pattern"]),
    ({"enum": [{"a": 1, "b": [1, {}, []]}, "x"]}, [{"a": 1, "b": [1, {}, []]}, "x"], [{"a": 1}, {}, "y"], []),
    ({"const": [[[[[1, 2]]]]]}, [], [[]], []),
    ({"enum": [3.14, -0.1, 2, 1e-9]}, [3.14, -0.1, 2], [3.15, 3.141, 0.1, 1], []),
    ({"enum": [[i] for i in range(1_001)]}, [], [[-1], 3], []),
    ({"type": "number", "minimum": 1e-9}, [0.001], [0], ["#/minimum"]),
    ({"type": "number", "maximum": 1e30}, [1e29, -1], [1e31], ["#/maximum"]),
    (
        _OBJECT | {"patternProperties": {"^x_": _INTEGER}},
        [{"x_a": 1}, {"b": "y"}],
        [{"x_a": "y"}],
        ["#/patternProperties"],
    ),
    (
        _OBJECT | {"patternProperties": {"^x_[a-z]+$": _INTEGER}, "additionalProperties": False},
        [{}, {"x_a": 1, "x_b": 2}],
        [{"x_a": "y"}, {"b": 1}],
        [],
    ),
    (
        _OBJECT | {"patternProperties": {"^x_[a-z]+$": False}, "additionalProperties": False},
        [{}],
        [{"x_a": 1}],
        [],
    ),
    (
        _OBJECT | _A | {"patternProperties": {"^x": _INTEGER, "^y": {"type": "null"}}, "additionalProperties": False},
        [{"a": 1, "x": 1, "y": None}],
        [{"x": "y"}, {"b": "x"}],
        ["#/patternProperties", "#/additionalProperties"],
    ),
    (
        _OBJECT | _A | {"patternProperties": {"^x": _INTEGER}, "additionalProperties": _STRING},
        [{"a": 1, "x": 1}, {"b": "y"}],
        [{"a": "x"}, {"b": None}],
        ["#/patternProperties", "#/additionalProperties"],
    ),
    (_OBJECT | {"propertyNames": {"enum": ["a", 1]}}, [{}, {"a": 1}], [{"b": 1}], []),
    (_OBJECT | {"propertyNames": {"maxLength": 1}}, [{}, {"a": 1}], [{"bb": 1}], ["#/propertyNames/maxLength"]),
    (
        _OBJECT | {"propertyNames": {"pattern": "^[a-c]*$"}, "additionalProperties": _INTEGER},
        [{"ab": 1}],
        [{"d": 1}],
        [],
    ),
    (_OBJECT | {"propertyNames": False}, [{}], [{"a": 1}], ["#/propertyNames"]),
    # Other keywords.
    (_INTEGER | {"multipleOf": 5}, [0, 5, -10], [7], []),
    (_INTEGER | {"multipleOf": 5, "minimum": 1, "maximum": 12}, [5, 10], [7, 15], []),
    (_INTEGER | {"multipleOf": 5, "minimum": 1}, [5], [7], ["#/multipleOf"]),
    ({"type": ["integer", "null"], "multipleOf": 5, "minimum": 1, "maximum": 4}, [None], [3], []),
    ({"type": "number", "multipleOf": 0.5}, [1.5], [0.7], ["#/multipleOf"]),
    (_OBJECT | {"unevaluatedProperties": _INTEGER} | _A, [{"a": 1, "b": 2}], [{"b": "x"}], []),
    (
        _OBJECT | _A | {"allOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1, "b": 1}],
        [{"a": "x"}],
        ["#/allOf"],
    ),
    ({"oneOf": [_INTEGER, {"minimum": 3}]}, [1, "x"], [4], ["#/oneOf"]),
    # What could never come to an end cannot be begun.
    (
        _OBJECT | {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": _ENDLESS}},
        [{}],
        [{"a": 1}],
        ["#/properties", "#/$defs/a/properties"],
    ),
]


def compiled(schema: Any) -> Any:
    tag = Grammar(JsonSchema(schema, "x")).structural_tag(BYTES.control)
    return _COMPILER.compile_structural_tag(json.dumps(tag))


def allows(made: Any, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(made)
    return all(matcher.accept_token(token) for token in (*BYTES.encode(text), *END))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid", "listed"),
    [*SCHEMAS, *((*one, None) for *one, _ in test_lark_schema.SCHEMAS)],
    ids=lambda it: json.dumps(it)[:60],
)
def test_valid_values_are_allowed_and_unenforced_keywords_listed(
    schema: dict[str, Any], valid: list[Any], invalid: list[Any], listed: list[str] | None
) -> None:
    checker = Checker(schema, "here")
    assert [value for value in valid if checker.fault(json.dumps(value))] == []
    assert [value for value in invalid if not checker.fault(json.dumps(value))] == []
    made = compiled(schema)
    assert [value for value in valid if not allows(made, json.dumps(value, ensure_ascii=False))] == []
    accepted = [value for value in invalid if allows(made, json.dumps(value, ensure_ascii=False))]
    if listed is not None:
        assert spell(schema).unenforced == tuple(listed)
    assert bool(accepted) <= bool(spell(schema).unenforced)


@given(test_lark_schema.schemas, st.lists(test_lark_schema._values, min_size=1, max_size=8))
@examples(100)
def test_valid_values_are_allowed_by_any_schema(schema: dict[str, Any], values: list[Any]) -> None:
    """With one key at most: a grammar has them in one order."""
    valid = [value for value in values if Checker(schema, "here").fault(json.dumps(value)) is None]
    if valid:
        made = compiled(schema)
        assert [value for value in valid if not allows(made, json.dumps(value))] == []


@given(test_lark_schema.schemas, st.randoms(use_true_random=False))
@examples(60)
def test_keywords_that_are_not_listed_are_enforced_in_any_schema(schema: dict[str, Any], rng: random.Random) -> None:
    if spell(schema).schema is False:
        return
    matcher = xgrammar.GrammarMatcher(compiled(schema))
    row = xgrammar.allocate_token_bitmask(1, BYTES.vocab_size)

    def allowed() -> list[int]:
        matcher.fill_next_token_bitmask(row)
        return [token for token in range(BYTES.vocab_size) if row[0, token // 32].item() >> token % 32 & 1]

    try:
        text = blindly(allowed, matcher.accept_token, rng)
    except UnicodeDecodeError:  # xgrammar allows half a surrogate pair
        return
    if text is not None:
        remaining = without(schema, spell(schema).unenforced)
        assert Checker(remaining, "here").fault(text) is None, text


@pytest.mark.parametrize(
    "schema",
    [{"enum": []}, {"anyOf": [False]}, _OBJECT | {"required": ["a"], "additionalProperties": False}, _ENDLESS_ROOT],
)
def test_a_schema_that_no_value_fits_is_false(schema: Any) -> None:
    assert spell(schema).schema is False


def test_white_space_has_a_bound() -> None:
    made = compiled(_OBJECT | _A)
    for space in ("", " ", "\n" + 32 * " "):
        assert allows(made, f'{{{space}"a"{space}:{space}1{space},{space}"b"{space}:{space}[{space}]{space}}}')
    for text in ('{{{}"a": 1}}', '{{"a":{}1}}', '{{"a": 1{}}}', "{{{}}}", '{{"b": [{}]}}'):
        assert not allows(made, text.format(34 * " "))


@pytest.mark.parametrize("wrong", [{"properties": 3}, {"type": 3}, {"enum": 3}, {"minimum": "x"}], ids=str)
def test_invalid_schemas_are_refused_when_they_are_compiled(wrong: Any) -> None:
    assert spell(wrong).schema == wrong
