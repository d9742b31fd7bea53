"""Schemas that a client may send to harm a server, or by mistake.

Each is refused by a JSON pointer, or it compiles and its masks can be had.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]


def prop(schema: Any, **beside: Any) -> Schema:
    """An object with this for its key a."""
    return {"type": "object", "properties": {"a": schema}, **beside}


A = {"$ref": "#/$defs/a"}


def refers(definitions: dict[str, Any], to: str = "#/$defs/a", **beside: Any) -> Schema:
    """An object whose key a is one of the definitions."""
    return prop({"$ref": to}, **{"$defs": definitions}, **beside)


def nested(times: int, wrap: Callable[[Any], Any], inner: Any = True) -> Any:
    for _ in range(times):
        inner = wrap(inner)
    return inner


def many(count: int, kind: str = "string", name: str = "p{}") -> Schema:
    return {"type": "object", "properties": {name.format(i): {"type": kind} for i in range(count)}}


def doubled(depth: int, key: str) -> Schema:
    """A tree of unions, two branches each."""
    return {key: [doubled(depth - 1, key), doubled(depth - 1, key)]} if depth else {"type": "null"}


def lists(depth: int, most: int) -> Schema:
    return nested(depth, lambda it: {"type": "array", "items": it, "maxItems": most}, {"type": "integer"})


def string(pattern: str, **beside: Any) -> Schema:
    return prop({"type": "string", "pattern": pattern, **beside})


def _anagrams(count: int) -> Schema:
    """Every key depends on whether another is there."""
    names = [f"p{i}" for i in range(count)]
    return {"type": "object", "properties": {name: {"type": "null"} for name in names}, "minProperties": count - 1}


#: What a schema is like -> schema, and where in it the fault is; None: it compiles.
CASES: dict[str, tuple[Schema, str | None]] = {
    # Deep.
    "deep objects": (nested(90, prop, {"type": "string"}), "#/properties/a/properties/a"),
    "deep objects, within bounds": (nested(45, prop, {"type": "string"}), None),
    "deep lists": (prop(nested(300, lambda it: {"items": it})), "#/properties/a/items/items"),
    "deep unions": (prop(nested(120, lambda it: {"anyOf": [it]})), "#/properties/a/anyOf/0"),
    "deep negations": (prop(nested(300, lambda it: {"not": it})), "#/properties/a/not/not"),
    "deep value": (prop({"const": nested(300, lambda it: [it])}), "#/properties/a/const"),
    "deep annotation": (prop({"type": "null", "default": nested(300, lambda it: [it])}), None),
    # References.
    "refers to itself at once": ({"$ref": "#"}, "#/$ref"),
    "loop of two": (refers({"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, required=["a"]), "#/"),
    "loop of two, if at all": (refers({"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}), None),
    "needs itself": (refers({"a": prop(A, required=["a"])}, required=["a"]), "#/"),
    "needs itself, if at all": (refers({"a": prop(A, required=["a"])}), None),
    "a list of itself": (refers({"a": {"type": "array", "items": A, "minItems": 1}}, required=["a"]), "#/"),
    "may hold itself": ({"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, None),
    "a tree": (refers({"a": {"type": "array", "items": A}}), None),
    "holds together with itself": (refers({"a": {"allOf": [A], "type": "object"}}, required=["a"]), "#/"),
    "refers to nowhere": (prop({"$ref": "#/$defs/nowhere"}), "#/properties/a/$ref"),
    "refers to the network": (prop({"$ref": "http://127.0.0.1:1/schema.json"}), "#/properties/a/$ref"),
    "refers to a file": (prop({"$ref": "file:///etc/passwd"}), "#/properties/a/$ref"),
    "percent-encoded": (refers({"a b": {}}, "#/%24defs/a%20b%2Fc"), "#/properties/a/$ref"),
    "percent-encoded, and there": (refers({"a b": {"type": "null"}}, "#/%24defs/a%20b"), None),
    "long chain": (
        refers({f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(999)} | {"d999": {}}, "#/$defs/d0"),
        "#/$defs",
    ),
    "chain of names for one": (
        refers({f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(190)} | {"d190": {"type": "null"}}, "#/$defs/d0"),
        None,
    ),
    "a name of its own": (refers({"b": {"$id": "http://x.test/y", "type": "null"}}, "http://x.test/y"), None),
    "many hold together with many": (
        refers(
            {**{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 60} for i in range(30)}, "d30": {}}, "#/$defs/d0"
        ),
        "#/",
    ),
    "a long name of its own, for many references": (
        {"$id": f"http://x.test/{'y/' * 500}", "$defs": {"a": {}}, "prefixItems": [A] * 3_000},
        "#/prefixItems",
    ),
    # Contradictions.
    "nothing fits": (prop({"type": "integer", "minimum": 3, "maximum": 1}, required=["a"]), "#"),
    "no type fits": (prop({"allOf": [{"type": "string"}, {"type": "null"}]}, required=["a"]), "#"),
    "forbidden and required": (prop(False, required=["a"]), "#"),
    "forbidden": (prop(False), None),
    "no value": (prop({"enum": []}, required=["a"]), "#"),
    "empty pattern": (
        prop({"type": "string", "pattern": "^a$", "minLength": 3}, required=["a"]),
        "#",
    ),
    # Of a wrong kind.
    "no type": (prop({"type": "strin"}), "#/properties/a"),
    "a list for properties": ({"type": "object", "properties": [1]}, "#/properties"),
    "a number for a schema": (prop(3), "#/properties/a"),
    "a text for a length": (prop({"type": "string", "minLength": "5"}), "#/properties/a"),
    "a negative length": (prop({"type": "string", "maxLength": -1}), "#/properties/a"),
    "a number for a pattern": (prop({"type": "string", "pattern": 5}), "#/properties/a"),
    "a number for required": ({"type": "object", "required": 5}, "#"),
    "a text for enum": (prop({"enum": "abc"}), "#/properties/a"),
    # Enormous.
    "10,000 values": (prop({"enum": [f"value number {i}" for i in range(10_000)]}), None),
    "10,000 numbers": (prop({"enum": list(range(10_000))}), None),
    "30,000 values": (prop({"enum": list(range(30_000))}), "#/properties/a/enum"),
    "a large value": (prop({"const": "x" * 1_000_000}), "#/properties/a/const"),
    "a large value, within bounds": (prop({"const": "xyz " * 40_000}), None),
    "a large name": ({"properties": {"x" * 1_000_000: {}}}, "#/properties"),
    "1,000 keys": (many(1_000), None),
    "5,000 keys": (many(5_000), "#"),
    "5,000 required keys": ({**many(5_000), "required": [f"p{i}" for i in range(5_000)]}, None),
    "20,000 keys": (many(20_000), "#"),
    "required without end": ({"type": "object", "required": [f"r{i}" for i in range(20_000)]}, "#"),
    "many parts": (prop({"x-other": [[] for _ in range(200_000)]}), "#/properties/a/x-other"),
    "long lists": (prop({"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}), None),
    "long lists, at least": (prop({"type": "array", "minItems": 10**9}), None),
    "lists of lists": (prop(lists(4, 10**9)), None),
    "long string": (prop({"type": "string", "minLength": 10**6, "maxLength": 10**7}), None),
    "long string with a pattern": (string("^[a-z]+$", minLength=50_000, maxLength=100_000), None),
    "longer than any": (prop({"type": "string", "minLength": 10**18}), None),
    "many keys": (prop({"type": "object", "minProperties": 10**9}), None),
    "a key or another": (_anagrams(40), None),
    # Unions that multiply.
    "unions in unions": (prop(doubled(9, "anyOf")), None),
    "unions in unions, too many": (prop(doubled(12, "anyOf")), "#/"),
    "one of ones": (prop(doubled(8, "oneOf")), None),
    "all of all": (prop(doubled(8, "allOf")), None),
    "unions times unions": (
        prop({"allOf": [{"anyOf": [{"type": "string"}, {"type": "object"}]} for _ in range(30)]}),
        "#/properties/a",
    ),
    "a large object times a union": (
        prop({"properties": {"b": many(900)}, "anyOf": [{"type": "object"} for _ in range(1_000)]}),
        "#/properties/a",
    ),
    "a large object times two unions of its key": (
        prop(
            {
                "allOf": [
                    *({"properties": {"b": {"anyOf": [{"type": "object"} for _ in range(150)]}}} for _ in "12"),
                    {"properties": {"b": many(900)}},
                ]
            }
        ),
        "#/properties/a",
    ),
    "a large object times branches' keys": (
        prop(
            {
                "properties": {"b": many(900)},
                "anyOf": [{"properties": {"b": {"anyOf": [{"type": "object"} for _ in range(90)]}}} for _ in range(20)],
            }
        ),
        "#/properties/a",
    ),
    "within bounds, times a union": (
        prop({"properties": {"b": many(250)}, "anyOf": [{"required": [f"p{i}"]} for i in range(30)]}),
        None,
    ),
    "one of many values": (
        prop({"oneOf": [{"enum": [f"{c}{i}" for i in range(6_000)]} for c in "abc"], "allOf": [{} for _ in range(99)]}),
        None,
    ),
    "one of what overlaps": (prop({"oneOf": [{"enum": list(range(9_000))}, {"enum": [*range(8_999, 17_000)]}]}), None),
    "one of chains": (
        prop(
            {"oneOf": [{"$ref": "#/$defs/l0"}, {"$ref": "#/$defs/r0"}]},
            **{
                "$defs": {
                    f"{side}{i}": {
                        "allOf": [
                            {"properties": {"k": {"$ref": f"#/$defs/{side}{i + 1}"}}, "required": ["k"]}
                            for _ in range(12)
                        ]
                    }
                    for side in "lr"
                    for i in range(7)
                }
                | {f"{side}7": {"type": "object"} for side in "lr"}
            },
        ),
        None,
    ),
    "many branches": (prop({"anyOf": [{"const": i} for i in range(30_000)]}), "#/properties/a"),
    # Patterns.
    "nested quantifiers": (string("^(([a-z]+)+)+$"), None),
    "counted three times": (string("^((a{1,100}){1,100}){1,100}$"), None),
    "counted letters": (string(r"^\p{L}{1,1000}$"), None),
    "letters counted twice": (string(r"^(\p{L}{1,1000}[0-9]){1,1000}$"), None),
    "a state for every text": (string("(.*a.{20}){2}|(.*b.{19}c.*){3}"), None),
    "a far look back": (string("a.{200}b"), None),
    "many far looks back": (string("|".join(f"{c}.{{{i}}}{c}" for i in range(40) for c in "abcdefgh")), None),
    "many words": (string("|".join(f"word{i}" for i in range(10_000))), None),
    "looks ahead": (string("^(?=.*a)(?=.*b)"), None),
    "refers back": (string(r"^(a+)\1$"), None),
    "no regex": (string("("), "#/properties/a/pattern"),
    "all of many patterns": (
        prop({"type": "string", "allOf": [{"pattern": f"{chr(97 + i)}.{{{i}}}x"} for i in range(20)]}),
        None,
    ),
    "pattern and length": (string("^(a|b)*a(a|b){12}$", minLength=9, maxLength=999), None),
    "names by patterns": (
        {
            "type": "object",
            "properties": {f"x-{i}": {"type": "null"} for i in range(300)},
            "patternProperties": {f"^x-.*{i}$": {"type": "integer"} for i in range(100)},
            "additionalProperties": {"type": "boolean"},
        },
        None,
    ),
    "names by catastrophic patterns": (
        {"type": "object", "patternProperties": {"(.*a.{20}){2}": {}, "(.*b.{20}){2}": {}}, "additionalProperties": {}},
        None,
    ),
    # Numbers.
    "400 digits": (prop({"const": 10**400}), "#/properties/a/const"),
    "a bound of 400 digits": (prop({"type": "number", "minimum": 10**400}), "#/properties/a/minimum"),
    "beyond a double": (prop({"const": 2**53 + 1}), None),
    "the smallest integer": (prop({"const": -(2**63)}), None),
    "beyond 64 bits": (prop({"enum": [2**80]}), None),
    "no number": (prop({"type": "number", "minimum": float("nan")}), None),
    "infinite": (prop({"type": "number", "maximum": float("inf")}), None),
    "a small step": (prop({"type": "number", "multipleOf": 1e-9, "maximum": 1}), None),
    "no step": (prop({"type": "number", "multipleOf": 0}), "#/properties/a/multipleOf"),
    "a large prime": (prop({"type": "integer", "multipleOf": 999_999_937}), "#/properties/a/multipleOf"),
    "bounds of many digits": (prop({"type": "number", "minimum": -1.2345678901234567e-300, "maximum": 1e300}), None),
    # What is not meant for it.
    "half a character": (prop({"const": "\ud800"}), "#: Failed"),
    "the library's own options": (
        prop({"type": "string"}, **{"x-guidance": {"key_separator": "=", "whitespace_pattern": ".*", "lenient": True}}),
        None,
    ),
    "keywords it has not": (
        prop({"type": "object", "unevaluatedProperties": False, "dependentSchemas": {"a": {}}, "not": {}}),
        None,
    ),
    "dynamic references": (prop({"$dynamicRef": "#a"}, **{"$defs": {"a": {"$dynamicAnchor": "a"}}}), None),
    "any format": (prop({"type": "string", "format": "regex-of-regexes"}), None),
    "odd names": (
        {"type": "object", "properties": {'"\\\n\x00é🙂/~%': {"type": "null"}, "": {}, " ": {}, "}": {}, "a": False}},
        None,
    ),
}
#: Of all tools of a request together.
TOOLS: dict[str, tuple[list[Schema], str | None]] = {
    "200 tools": ([{**many(20), "required": ["p3"], "additionalProperties": False} for _ in range(200)], None),
    "200 tools with patterns": ([string(r"^\p{L}{1,1000}$") for _ in range(200)], None),
    "200 tools, each with far looks back": ([string(f"[a-{chr(98 + i % 20)}].{{{i}}}x") for i in range(200)], None),
    "200 tools with 100 values each": ([prop({"enum": [f"{n} {i}" for i in range(100)]}) for n in range(200)], None),
    "200 trees": ([{**many(3), "additionalProperties": {"$ref": "#"}} for _ in range(200)], None),
    "200 tools with deep objects": ([nested(40, prop, {"type": "string"}) for _ in range(200)], "#"),
    "1,000 tools": ([many(1) for _ in range(1_000)], None),
    "2,000 tools": ([{} for _ in range(2_000)], "tools"),
}


def copied(schema: Any) -> Any:
    """With every part an object of its own, as in a request. What JSON cannot hold stays as it is."""
    try:
        return json.loads(json.dumps(schema))
    except (RecursionError, ValueError):
        return schema
