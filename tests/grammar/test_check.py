"""The check agrees with another validator, names the place of a fault, and ends in bounded time."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import SchemaRefused
from dovetail.grammar.schemas import check
from dovetail.grammar.schemas.check import Checker
from tests.examples import examples
from tests.grammar.test_lark_schema import schemas
from tests.grammar.walks import allows, walk

values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from((0.5, 2.0, 1e3)) | st.text("ab2-", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


def oracle(schema: Any) -> Any:
    """As the check reads it; of formats it knows those that the tests use."""
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return kind(schema, format_checker=jsonschema.FormatChecker(("date", "uuid", "ipv4")))


@pytest.mark.slow
@given(schemas, values)
@examples(400)
def test_agrees_with_another_validator(schema: dict[str, Any], value: Any) -> None:
    assert (Checker(schema, "x").fault(json.dumps(value)) is None) == oracle(schema).is_valid(value)


@pytest.mark.slow
def test_agrees_with_another_validator_on_walle(shared_data: Path) -> None:
    """On what a grammar makes, and on the same with one thing changed."""
    rng = random.Random(3)
    made = valid = 0
    for path in sorted((shared_data / "schemas" / "walle").rglob("valid.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            schema = json.loads(line)
            text = walk(schema, rng, 300)
            if text is None or "E" in text or "e" in text:  # numbers beyond a double are infinite to the other
                continue
            for changed in (text, _changed(json.loads(text), rng)):
                made += 1
                fault = Checker(schema, "x").fault(changed)
                valid += fault is None
                assert (fault is None) == oracle(schema).is_valid(json.loads(changed)), (line, changed)
    assert made > 100
    assert made / 4 < valid < made


def _changed(value: Any, rng: random.Random) -> str:
    """The JSON of a value with one thing in it made another, or left out."""
    places: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        parent = pending.pop()
        if isinstance(parent, dict | list):
            keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
            places += ((parent, key) for key in keys)
            pending += (parent[key] for key in keys)
    if not places:
        return json.dumps([value])
    parent, key = rng.choice(places)
    if rng.random() < 0.5:
        del parent[key]
    else:
        parent[key] = rng.choice([None, "x", -1.5, [], {}])
    return json.dumps(value)


SCHEMA = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "format": "date"},
        "a/b": {"type": "array", "items": {"type": "integer", "minimum": 3}},
    },
    "required": ["day"],
}


@pytest.mark.parametrize(
    ("arguments", "kind", "detail"),
    [
        ('{"day": "2024-02-29"}', None, ""),
        ('{"day": "2024-02-29", "day": "2024-03-01"}', None, ""),
        ('{"day": "secret"}', "schema_mismatch", "/day against #/properties/day/format"),
        ('{"secret": 1}', "schema_mismatch", "the arguments against #/required"),
        ('{"day": "2024-02-29", "a/b": [3, 2]}', "schema_mismatch", "/a~1b/1 against #/properties/a~1b/items/minimum"),
        ("[]", "schema_mismatch", "the arguments against #/type"),
        ('{"day": ', "invalid_json", "line 1, column 9"),
        ('{"day": NaN}', "invalid_json", ""),
        ("", "invalid_json", "line 1, column 1"),
        (r'{"day": "\ud800"}', "invalid_json", ""),
        (r'{"\ud800": "2024-02-29"}', "invalid_json", ""),
        (r'{"day": "2024-02-29", "x": "\ud83d\ude42"}', None, ""),
        (f'{{"day": "2024-02-29", "x": {"1" * 500}}}', "unchecked_arguments", "a number of more than 400 digits"),
        ('{"day": "2024-02-29", "x": 1e999}', None, ""),
        ("[" * 300 + "]" * 300, "unchecked_arguments", "nested deeper than 200 levels"),
        ("[" * 100_000, "unchecked_arguments", "nested too deeply"),
    ],
)
def test_fault_names_the_place(arguments: str, kind: str | None, detail: str) -> None:
    """Without what the arguments say."""
    fault = Checker(SCHEMA, "x").fault(arguments)
    assert (fault and fault.kind, fault.detail if fault else "") == (kind, detail)


@pytest.mark.parametrize(
    ("draft", "schema", "valid", "invalid"),
    [
        ("draft-04", {"minimum": 3, "exclusiveMinimum": True}, 4, 3),
        ("draft-06", {"exclusiveMinimum": 3}, 4, 3),
        ("draft-07", {"items": [{"type": "string"}], "additionalItems": False}, ["x"], ["x", 1]),
        ("draft-07", {"if": {"type": "string"}, "then": {"minLength": 2}}, "ab", "a"),
        ("2019-09", {"dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
        ("2020-12", {"prefixItems": [{"type": "string"}], "items": False}, ["x"], ["x", 1]),
        ("2020-12", {"$dynamicRef": "#x", "$defs": {"x": {"$dynamicAnchor": "x", "type": "null"}}}, None, 1),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_each_draft_keeps_its_meaning(draft: str, schema: Any, valid: Any, invalid: Any, named: bool) -> None:
    """Where none is named it is the newest, or an older one that the schema is of."""
    if named:
        address = f"http://json-schema.org/{draft}/schema#" if draft.startswith("draft") else None
        schema = {"$schema": address or f"https://json-schema.org/draft/{draft}/schema"} | schema
    checker = Checker(schema, "x")
    assert checker.fault(json.dumps(valid)) is None
    assert checker.fault(json.dumps(invalid)) is not None


#: What each says in words of an older draft holds, and so does what only 2020-12 has.
_TUPLE = {"items": [{"type": "number"}]}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid", "detail"),
    [
        ({"dependentRequired": {"a": ["b"]}, "$defs": {"x": _TUPLE}}, {}, {"a": 1}, " against #/dependentRequired"),
        (
            {"properties": {"p": _TUPLE, "u": {"format": "uuid"}}},
            {"p": [1]},
            {"u": "x"},
            "/u against #/properties/u/format",
        ),
        ({"properties": {"p": _TUPLE}}, {"p": [1, "x"]}, {"p": ["x"]}, "/p/0 against #/properties/p/items/0/type"),
        (
            {"properties": {"p": {**_TUPLE, "additionalItems": False}, "q": {"prefixItems": [False]}}},
            {"p": [1], "q": []},
            {"p": [1, 2]},
            "/p/1 against #/properties/p/additionalItems",
        ),
        (
            {"properties": {"p": _TUPLE, "q": {"prefixItems": [False]}}},
            {"q": []},
            {"q": [1]},
            "/q/0 against #/properties/q/prefixItems/0",
        ),
        (
            {"properties": {"p": {"minimum": 0, "exclusiveMinimum": True}, "q": {"exclusiveMaximum": 0}}},
            {"p": 1, "q": -1},
            {"p": 0},
            "/p against #/properties/p/exclusiveMinimum",
        ),
        (
            {"properties": {"p": {"maximum": 0, "exclusiveMaximum": False}, "q": {"const": 1}}},
            {"p": 0},
            {"q": 2},
            "/q against #/properties/q/const",
        ),
        ({"properties": {"p": {"exclusiveMaximum": True}}}, {"p": 9}, [], None),
        (
            {"properties": {"p": _TUPLE, "q": {"$ref": "#/properties/p/items/0"}}},
            {"q": 1},
            {"q": "x"},
            "/q against #/properties/p/items/0/type",
        ),
        (
            {
                "$defs": {"a b": {"items": [{}], "additionalItems": {"type": "null"}}},
                "properties": {"q": {"$ref": "#/$defs/a%20b/additionalItems", "const": None}},
            },
            {"q": None},
            {"q": 1},
            None,
        ),
        ({"$ref": "#/$defs/A b[c]", "$defs": {"A b[c]": {"required": ["a"]}}}, {"a": 1}, {}, None),
        (
            {"properties": {"items": _TUPLE, "default": {**_TUPLE, "default": {"items": [1]}}}},
            {"items": [1]},
            {"default": ["x"]},
            "/default/0 against #/properties/default/items/0/type",
        ),
        (
            {"dependencies": {"a": ["b"], "b": {"required": ["c"]}}, "$defs": {"x": _TUPLE}},
            {"b": 1, "c": 1},
            {"a": 1},
            None,
        ),
        (
            {"$id": "http://x/", "properties": {"p": {"$id": "y", **_TUPLE, "additionalItems": {"$ref": "#/items/0"}}}},
            {"p": [1, 2]},
            {"p": [1, "x"]},
            None,
        ),
    ],
)
def test_an_old_keyword_changes_nothing_else(schema: Any, valid: Any, invalid: Any, detail: str | None) -> None:
    checker = Checker({**schema, "type": "object"} if isinstance(valid, dict) else schema, "x")
    assert checker.fault(json.dumps(valid)) is None
    fault = checker.fault(json.dumps(invalid))
    assert fault is not None and fault.kind == "schema_mismatch"
    assert detail is None or fault.detail.endswith(detail)


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"type": "array", **_TUPLE, "additionalItems": {"$ref": "#/$defs/s"}}, ["[1]", '["x"]', '[1, "x"]', "[1, 2]"]),
        ({"type": "array", **_TUPLE, "prefixItems": [False]}, ["[1]", '["x"]', "[]"]),
        ({"type": "array", "items": {"type": "null"}, "additionalItems": False}, ["[null]", "[1]"]),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["3", "4", "2"]),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": False, "exclusiveMaximum": 5}, ["3", "5", "2", "4"]),
        ({"type": "integer", "exclusiveMinimum": True}, ["-9", "9"]),
    ],
)
def test_the_grammar_reads_old_keywords_as_the_check_does(schema: Any, texts: list[str]) -> None:
    schema = {**schema, "$defs": {"s": {"type": "string"}, "new": {"prefixItems": [{}]}}}
    checker = Checker(schema, "x")
    assert [allows(schema, text) for text in texts] == [checker.fault(text) is None for text in texts]


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a": {"items": [3]}}}, "#/properties/a/items/0"),
        ({"properties": {"a": {"items": [{}], "additionalItems": 3}}}, "#/properties/a/additionalItems"),
        ({"properties": {"a": {"type": "strin"}}}, "#/properties/a/type"),
        ({"properties": {"a": {"minLength": -1}}}, "#/properties/a/minLength"),
        ({"properties": {"a": {"pattern": "("}}}, "#/properties/a/pattern"),
        ({"properties": 3}, "#/properties"),
        ({"$defs": [1]}, "#/$defs"),
        ({"items": 3}, "#/items"),
        ({"items": [], "uniqueItems": "yes"}, "#/items"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "#/properties/a/$ref"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}, "#/properties/a/$ref"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "#/properties/a/$ref"),
        ({"$schema": "http://example.com/schema"}, "#/$schema"),
    ],
)
def test_an_invalid_schema_is_refused_by_pointer(schema: Any, pointer: str) -> None:
    with pytest.raises(SchemaRefused, match="cannot be enforced") as caught:
        Checker(schema, "tools[0].function.parameters")
    assert caught.value.param == "tools[0].function.parameters"
    assert f"cannot be enforced: {pointer}: " in caught.value.message
    assert len(caught.value.message) < 600


def _nest(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


_TWICE = {"properties": {"a": {"$ref": "#/$defs/t"}}}
#: Both branches visit each level, so a value of this depth takes 2 ** depth visits.
_DOUBLING = {
    "$ref": "#/$defs/t",
    "$defs": {"t": {"anyOf": [{**_TWICE, "required": ["y"]}, {**_TWICE, "required": ["z"]}]}},
}
_LAUGHS = {
    "$ref": "#/$defs/0",
    "$defs": {**{str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)}, "40": {}},
}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (_DOUBLING, json.dumps(_nest(100))),
        (_LAUGHS, "1"),
        ({"$ref": "#"}, "1"),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "1"),
        ({"items": {"anyOf": [{"const": i} for i in range(2000)]}}, json.dumps([-1] * 100_000)),
        ({"items": {"enum": [{"k": i} for i in range(5_000)]}}, json.dumps([{"k": 4_999}] * 2_000)),
        ({"items": {"pattern": "^(a|aa)+(?!c)$"}}, json.dumps(["a" * 40 + "b"] * 10_000)),
        ({"items": {"multipleOf": 1e-300}}, json.dumps([1e300] * 300)),
        ({"items": {"minimum": 3, "maximum": 10**399}}, json.dumps([10**390] * 1_000)),
        ({"items": {"const": list(range(1_000))}}, json.dumps([list(range(1_000))] * 60)),
        ({"items": {"format": "idn-hostname"}}, json.dumps(["xn--bcher-kva.example"] * 6_000)),
        ({"allOf": [{"uniqueItems": True}] * 50}, json.dumps([{"a": i} for i in range(3_000)])),
        ({"patternProperties": {f"^{i}$": {} for i in range(1_000)}}, json.dumps(dict.fromkeys(range(1_000)))),
    ],
    ids=[
        *("doubling", "laughs", "itself", "itself twice", "many times many", "objects in enum", "dear patterns"),
        *("tiny divisor", "long numbers", "large constant", "names of hosts", "unique items", "patterns of keys"),
    ],
)
def test_a_check_that_would_take_hours_is_not_run(schema: Any, arguments: str) -> None:
    fault = Checker(schema, "x").fault(arguments)
    assert fault is not None
    assert fault.kind == "unchecked_arguments"


def test_an_affordable_check_is_run() -> None:
    assert Checker(_DOUBLING, "x").fault('{"a": {"y": 1}, "z": 1}') is None
    fault = Checker(_DOUBLING, "x").fault(json.dumps(_nest(4)))
    assert (fault and fault.detail) == "the arguments against #/$defs/t/anyOf"
    assert Checker(_DOUBLING, "x").fault(json.dumps(_nest(10))) == check.Fault("schema_mismatch", "")
    tree = {"type": "object", "properties": {"v": {"type": "integer"}, "n": {"$ref": "#"}}, "required": ["v"]}
    assert Checker(tree, "x").fault('{"v": 1, "n": {"v": 2}}') is None
    fault = Checker(tree, "x").fault('{"v": 1, "n": {"v": "x"}}')
    assert (fault and fault.detail) == "/n/v against #/properties/v/type"
    # Properties and items that the value does not have cost nothing.
    many = {"properties": {f"k{i}": {"const": i} for i in range(5_000)}}
    for holder in (many, {"prefixItems": [{"const": i} for i in range(5_000)]}):
        empty: Any = {} if holder is many else []
        checker = Checker({"items": holder}, "x")
        assert checker.fault(json.dumps([empty] * 5_000)) is None
    assert checker.fault(json.dumps([[]] * 5_000 + [[0, 2]])) is not None


def test_ordinary_arguments_are_checked_whatever_their_size() -> None:
    item = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string", "format": "date"}}}
    checker = Checker({"type": "object", "properties": {"a": {"items": {**item, "required": ["x", "y"]}}}}, "x")
    small, large = (json.dumps({"a": [{"x": 1, "y": "2024-02-29"}] * n}) for n in (3, 20_000))
    assert checker.is_quick(small) and not checker.is_quick(large)
    assert checker.fault(small) is None and checker.fault(large) is None
    for text in (small, large):
        fault = checker.fault(text[:-3] + ', "y": "2024-02-30"}]}')
        assert fault is not None and fault.kind == "schema_mismatch"


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "(a*)*b", "^(?:a|a?)+$", "(.*a.{20}){2}|(.*b.{19}c.*){3}", "(?=a)(a+)+$"]
)
def test_a_hostile_pattern_ends(pattern: str) -> None:
    """The regex is linear, or gives up."""
    Checker({"pattern": pattern}, "x").fault(json.dumps("a" * 30_000 + "c"))


def test_a_pattern_in_another_dialect_is_left_to_the_grammar() -> None:
    checker = Checker({"properties": {"a": {"type": "string", "pattern": "(?i)^x$"}, "pattern": {"type": "null"}}}, "x")
    assert checker.fault('{"a": "y", "pattern": null}') is None
    assert checker.fault('{"a": 1}') is not None
    assert checker.fault('{"pattern": 1}') is not None
    assert Checker({"properties": {"default": {"pattern": "(?i)^x$"}}}, "x").fault('{"default": "y"}') is None
    assert allows({"type": "string", "pattern": "(?i)^x$"}, '"X"')
    assert not allows({"type": "string", "pattern": "(?i)^x$"}, '"y"')


def test_a_pattern_that_gives_up_is_unchecked() -> None:
    fault = Checker({"pattern": "^(a|aa)+(?!c)$"}, "x").fault(json.dumps("a" * 500 + "b"))
    assert fault == check.Fault("unchecked_arguments", "a regex would take too long")
    assert Checker({"pattern": "^(?!c)[ab]+$"}, "x").fault('"ab"') is None
    fault = Checker({"pattern": "^(?!c)[ab]+$"}, "x").fault('"cab"')
    assert fault is not None and fault.kind == "schema_mismatch"


def test_a_pattern_with_a_large_repetition_is_checked() -> None:
    """As many tools have it."""
    for pattern in ("^.{1,1000}$", r"^[\s\S]{0,4000}$", r"^[\p{L}\p{N}_ -]{1,255}$"):
        checker = Checker({"pattern": pattern}, "x")
        assert checker.fault('"ab"') is None
        fault = checker.fault(json.dumps("a" * 5000))
        assert fault is not None and fault.kind == "schema_mismatch"


def test_details_have_a_maximum_length() -> None:
    schema = {"additionalProperties": {"additionalProperties": {"type": "integer"}}}
    fault = Checker(schema, "x").fault(json.dumps({"k" * 10_000: {"l" * 10_000: "x"}}))
    assert fault is not None and len(fault.detail) < 400


def test_a_schema_out_of_bounds_does_not_reach_the_validator() -> None:
    with pytest.raises(SchemaRefused, match="more than"):
        check.checker({"properties": {f"p{i}": {} for i in range(20_000)}}, "x")


def test_a_checker_is_cached() -> None:
    assert check.checker({"type": "object"}, "x") is check.checker({"type": "object"}, "x")
