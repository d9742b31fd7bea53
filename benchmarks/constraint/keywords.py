"""Cases for JSON Schema's keywords, alone and beside others, each with valid and invalid values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_OBJECT = {"type": "object"}
_INTEGER = {"type": "integer"}
_STRING = {"type": "string"}
_A: dict[str, Any] = {"properties": {"a": _INTEGER}}
_AB: dict[str, Any] = {"properties": {"a": _INTEGER, "b": _INTEGER}}


@dataclass(frozen=True)
class Case:
    """`valid` and `invalid` are JSON texts."""

    title: str
    schema: Any
    valid: tuple[str, ...]
    invalid: tuple[str, ...]


def _case(title: str, schema: Any, valid: list[Any], invalid: list[Any]) -> Case:
    def texts(values: list[Any]) -> tuple[str, ...]:
        return tuple(json.dumps(value, ensure_ascii=False) for value in values)

    return Case(title, schema, texts(valid), texts(invalid))


KEYWORDS: tuple[Case, ...] = (
    _case("type", _INTEGER, [1, -20], ["1", 1.5, None]),
    _case("type, several", {"type": ["string", "null"]}, ["x", None], [1, []]),
    _case("properties", _OBJECT | _A, [{}, {"a": 1}, {"a": 1, "b": 2}], [{"a": "x"}]),
    _case("required", _OBJECT | _AB | {"required": ["a", "b"]}, [{"a": 1, "b": 2}], [{}, {"a": 1}, {"b": 1}]),
    _case("required, not declared", _OBJECT | _A | {"required": ["b"]}, [{"b": 2}, {"a": 1, "b": 2}], [{}, {"a": 1}]),
    _case("additionalProperties: false", _OBJECT | _A | {"additionalProperties": False}, [{}, {"a": 1}], [{"b": 1}]),
    _case("additionalProperties", _OBJECT | _A | {"additionalProperties": _STRING}, [{"a": 1, "b": "x"}], [{"b": 1}]),
    _case("unevaluatedProperties: false", _OBJECT | _A | {"unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
    _case("patternProperties", _OBJECT | {"patternProperties": {"^x_": _INTEGER}}, [{"x_a": 1}], [{"x_a": "y"}]),
    _case(
        "patternProperties beside properties",
        _OBJECT | _A | {"patternProperties": {"^x_": _INTEGER}},
        [{"a": 1}, {"a": 1, "x_a": 1}],
        [{"x_a": "y"}],
    ),
    _case("propertyNames", _OBJECT | {"propertyNames": {"pattern": "^a"}}, [{}, {"ab": 1}], [{"b": 1}]),
    _case(
        "minProperties, maxProperties",
        _OBJECT | {"minProperties": 1, "maxProperties": 2},
        [{"a": 1}, {"a": 1, "b": 2}],
        [{}, {"a": 1, "b": 2, "c": 3}],
    ),
    _case(
        "minProperties beside properties",
        _OBJECT | _AB | {"minProperties": 1, "additionalProperties": False},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
        [{}],
    ),
    _case("dependentRequired", _OBJECT | _AB | {"dependentRequired": {"a": ["b"]}}, [{}, {"a": 1, "b": 1}], [{"a": 1}]),
    _case(
        "dependentSchemas",
        _OBJECT | _AB | {"dependentSchemas": {"a": {"required": ["b"]}}},
        [{}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    _case("a property that is false", _OBJECT | {"properties": {"a": _INTEGER, "b": False}}, [{"a": 1}], [{"b": 1}]),
    _case("items", {"type": "array", "items": _INTEGER}, [[], [1, 2]], [["x"], [1, None]]),
    _case("minItems, maxItems", {"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
    _case("prefixItems", {"type": "array", "prefixItems": [_INTEGER, _STRING]}, [[1, "x"], [1, "x", 2]], [["x"]]),
    _case("items: false", {"type": "array", "prefixItems": [_INTEGER], "items": False}, [[1]], [[1, 2]]),
    _case("uniqueItems", {"type": "array", "items": _INTEGER, "uniqueItems": True}, [[], [1, 2]], [[1, 1]]),
    _case("contains", {"type": "array", "contains": {"const": 1}}, [[1], [2, 1]], [[], [2]]),
    _case("maxContains", {"type": "array", "contains": {"const": 1}, "maxContains": 1}, [[1], [2, 1]], [[1, 1]]),
    _case("minLength, maxLength", _STRING | {"minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
    _case("minLength, with escapes", _STRING | {"minLength": 1}, ["a", "a\nb", 'a"b', "a\\b"], [""]),
    _case("pattern of the whole", _STRING | {"pattern": "^[a-z]+$"}, ["abc"], ["", "A", "abc1"]),
    _case("pattern anywhere", _STRING | {"pattern": "[0-9]"}, ["1", "a1b"], ["a", ""]),
    _case("pattern, with escapes", _STRING | {"pattern": "^a.*$"}, ["ab", 'a"b'], ["b"]),
    _case("pattern and maxLength", _STRING | {"pattern": "^a+$", "maxLength": 2}, ["a", "aa"], ["b", "aaa"]),
    _case("pattern: look-ahead", _STRING | {"pattern": "^(?!no)[a-z]+$"}, ["yes"], ["no", "nothing"]),
    _case("format: date", _STRING | {"format": "date"}, ["2024-02-28"], ["2024-13-01", "x"]),
    _case("format: date-time", _STRING | {"format": "date-time"}, ["2024-02-28T12:00:00Z"], ["2024-02-28", "x"]),
    _case("format: email", _STRING | {"format": "email"}, ["a@b.example"], ["a", "a b"]),
    _case("format: uuid", _STRING | {"format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["x"]),
    _case("format: ipv4", _STRING | {"format": "ipv4"}, ["10.0.0.1"], ["10.0.0", "300.0.0.1"]),
    _case("format: uri", _STRING | {"format": "uri"}, ["https://a.example/b?c=d"], ["a b", ""]),
    _case("format, unknown", _STRING | {"format": "colour"}, ["red"], []),
    _case("format: regex", _STRING | {"format": "regex"}, ["a+"], ["("]),
    _case("minimum, maximum", _INTEGER | {"minimum": -3, "maximum": 12}, [-3, 0, 12], [-4, 13]),
    _case("exclusiveMinimum", {"type": "number", "exclusiveMinimum": 0.5}, [0.51, 7], [0.5, 0, -1]),
    _case("an integer's bounds are fractions", _INTEGER | {"minimum": 0.5, "maximum": 2.5}, [1, 2], [0, 3]),
    _case("multipleOf", _INTEGER | {"multipleOf": 5}, [0, 5, 20], [7, 11]),
    _case("multipleOf, of a number", {"type": "number", "multipleOf": 0.5}, [1.5, 2], [0.7]),
    _case("enum", {"enum": ["a", 1, None]}, ["a", 1, None], ["b", 2]),
    _case("enum beside type", _STRING | {"enum": ["a", 1]}, ["a"], [1]),
    _case("enum of objects", {"enum": [{"a": 1, "b": [1, 2]}]}, [{"a": 1, "b": [1, 2]}], [{"a": 1}]),
    _case("const", {"const": "a"}, ["a"], ["b"]),
    _case("anyOf", {"anyOf": [_STRING, _INTEGER]}, ["x", 1], [None]),
    _case("anyOf beside minimum", {"anyOf": [_STRING, _INTEGER], "minimum": 2}, ["x", 2], [1]),
    _case(
        "anyOf of required",
        _OBJECT | _AB | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
        [{}],
    ),
    _case("oneOf, apart", {"oneOf": [_STRING, _INTEGER]}, ["x", 1], [None]),
    _case("oneOf, overlapping", {"oneOf": [{"minimum": 0}, {"maximum": 9}], "type": "integer"}, [-1, 10], [5]),
    _case("allOf of one", {"allOf": [_INTEGER]}, [1], ["x"]),
    _case("allOf of several", {"allOf": [_INTEGER, {"minimum": 3}]}, [3], [1, "x"]),
    _case("allOf beside properties", _OBJECT | _A | {"allOf": [{"required": ["a"]}]}, [{"a": 1}], [{}]),
    _case("not", {"not": _STRING}, [1, None], ["x"]),
    _case("not beside type", _STRING | {"not": {"enum": ["no"]}}, ["yes"], ["no"]),
    _case(
        "if, then, else",
        {"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"type": "null"}},
        [3, None],
        [1, "x"],
    ),
    _case("$ref", {"$ref": "#/$defs/x", "$defs": {"x": _INTEGER}}, [1], ["x"]),
    _case("$ref beside minimum", {"$ref": "#/$defs/x", "$defs": {"x": _INTEGER}, "minimum": 3}, [3], [1]),
    _case(
        "$ref, to itself",
        _OBJECT | {"properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
        [{}, {"a": {"a": {}}}],
        [{"a": 1}, {"a": {"b": 1}}],
    ),
    _case("$ref to $anchor", {"$ref": "#x", "$defs": {"x": {"$anchor": "x", "type": "integer"}}}, [1], ["x"]),
    _case(
        "$dynamicRef",
        {"$dynamicRef": "#x", "$defs": {"x": {"$dynamicAnchor": "x", "type": "integer"}}},
        [1],
        ["x"],
    ),
    _case("no type", {"minLength": 2, "minimum": 2}, ["ab", 2, None], ["a", 1]),
    Case("white space", _OBJECT | _AB, ('{"a":1,"b":2}', '{\n  "a": 1,\n  "b": 2\n}', '{ "a" : 1 }'), ()),
    Case("keys in another order", _OBJECT | _AB, ('{"b": 2, "a": 1}',), ()),
    Case("escapes a writer may choose", _STRING, ('"\\u00e9"', '"\\/"', '"é/"'), ('"\n"',)),
    Case(
        "numbers as they are written", {"type": "number"}, ("-0.0", "1e3", "1E-2", "12345678901234567890"), ("01", "+1")
    ),
)
