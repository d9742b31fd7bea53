"""Schemas for llguidance allow every valid value, and a keyword that they do not enforce is listed."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import SchemaRefused
from dovetail.grammar import Grammar, JsonSchema
from dovetail.grammar.lark_schema import spell
from dovetail.grammar.patterns import other_texts
from dovetail.grammar.schemas.check import Checker
from tests.examples import examples
from tests.grammar.walks import allows, walk

_INTEGER = {"type": "integer"}
_OBJECT = {"type": "object"}
_A = {"properties": {"a": _INTEGER}}
_OLD = {"$schema": "http://json-schema.org/draft-07/schema#"}
_KIND = {"type": "object", "required": ["k"]}
_TWO_KEYS = {"properties": {"a": {}, "b": {}}, "type": "object"}
_TREE = {"type": "object", "properties": {"v": _INTEGER, "next": {"$ref": "#"}}, "required": ["v"]}

#: A schema, valid values, invalid values, and the keywords that are not enforced. Every keyword of 2020-12, alone and
#: beside others.
SCHEMAS: list[tuple[dict[str, Any], list[Any], list[Any], list[str]]] = [
    ({}, [1, "x", [], {}, None], [], []),
    (_OBJECT | _A, [{}, {"a": 1}, {"b": []}], [{"a": "x"}, 1], []),
    (_OBJECT | _A | {"required": ["a", "b"]}, [{"a": 1, "b": 2}], [{"a": 1}, {}], []),
    (_OBJECT | _A | {"additionalProperties": False}, [{}, {"a": 1}], [{"b": 1}], []),
    (_OBJECT | {"additionalProperties": _INTEGER}, [{}, {"b": 1}], [{"b": "x"}], []),
    (_OBJECT | _A | {"additionalProperties": {"type": "string"}}, [{"a": 1, "b": "x"}], [{"a": "x"}, {"b": 1}], []),
    (
        _OBJECT | {"properties": {"ab": {}, "é-": {}, "": {}, "a": {}}, "additionalProperties": _INTEGER},
        [{"ab": [], "é-": "x", "": {}, "a": None, "abc": 1, "é": 2, "漢": 3, "b\n": 4}],
        [{"abc": "x"}, {"é": "x"}, {"b": []}],
        [],
    ),
    (
        _OBJECT | {"properties": {"🙂": _INTEGER}, "additionalProperties": {"type": "string"}},
        [{"🙂": 1, "b": "x"}],
        [{"b": 1}],
        ["#/properties"],
    ),
    (_OBJECT | {"properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}], []),
    (_OBJECT | {"properties": {"a\n": _INTEGER}}, [{"a\n": 1}], [{"a\n": "x"}], ["#/properties"]),
    (_OBJECT | {"patternProperties": {"^a": _INTEGER}}, [{"ab": 1}], [{"ab": "x"}], ["#/patternProperties"]),
    (_OBJECT | {"patternProperties": {"^a": _INTEGER}, "additionalProperties": False}, [{"a": 1}], [{"b": 1}], []),
    (
        _OBJECT | {"patternProperties": {"^a": _INTEGER, "b$": {"minimum": 3}}, "additionalProperties": False},
        [{"ac": 1, "cb": 5}],
        [{"ab": 2}, {"c": 1}],
        ["#/patternProperties", "#/additionalProperties"],
    ),
    (_OBJECT | {"propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}], ["#/propertyNames"]),
    (_OBJECT | {"propertyNames": True}, [{"ab": 1}], [], []),
    (_OBJECT | {"minProperties": 1}, [{"a": 1}], [{}], []),
    (_OBJECT | {"minProperties": 2}, [{"a": 1, "b": 2}], [{}], ["#/minProperties"]),
    (_OBJECT | {"maxProperties": 1}, [{"a": 1}, {}], [{"a": 1, "b": 2}], []),
    (_TWO_KEYS | {"minProperties": 1}, [{"a": 1}], [{}], ["#/minProperties"]),
    (_TWO_KEYS | {"required": ["a"], "minProperties": 1}, [{"a": 1}], [{}], []),
    (_TWO_KEYS | {"maxProperties": 1}, [{"a": 1}, {}], [{"a": 1, "b": 2}], ["#/maxProperties"]),
    (_OBJECT | {"dependentRequired": {"a": ["b"]}}, [{"b": 1}], [{"a": 1}], ["#/dependentRequired"]),
    (_OBJECT | {"dependentSchemas": {"a": {"required": ["b"]}}}, [{}], [{"a": 1}], ["#/dependentSchemas"]),
    (_OLD | _OBJECT | {"dependencies": {"a": ["b"]}}, [{"b": 1}], [{"a": 1}], ["#/dependencies"]),
    (_OBJECT | _A | {"unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}], ["#/unevaluatedProperties"]),
    ({"type": "array", "items": _INTEGER}, [[], [1]], [["x"]], []),
    ({"type": "array", "prefixItems": [_INTEGER], "items": False}, [[], [1]], [[1, 2], ["x"]], []),
    ({"items": _INTEGER, "allOf": [{"minItems": 1}], "prefixItems": [{"type": "string"}]}, [["x", 1]], [[1], []], []),
    (_OLD | {"type": "array", "items": [_INTEGER], "additionalItems": False}, [[1]], [["x"], [1, 2]], []),
    (_OLD | {"items": [_INTEGER], "allOf": [{}], "additionalItems": False}, [[1]], [["x"], [1, 2]], []),
    (_OLD | {"type": "array", "items": _INTEGER, "prefixItems": [{"type": "string"}]}, [[1]], [["x"]], []),
    ({"type": "array", "unevaluatedItems": False}, [[]], [[1]], ["#/unevaluatedItems"]),
    ({"type": "array", "minItems": 1, "maxItems": 2.0}, [[1], [1, 2]], [[], [1, 2, 3]], []),
    ({"type": "array", "uniqueItems": True}, [[1, 2]], [[1, 1]], ["#/uniqueItems"]),
    ({"type": "array", "uniqueItems": False}, [[1, 1]], [], []),
    ({"type": "string", "uniqueItems": True}, ["x"], [], []),
    ({"type": "array", "contains": _INTEGER}, [["x", 1]], [["x"]], ["#/contains"]),
    (
        {"type": "array", "contains": _INTEGER, "minContains": 2, "maxContains": 3},
        [[1, 2]],
        [[1]],
        ["#/contains", "#/minContains", "#/maxContains"],
    ),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é漢🙂", '"\n'], ["a", "abcd"], []),
    ({"type": "string", "minLength": 10**12}, [], ["x"], ["#/minLength"]),
    ({"type": "string", "pattern": "b+$"}, ["abb"], ["ba"], []),
    ({"type": "string", "pattern": "(?=a)b"}, [], ["b"], ["#/pattern"]),
    ({"type": "string", "pattern": r"\bx"}, ["a x"], ["ax"], ["#/pattern"]),
    ({"type": "string", "pattern": "^a+$", "minLength": 2}, ["aa"], ["a", "b"], []),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2000-02-29"], ["2023-02-29", "1900-02-29"], []),
    ({"type": "string", "format": "time"}, ["23:59:59Z", "01:02:03.5+01:00"], ["12:00:60Z", "x"], []),
    ({"type": "string", "format": "date-time"}, ["2024-02-29T12:00:00Z"], ["2023-02-29T12:00:00Z"], []),
    ({"type": "string", "format": "date", "pattern": "^2"}, ["2024-02-29"], ["1900-02-29", "2023-02-29"], ["#/format"]),
    ({"type": "string", "format": "email"}, ["a@b.c"], ["a" * 65 + "@b.c", "x"], []),
    ({"type": "string", "format": "email", "pattern": "^[ab]*$"}, [], ["a", "a@b.c"], ["#/format"]),
    ({"type": "string", "format": "hostname"}, ["a.b"], [".".join(["a" * 60] * 5), "-a", "ab--c"], ["#/format"]),
    ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["x"], []),
    ({"type": "string", "format": "json-pointer"}, ["/a"], ["a"], ["#/format"]),
    ({"type": "string", "format": "int32"}, ["x"], [], ["#/format"]),
    ({"type": "integer", "format": "int32"}, [1], [], []),
    ({"type": "integer", "minimum": 2, "exclusiveMaximum": 5}, [2, 4], [1, 5], []),
    ({"type": "integer", "maximum": 2**60}, [1], [2**61], ["#/maximum"]),
    ({"type": "number", "minimum": 0.5, "maximum": 1.5}, [0.5, 1, 1.5], [0.4, 2], []),
    ({"type": "number", "multipleOf": 0.1}, [0.3, 19.9], [0.35], []),
    (
        {"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": True, "allOf": [{}], "minimum": 3},
        [4, "x"],
        [3],
        [],
    ),
    (
        {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3, "exclusiveMaximum": False},
        [3],
        [4],
        [],
    ),
    ({"enum": ["a", 1, None, {"a": [1]}]}, ["a", 1, None, {"a": [1]}], ["b", 2], []),
    ({"enum": [1, 2**60 + 1]}, [1, 2**60 + 1], [2], ["#/enum"]),
    ({"const": -(2**63)}, [-(2**63)], [1], ["#/const"]),
    ({"const": {"a": 1.5}}, [{"a": 1.5}], [{"a": 1}], []),
    ({"type": ["string", "integer"], "minimum": 3, "minLength": 1}, ["a", 3], [2, None, ""], []),
    ({"anyOf": [{"type": "string"}, _INTEGER], "minimum": 2}, ["a", 2], [1, None], []),
    ({"oneOf": [{"type": "string"}, _INTEGER]}, ["a", 1], [None], []),
    ({"oneOf": [{"type": "number"}, _INTEGER]}, [1.5], [1], ["#/oneOf"]),
    ({"oneOf": [{"$ref": "#/$defs/s"}, _INTEGER], "$defs": {"s": {"type": "string"}}}, ["a", 1], [None], []),
    (
        {"oneOf": [_KIND | {"properties": {"k": {"const": "a"}}}, _KIND | {"properties": {"k": {"enum": ["b"]}}}]},
        [{"k": "a"}, {"k": "b"}],
        [{"k": "c"}],
        [],
    ),
    (
        {
            "oneOf": [
                _OBJECT | _A | {"required": ["a"]},
                _OBJECT | {"properties": {"b": {}}, "additionalProperties": False},
            ]
        },
        [{"a": 1}, {"b": 1}],
        [1],
        [],
    ),
    ({"oneOf": [{"type": "number"}, _INTEGER], "anyOf": [{"minimum": 3}, {"maximum": 1}]}, [3.5], [2, 5], ["#/oneOf"]),
    ({"allOf": [_INTEGER, {"minimum": 3}]}, [3], [1, "x"], []),
    (_OBJECT | _A | {"allOf": [{"required": ["a"]}]}, [{"a": 1}], [{}, {"a": "x"}], []),
    (
        {"type": "object", "allOf": [_A, {"properties": {"b": {}}, "additionalProperties": False}]},
        [{"b": 1}],
        [{"c": 1}],
        ["#/allOf/0/properties"],
    ),
    (
        _OBJECT | {"allOf": [{"patternProperties": {"^a": _INTEGER}}, {"additionalProperties": False}]},
        [{}],
        [{"a": "x"}, {"b": 1}, {"a": 1}],
        ["#/allOf/0/patternProperties", "#/allOf/1/additionalProperties"],
    ),
    (
        {"allOf": [{"patternProperties": {"^a": _INTEGER}}, {"patternProperties": {"^ab": {"minimum": 2}}}]},
        [{"ab": 3}],
        [{"ab": 1}],
        ["#/allOf/0/patternProperties", "#/allOf/1/patternProperties", "#/allOf"],
    ),
    ({"not": {"type": "string"}}, [1], ["x"], ["#/not"]),
    ({"not": False}, [1, "x"], [], []),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, [1, "xx"], ["x"], ["#/if"]),
    ({"if": {"type": "string"}}, [1, "x"], [], []),
    ({"$ref": "#/$defs/x", "$defs": {"x": _INTEGER}, "minimum": 3}, [3], [1, "x"], []),
    ({"$ref": "#x", "$defs": {"x": {"$anchor": "x", "type": "integer"}}}, [1], ["x"], []),
    ({"$ref": "x", "$id": "https://e.com/s", "$defs": {"y": {"$id": "x", "type": "integer"}}}, [1], ["x"], []),
    ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": _INTEGER}}, [1], ["x"], []),
    ({"$ref": "#/components/x", "components": {"x": {"type": "string", "deprecated": True}}}, ["x"], [1], []),
    ({"$dynamicRef": "#x", "$defs": {"x": {"$dynamicAnchor": "x", "type": "integer"}}}, [1], ["x"], ["#/$dynamicRef"]),
    (_TREE, [{"v": 1, "next": {"v": 2}}], [{"v": 1, "next": {}}], []),
    (
        {"properties": {"a": {"$ref": "#", "minProperties": 1}}},
        [{}, {"a": {"b": 1}}],
        [{"a": {"a": {}}}],
        ["#/properties/a/$ref"],
    ),
    (
        _OBJECT
        | {
            "properties": {"a": {"$ref": "#/$defs/x"}},
            "$defs": {"x": _OBJECT | {"required": ["n"], "properties": {"n": {"$ref": "#/$defs/x"}}}},
        },
        [{}, {"b": 1}],
        [{"a": {}}],
        [],
    ),
    (
        {"title": "x", "default": 10**30, "examples": [1], "x-guidance": {"lenient": True}, "type": "null"},
        [None],
        [1],
        [],
    ),
    ({"contentEncoding": "base64", "contentSchema": {}, "type": "string", "deprecated": True}, ["x"], [1], []),
]


@pytest.mark.parametrize(("schema", "valid", "invalid", "listed"), SCHEMAS, ids=lambda it: json.dumps(it)[:60])
def test_valid_values_are_allowed_and_unenforced_keywords_listed(
    schema: dict[str, Any], valid: list[Any], invalid: list[Any], listed: list[str]
) -> None:
    checker = Checker(schema, "here")
    assert [value for value in valid if checker.fault(json.dumps(value))] == []
    assert [value for value in invalid if not checker.fault(json.dumps(value))] == []
    assert spell(schema).unenforced == tuple(listed)
    assert [value for value in valid if not allows(schema, json.dumps(value, ensure_ascii=False))] == []
    accepted = [value for value in invalid if allows(schema, json.dumps(value, ensure_ascii=False))]
    assert bool(accepted) <= bool(listed)
    # A listed keyword is violated by some value here, except for keys that come twice or in escapes.
    assert accepted or not invalid or all(pointer.endswith("roperties") for pointer in listed)


def without(schema: Any, pointers: tuple[str, ...]) -> Any:
    """A copy of a schema without the keywords at the pointers."""
    schema = json.loads(json.dumps(schema))  # in which no part is shared
    loosened: dict[int, Any] = {}
    for pointer in sorted(pointers, key=lambda pointer: -pointer.count("/")):
        *path, keyword = (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
        part = schema
        for step in path:
            if step == "oneOf" and isinstance(part, dict):
                loosened[id(part)] = part
            part = part[int(step) if isinstance(part, list) else step]
        if keyword in ("properties", "patternProperties"):  # the keys are still declared
            part[keyword] = dict.fromkeys(part[keyword], True)
        else:
            del part[keyword]
    for part in loosened.values():  # its branches may no longer exclude each other
        if "oneOf" in part:
            part["allOf"] = [*part.get("allOf", ()), {"anyOf": part.pop("oneOf")}]
    return schema


@given(st.sampled_from([schema for schema, *_ in SCHEMAS]), st.randoms(use_true_random=False))
@examples(150)
def test_keywords_that_are_not_listed_are_enforced(schema: dict[str, Any], rng: random.Random) -> None:
    """A random walk is valid for the schema without the listed keywords, whatever the weights."""
    if (text := walk(schema, rng)) is not None:
        remaining = without(schema, spell(schema).unenforced)
        assert Checker(remaining, "here").fault(text) is None, text


# Random schemas: keywords beside each other, of one type and of several, nested.
_NAMES = st.sampled_from("ab")
_scalars = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": st.integers(0, 2),
            "maxLength": st.integers(2, 4),
            "pattern": st.sampled_from(("^[ab]*$", "a", r"^\w", "(?!x)a")),
            "format": st.sampled_from(("date", "uuid", "x")),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(("integer", "number"))},
        optional={
            "minimum": st.integers(-3, 3),
            "exclusiveMaximum": st.integers(4, 9),
            "multipleOf": st.sampled_from((1, 2, 0.5)),
        },
    ),
    st.builds(
        dict, enum=st.lists(st.sampled_from(("a", "b", 1, 2.5, None, True)), min_size=1, max_size=3, unique_by=repr)
    ),
    st.just({}),
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(_NAMES, inner, max_size=2),
            "required": st.lists(_NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": st.dictionaries(st.sampled_from(("^a", "^c")), inner, max_size=2),
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(2, 3),
            "propertyNames": st.just({"maxLength": 1}),
            "dependentRequired": st.just({"a": ["b"]}),
        },
    )
    lists = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minItems": st.integers(0, 1),
            "maxItems": st.integers(2, 3),
            "uniqueItems": st.booleans(),
            "contains": inner,
        },
    )
    choices = st.sampled_from(("anyOf", "oneOf", "allOf")).flatmap(
        lambda key: st.builds(lambda part: {key: part}, st.lists(inner, min_size=1, max_size=2))
    )
    beside = st.builds(lambda one, other: {**one, **other}, objects | lists, choices)
    return st.one_of(objects, objects, lists, choices, beside)


schemas = st.recursive(_scalars, _nested, max_leaves=6)


@pytest.mark.slow
@given(schemas, st.randoms(use_true_random=False))
@examples(300)
def test_keywords_that_are_not_listed_are_enforced_in_any_schema(schema: dict[str, Any], rng: random.Random) -> None:
    try:
        text = walk(schema, rng)
    except SchemaRefused as refusal:
        assert "nsatisfiable" in refusal.message or "empty" in refusal.message
        return
    if text is not None:
        remaining = without(schema, spell(schema).unenforced)
        jsonschema.validate(json.loads(text), remaining, format_checker=jsonschema.FormatChecker())


_values = st.recursive(
    st.sampled_from((None, True, 0.5, 2.5, "", "a", "b", "ab", "aab", "2024-02-29")) | st.integers(-4, 9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=1),
    max_leaves=4,
)


@pytest.mark.slow
@given(schemas, st.lists(_values, min_size=1, max_size=8))
@examples(300)
def test_valid_values_are_allowed_by_any_schema(schema: dict[str, Any], values: list[Any]) -> None:
    """Objects have one key at most, because a grammar allows keys in one order."""
    valid = [value for value in values if Checker(schema, "here").fault(json.dumps(value)) is None]
    assert [value for value in valid if not allows(schema, json.dumps(value))] == []


def test_invalid_schemas_are_refused_when_they_are_compiled() -> None:
    for wrong in ({"properties": 3}, {"anyOf": [3]}, {"items": 3}, {"required": 3}, {"type": 3}, {"allOf": {}}):
        with pytest.raises(SchemaRefused, match="cannot be enforced"):
            allows(wrong, "1")
    for nowhere in ("#/nowhere", "http://example.com/x", "#x", "file:///etc/passwd", "http://["):
        with pytest.raises(SchemaRefused, match="cannot be enforced"):
            allows({"$ref": nowhere}, "1")


def test_a_key_in_escapes_is_the_same_key() -> None:
    schema = _OBJECT | _A
    assert allows(schema, '{"a": 1, "b": "x"}')
    assert not allows(schema, r'{"\u0061": "x"}')
    assert not allows(schema, r'{"a": 1, "\u0061": "x"}')
    schema |= {"additionalProperties": {"type": "string"}}
    assert allows(schema, '{"a": 1, "b": "x"}')
    assert not allows(schema, r'{"\u0061": "x"}')


@given(st.lists(st.text("ab-é\n", max_size=3), max_size=5, unique=True), st.text("ab-é\n", max_size=4))
def test_other_texts_are_all_except_the_known_ones(known: list[str], key: str) -> None:
    regex = other_texts(known)
    assert regex is not None
    assert (re.search(regex.replace("$", r"\Z"), key) is not None) == (key not in known)


def test_long_texts_have_no_regex_of_other_texts() -> None:
    assert other_texts(["a" * 101]) is None
    assert other_texts([f"{i:050}" for i in range(50)]) is None


def test_options_of_the_library_are_not_written() -> None:
    schema = {"type": "object", "x-guidance": {"key_separator": "=", "lenient": True}, "properties": {"a": {}}}
    assert allows(schema, '{"a": 1}')
    assert not allows(schema, '{"a"= 1}')


@pytest.mark.slow
def test_walks_through_every_schema_of_walle_are_valid(shared_data: Path) -> None:
    """A request with `not` or `uniqueItems` is not refused."""
    rng = random.Random(9)
    for path in sorted((shared_data / "schemas" / "walle").rglob("valid.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            schema = json.loads(line)
            text = walk(schema, rng, 400)
            remaining = without(schema, spell(schema).unenforced)
            if text is not None:
                assert Checker(remaining, "here").fault(text) is None, (line, text)


def test_pointers_start_at_the_field_of_the_request() -> None:
    inner = JsonSchema({"$ref": "#/$defs/x", "not": {}, "$defs": {"x": {"not": {}}}}, "field", "#/properties/a")
    assert list(Grammar(inner).unenforced("lark")) == [("field", "#/properties/a/not"), ("field", "#/$defs/x/not")]


# -- what the library cannot merge ------------------------------------------------------------------------------------


def test_schemas_that_cannot_be_merged_lose_what_is_merged_into_them() -> None:
    """Two of these references lead back to themselves. What the merged schemas say themselves is still enforced."""
    circular = {"properties": {"n": {"$ref": "#/properties/r", "required": ["v"]}}}
    schema = {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/s", "maxLength": 3}, "r": circular, "q": {"type": "integer"}},
        "$defs": {"s": {"type": "string"}},
    }
    assert spell(schema).unenforced == ("#/properties/p/$ref", "#/properties/r/properties/n/$ref")
    assert allows(schema, '{"p": "abc", "r": {"n": {"v": 1}}, "q": 1}')
    for text in ('{"p": "abcd"}', '{"r": {"n": {}}}', '{"q": "x"}'):
        assert not allows(schema, text)
