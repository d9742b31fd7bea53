"""Unusable parts of a tool's schema are left out and listed. The other parts stay as they are."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

import dovetail
from dovetail.errors import SchemaRefused
from dovetail.grammar import matcher
from dovetail.grammar.schemas import drafts
from dovetail.grammar.schemas.check import Checker
from dovetail.grammar.schemas.references import pointer
from dovetail.grammar.schemas.repair import Budget, repaired
from dovetail.tokens import Tokenizer
from tests.conftest import SHARED
from tests.grammar import hostile

FMT = dovetail.format("kimi_k25")
RESTS = "depends on a part that is left out"


def of(schema: Any, **beside: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **beside}


#: A schema, the repaired schema, and the pointers that are listed.
SLOPPY: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (of({"type": "string", "required": True}), of({"type": "string"}), ["#/properties/a/required"]),
    (of({"type": "any"}), of({}), ["#/properties/a/type"]),
    (of({"type": ["string", None]}), of({}), ["#/properties/a/type"]),
    (of({"type": "string"}, required="a"), of({"type": "string"}), ["#/required"]),
    (of({"type": "string"}, additionalProperties="false"), of({"type": "string"}), ["#/additionalProperties"]),
    (of({"type": "string", "title": None, "description": 3}), of({"type": "string"}), []),
    (of({"type": "integer", "minimum": None}), of({"type": "integer"}), ["#/properties/a/minimum"]),
    (of({"type": "string", "minLength": "1"}), of({"type": "string"}), ["#/properties/a/minLength"]),
    (of({"type": "array", "items": None}), of({"type": "array"}), ["#/properties/a/items"]),
    (of(3, additionalProperties=False), of(True, additionalProperties=False), ["#/properties/a"]),
    (
        of({"anyOf": [{"type": "strin"}, 3]}),
        of({"anyOf": [{}, True]}),
        ["#/properties/a/anyOf/0/type", "#/properties/a/anyOf/1"],
    ),
    (of({"not": {"type": "strin"}}), of({}), ["#/properties/a/not/type", "#/properties/a/not"]),
    ({"properties": None}, {}, ["#/properties"]),
    ({"$schema": "mine", **of({})}, of({}), []),
    (
        {"$defs": {"x": {"type": "any"}}, **of({"$ref": "#/$defs/x"})},
        {"$defs": {"x": {}}, **of({"$ref": "#/$defs/x"})},
        ["#/$defs/x/type"],
    ),
    (
        of({"oneOf": [{"type": "number", "minimum": "0"}, {"type": "integer"}]}),
        of({}),
        ["#/properties/a/oneOf/0/minimum", "#/properties/a/oneOf"],
    ),
    ({"$defs": None, **of({})}, of({}), ["#/$defs"]),
    (of({"readOnly": "yes", "examples": "x", "$comment": 3}), of({}), []),
    (of({"items": []}), of({}), ["#/properties/a/items"]),
    ({"properties": ["a"], "additionalProperties": False}, {}, ["#/properties", "#/additionalProperties"]),
    (of({"contains": {}, "minContains": "0"}), of({}), ["#/properties/a/minContains", "#/properties/a/contains"]),
    (of(1), of(True), ["#/properties/a"]),
    (of(0), of(True), ["#/properties/a"]),
    (of({"prefixItems": [1]}), of({"prefixItems": [True]}), ["#/properties/a/prefixItems/0"]),
    (of({"items": [1, {}]}), of({"items": [True, {}]}), ["#/properties/a/items/0"]),
    (of({"items": [{}], "additionalItems": 3}), of({"items": [{}]}), ["#/properties/a/additionalItems"]),
    ({"$defs": {"old": {"type": "array", "items": 3}}}, {"$defs": {"old": {"type": "array"}}}, ["#/$defs/old/items"]),
    (
        of({"minimum": "0", "exclusiveMinimum": True}),
        of({"exclusiveMinimum": True}),
        ["#/properties/a/minimum"],
    ),
    (
        {"$schema": "http://json-schema.org/draft-04/schema#", **of(3)},
        {"$schema": "http://json-schema.org/draft-04/schema#", **of({})},
        ["#/properties/a"],
    ),
    # Identifiers.
    (of({"$id": "my id", "type": "string"}), of({"type": "string"}), ["#/properties/a/$id"]),
    (of({"$id": "http://[", "type": "string"}), of({"type": "string"}), ["#/properties/a/$id"]),
    (
        of({"$id": "my id", "$defs": {"x": {}}, "$ref": "#/$defs/x"}, **{"$defs": {"x": {"type": "string"}}}),
        of({"$defs": {"x": {}}}, **{"$defs": {"x": {"type": "string"}}}),
        ["#/properties/a/$id", "#/properties/a/$ref"],
    ),
    # References.
    (
        {"properties": {"a": {"$ref": "#/properties/b/const"}, "b": {"const": {"type": "any"}}}},
        {"properties": {"a": {}, "b": {"const": {"type": "any"}}}},
        ["#/properties/a/$ref"],
    ),
    ({"$id": "my id", **of({"$ref": "my id"})}, {"$id": "my id", **of({})}, ["#/properties/a/$ref"]),
    (
        {"$schema": "http://json-schema.org/draft-04/schema#", **of({"$ref": ["a"]})},
        {"$schema": "http://json-schema.org/draft-04/schema#", **of({})},
        ["#/properties/a/$ref"],
    ),
    (of({"$recursiveRef": "#/nowhere"}), of({}), ["#/properties/a/$recursiveRef"]),
    (of({"$ref": "#/$defs/x", "type": "string"}), of({"type": "string"}), ["#/properties/a/$ref"]),
    (of({"$ref": "http://127.0.0.1:1/x"}), of({}), ["#/properties/a/$ref"]),
    (of({"$dynamicRef": "#x"}), of({}), ["#/properties/a/$dynamicRef"]),
    (of({"$ref": "#/properties/a/title", "title": "t"}), of({"title": "t"}), ["#/properties/a/$ref"]),
    (of({"not": {"$ref": "#/$defs/x"}}), of({}), ["#/properties/a/not/$ref", "#/properties/a/not"]),
    ({"$defs": [], **of({"$ref": "#/$defs/0"})}, of({}), ["#/$defs", "#/properties/a/$ref"]),
    (
        {"components": {"x": {"type": "any"}, "y": {}}, **of({"$ref": "#/components/x"})},
        {"components": {"x": {}, "y": {}}, **of({"$ref": "#/components/x"})},
        ["#/components/x/type"],
    ),
    # Patterns.
    (of({"pattern": "(", "minLength": 1}), of({"minLength": 1}), ["#/properties/a/pattern"]),
    (of({"pattern": r"^\d+\Z"}), of({}), ["#/properties/a/pattern"]),
    (
        {"patternProperties": {"(": {}, "b": {"type": "null"}}, "additionalProperties": False},
        {},
        ["#/patternProperties", "#/additionalProperties"],
    ),
    # What rests on it.
    (
        {"$defs": {"x": {"minimum": "1"}}, **of({"oneOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]})},
        {"$defs": {"x": {}}, **of({})},
        ["#/$defs/x/minimum", "#/properties/a/oneOf"],
    ),
    (
        {"$defs": {"x": {"type": "any"}}, **of({"if": {"allOf": [{"$ref": "#/$defs/x"}]}, "then": False})},
        {"$defs": {"x": {}}, **of({"then": False})},
        ["#/$defs/x/type", "#/properties/a/if"],
    ),
    (
        of({"$ref": "#/x", "unevaluatedItems": False}),
        of({}),
        ["#/properties/a/$ref", "#/properties/a/unevaluatedItems"],
    ),
    (
        of({"contains": {"type": "any"}, "maxContains": 1}),
        of({"maxContains": 1}),
        ["#/properties/a/contains/type", "#/properties/a/contains"],
    ),
    # Types by other names, and of arguments.
    ({"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}, of({"type": "string"}), []),
    (of({"type": ["float", "None"]}, type="dict"), of({"type": ["number", "null"]}), []),
    (
        of({"anyOf": [{"type": "List", "items": {"type": "int"}}]}),
        of({"anyOf": [{"type": "array", "items": {"type": "integer"}}]}),
        [],
    ),
    ({"type": "string", "minLength": 1}, {"minLength": 1}, ["#/type"]),
    ({"type": "any"}, {}, ["#/type"]),
]
AS_THEY_ARE: list[dict[str, Any]] = [
    {},
    of({"type": "array", "items": [{"type": "string"}]}),
    of({"type": "number", "minimum": 0, "exclusiveMinimum": True}),
    of({"type": "string", "nullable": True, "x-any": 3, "default": float("nan")}),
    {"$schema": "http://json-schema.org/draft-07/schema#", **of({"type": "string"})},
    of({"const": {"type": "STRING", "$ref": "#/nowhere", "pattern": "("}, "enum": [{"type": "INT"}]}),
    of({"pattern": "(?i)x"}),
    of({"pattern": "(?P<a>x)"}),
    {"type": ["object", "null"]},
    of({"minimum": 0, "exclusiveMinimum": True}, **{"$defs": {"y": {"exclusiveMinimum": 0}}}),
    of({"exclusiveMinimum": True}),
    of({"items": [{"$ref": "#/properties/a/items/1"}, {}], "additionalItems": {"$ref": "#/properties/a/items/0"}}),
    of({"$ref": "#/properties/default"}, properties={"default": {}, "a": {"$ref": "#/properties/default"}}),
    of({"$ref": "#/components/x"}, components={"x": {"type": "string"}}),
    of({"oneOf": [{"$ref": "#/$defs/x"}]}, **{"$defs": {"x": {"not": {}}}}),
    of({"$ref": "#/properties/type"}, properties={"type": {}, "a": {"$ref": "#/properties/type"}}),
]


@pytest.mark.parametrize(("schema", "left", "lost"), SLOPPY, ids=lambda it: json.dumps(it)[:50])
def test_unusable_parts_are_left_out_and_listed(schema: dict[str, Any], left: dict[str, Any], lost: list[str]) -> None:
    before = copy.deepcopy(schema)
    result, left_out = repaired(schema)
    assert (result, sorted(left_out)) == (left, sorted(lost))
    assert result is not None and schema == before
    Checker({"type": "object", **result}, "tools")
    assert repaired(result)[0] is result


@pytest.mark.parametrize("name", ["properties", "$defs", "items", "anyOf", "type", "contains", "additionalProperties"])
def test_a_parameter_may_have_the_name_of_a_keyword(name: str) -> None:
    schema = {"properties": {name: {"type": "any", "properties": {name: {"required": True}}}, "b": {"type": "string"}}}
    left = {"properties": {name: {"properties": {name: {}}}, "b": {"type": "string"}}}
    assert repaired(schema).schema == left


@pytest.mark.parametrize("schema", AS_THEY_ARE, ids=str)
def test_keywords_of_older_drafts_stay(schema: dict[str, Any]) -> None:
    assert repaired(schema) == (schema, {})
    assert repaired(schema).schema is schema


def test_an_invalid_root_leaves_nothing() -> None:
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": True}
    assert repaired(schema) == (None, {"#": "is no JSON Schema"})


def test_collected_schemas_are_repaired_as_recorded() -> None:
    folder = SHARED / "schemas" / "walle"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    lines = [line for file in sorted(folder.rglob("valid.jsonl")) for line in file.read_text().splitlines() if line]
    assert len(lines) > 200
    for line in lines:
        # But for references from the top, which is elsewhere here, and identifiers with a fragment.
        assert {at.rpartition("/")[2] for at in repaired(of(json.loads(line))).left_out} <= {"$ref", "$id"}


def test_collected_invalid_schemas_are_served(small_tokenizer: Tokenizer) -> None:
    """Each of walle's that it says are invalid, but for what no value fits."""
    folder = SHARED / "schemas" / "walle"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    served = 0
    for file in sorted(folder.rglob("invalid.jsonl")):
        for line in filter(None, file.read_text().splitlines()):
            try:
                schema = json.loads(json.loads(line)["schema"])
            except ValueError:
                continue
            if isinstance(schema, dict):
                served += usable(of(schema), small_tokenizer)
    assert served > 100


def usable(schema: dict[str, Any], tokenizer: Tokenizer) -> bool:
    """Whether a tool that does not ask for more can have the schema. What no value fits is all that it cannot be."""
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    try:
        grammar = FMT.grammar([tool], thinking=False)
        assert grammar is not None
        matcher.compile(grammar, tokenizer, [tokenizer.control["<|im_end|>"]])
    except SchemaRefused as refusal:
        assert "nsatisfiable" in refusal.message or "no value can come to the end" in refusal.message, schema
        return False
    return True


# -- laws -------------------------------------------------------------------------------------------------------------

#: Small values of every kind.
SCALARS: list[Any] = [None, True, 0, 2, "", "b", "ab"]
VALUES = [
    *SCALARS,
    *([it, *rest] for it in SCALARS[:5] for rest in ([], ["ab"], [None, 2])),
    *({key: it, **rest} for key in "ab" for it in SCALARS for rest in ({}, {"c": 0}, {"b": None})),
    [],
    {},
    {"a": {"a": 2}},
    {"a": ["ab"]},
]
#: A valid schema, and the same with an unusable part.
SPOILED: list[tuple[Any, Any]] = [
    ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": "1"}),
    ({"type": ["string", "null"]}, {"type": ["string", "nothing"]}),
    ({"type": "string", "pattern": "^b"}, {"type": "string", "pattern": "("}),
    ({"$ref": "#/$defs/number"}, {"$ref": "#/$defs/none"}),
    ({"type": "number"}, 5),
    ({"required": ["a"], "type": "object"}, {"required": "a", "type": "object"}),
    *(
        ({keyword: inner, "additionalProperties": False}, {keyword: 5, "additionalProperties": False})
        for keyword, inner in (("properties", {"a": {}}), ("patternProperties", {"^a": {}}))
    ),
    (
        {"patternProperties": {"^a": {}}, "additionalProperties": False},
        {"patternProperties": {"(": {}}, "additionalProperties": False},
    ),
    ({"prefixItems": [{}], "items": {"type": "null"}}, {"prefixItems": {}, "items": {"type": "null"}}),
    ({"contains": {"type": "null"}, "minContains": 0}, {"contains": {"type": "null"}, "minContains": "0"}),
]
#: Places of a schema in a schema.
AROUND: list[Callable[[Any], dict[str, Any]]] = [
    lambda it: {"allOf": [it]},
    lambda it: {"not": it},
    lambda it: {"not": {"not": it}},
    lambda it: {"oneOf": [it, {"type": "null"}, {"type": "number"}]},
    lambda it: {"anyOf": [{"type": "boolean"}, it]},
    lambda it: {"if": it, "then": False},
    lambda it: {"if": it, "else": False},
    lambda it: {"if": {"type": "object"}, "then": it, "else": it},
    lambda it: {"contains": it, "maxContains": 1, "minContains": 0},
    lambda it: {"items": it, "maxItems": 1},
    lambda it: {"properties": {"a": it}, "additionalProperties": False},
    lambda it: {"properties": {"c": {}}, "additionalProperties": it},
    lambda it: {"propertyNames": it},
    lambda it: {"dependentSchemas": {"a": it}},
    lambda it: {"allOf": [it], "unevaluatedProperties": False},
    lambda it: {"anyOf": [it, {"type": "object"}], "unevaluatedProperties": False, "unevaluatedItems": False},
    lambda it: {"properties": {"a": {"not": {"properties": {"a": it}}}}},
]
PLACED: list[Callable[[Any, Callable[[Any], Any]], dict[str, Any]]] = [
    lambda it, around: around(it),
    lambda it, around: {**around({"$ref": "#/$defs/x"}), "$defs": {"x": it, "number": {"type": "number"}}},
    lambda it, around: {**around({"$ref": "#/more/x"}), "more": {"x": {"allOf": [it]}}},
]


def pairs() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for placed, around, (well, worse) in itertools.product(PLACED, AROUND, SPOILED):
        number = {"$defs": {"number": {"type": "number"}}}
        yield {**number, **placed(well, around)}, {**number, **placed(worse, around)}


def test_a_repair_only_allows_more() -> None:
    rested = 0
    for schema, worse in pairs():
        result, left_out = repaired(worse)
        assert result is not None and left_out
        rested += RESTS in left_out.values()
        before, after = (Draft202012Validator(it, offline=True) for it in (schema, result))
        for value in VALUES:
            assert not before.is_valid(value) or after.is_valid(value), (worse, result, value)
    assert rested > 100


def test_the_list_is_exactly_what_was_left_out() -> None:
    for schema, worse in pairs():
        assert repaired(schema).schema is schema
        result, left_out = repaired(worse)
        remaining, before = (set(map(pointer, places(it))) for it in (result, worse))
        assert remaining <= before
        for at in before:
            if any(at == lost or at.startswith(f"{lost}/") for lost in left_out):
                assert at not in remaining or at_pointer(result, at) is True
            else:
                below = any(lost.startswith(f"{at}/") for lost in left_out)
                assert at in remaining and (below or at_pointer(result, at) == at_pointer(worse, at))


@pytest.mark.slow
def test_a_repaired_schema_is_usable(small_tokenizer: Tokenizer) -> None:
    for _, worse in pairs():
        result, _ = repaired(worse)
        assert result is not None and repaired(result).schema is result
        Checker({**result, "type": "object"}, "tools")
        usable(worse, small_tokenizer)


#: Keywords, each with possible values; a function makes a value from a schema.
RUBBISH: Any = [None, True, False, 0, 2.5, "x", [], {}, [1], ["a", "a"], {"a": 1}]
KEYWORDS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    **dict.fromkeys(("items", "prefixItems", "anyOf"), lambda one: [one(), one()]),
    **dict.fromkeys(("additionalItems", "not", "if", "then", "contains", "unevaluatedItems"), lambda one: one()),
    **dict.fromkeys(
        ("properties", "$defs", "dependencies", "patternProperties"), lambda one: {"a": one(), "if": one()}
    ),
    **dict.fromkeys(("minimum", "minContains", "maximum", "const", "default"), lambda _: 1),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), lambda _: True),
    "type": lambda _: ["array", "int"],
    "pattern": lambda _: "(",
    "$id": lambda _: "my id",
}
POINTERS = ("#", "#/$defs/a", "#/properties/a/items/0", "#/items/1", "#/properties/if/additionalItems", "#/not/const")


def any_schema(rng: random.Random, depth: int) -> Any:
    """Of older drafts and of the newest, with rubbish here and there."""
    if not depth or rng.random() < 0.1:
        return rng.choice([True, {}, *RUBBISH])
    schema: dict[str, Any] = {"$ref": rng.choice(POINTERS)} if rng.random() < 0.2 else {}
    for keyword in rng.sample([*KEYWORDS], 4):
        well = KEYWORDS[keyword](lambda: any_schema(rng, depth - 1))
        schema[keyword] = rng.choice(RUBBISH) if rng.random() < 0.1 else well
    return schema


@pytest.mark.slow
def test_the_check_accepts_every_repaired_schema() -> None:
    rng = random.Random(7)
    for _ in range(500):
        schema = any_schema(rng, 3)
        if isinstance(schema, dict):
            result, left_out = repaired(schema)
            assert result is not None and "#" not in left_out
            assert repaired(result).schema is result
            Checker({**result, "type": "object"}, "tools")


def places(part: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for step, value in inner:
        yield (*above, str(step))
        yield from places(value, (*above, str(step)))


def at_pointer(schema: Any, at: str) -> Any:
    for step in at.split("/")[1:]:
        schema = schema[int(step)] if isinstance(schema, list) else schema[step]
    return schema


# -- bounds -----------------------------------------------------------------------------------------------------------


def wide(schema: Any, count: int = 4_900, **beside: Any) -> dict[str, Any]:
    return {"properties": {f"k{i}": schema(i) if callable(schema) else schema for i in range(count)}, **beside}


#: Schemas that are slow to repair if a part is read again and again, with the number of places that are left out.
LARGE: dict[str, tuple[dict[str, Any], int]] = {
    "deep": (hostile.nested(2_000, hostile.prop), 0),
    "a deep value": (of({"const": hostile.nested(700, lambda it: {"a": it}), "type": "strin"}), 0),
    "faults": (wide({"items": 3, "exclusiveMinimum": "x"}, 2_000), 4_000),
    "more faults": (wide({"type": "strin", "title": None}, 6_000), 0),
    "names": ({"required": [5] * 9_990}, 1),
    "a property like a value": ({"if": of({}, properties={"default": wide({"type": "any"}, 30_000)})}, 0),
    "the same from many references": (
        {
            "elsewhere": hostile.nested(45, hostile.prop, wide({"type": "strin"}, 2_500)),
            **wide(lambda i: {"$ref": "#/elsewhere" + "/properties/a" * (45 - i)}, 46),
        },
        2_500,
    ),
    "references": (wide(lambda i: {"$ref": f"#/nowhere{i}" + "/a" * 100}), 0),
    "a chain of not": (
        {"$defs": {f"n{i}": {"not": {"$ref": f"#/$defs/n{i + 1}"}} for i in range(190)} | {"n190": {"type": 3}}},
        191,
    ),
    "patterns": (wide({"pattern": "(" * 1_000}), 4_900),
    "a large value": (of({"enum": [{"a": i} for i in range(100_000)], "type": "strin"}), 1),
    "a large text": (of({"description": "x" * 3_000_000, "type": "strin"}), 1),
}


@pytest.mark.parametrize("name", LARGE)
def test_repairs_of_large_schemas_are_bounded(name: str) -> None:
    schema, count = LARGE[name]
    result, left_out = repaired(schema)
    assert len(left_out) == count
    assert (result is schema) is (count == 0)


def test_repairs_of_a_request_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def counted(schema: Any, draft: str) -> bool:
        nonlocal reads
        reads += 1
        return is_of(schema, draft)

    is_of = drafts.is_of
    monkeypatch.setattr(drafts, "is_of", counted)
    for again in range(2):
        budget = Budget()
        sizes = [
            len(repaired({"title": f"{i}", **wide({"type": "any", "required": True}, 1_500)}, budget).left_out)
            for i in range(30)
        ]
        assert sizes[0] == 3_000 and sizes == sorted(sizes, reverse=True) and sizes[-1] == 0, again
        assert set(sizes) == {3_000, 0}
    assert reads < 150_000  # 450,000 without a budget
    usual = [of({"type": "string", "title": f"{i}", "minLength": "1"}) for i in range(1_000)]
    budget = Budget()
    assert all(repaired(schema, budget).left_out for schema in usual), "which are small"


@pytest.mark.parametrize("name", [name for name, (_, count) in LARGE.items() if not count])
def test_a_large_schema_is_refused(name: str) -> None:
    with pytest.raises(SchemaRefused):
        FMT.grammar([{"type": "function", "function": {"name": "f", "parameters": LARGE[name][0]}}])


# -- who asks ---------------------------------------------------------------------------------------------------------


def test_a_strict_tool_is_refused_instead_of_repaired() -> None:
    function = {"name": "f", "parameters": of({"type": "string", "minLength": "1"})}
    grammar = FMT.grammar([{"type": "function", "function": function}])
    assert grammar is not None
    assert list(grammar.unenforced("lark")) == [("tools[0].function.parameters", "#/properties/a/minLength")]
    with pytest.raises(SchemaRefused, match="#/properties/a is no schema"):
        FMT.grammar([{"type": "function", "function": {**function, "strict": True, "parameters": of(3)}}])


@pytest.mark.parametrize(("schema", "left", "lost"), SLOPPY, ids=lambda it: json.dumps(it)[:50])
def test_every_family_accepts_a_repaired_schema(
    schema: dict[str, Any], left: dict[str, Any], lost: list[str], small_tokenizer: Tokenizer
) -> None:
    for name in ("kimi_k25", "qwen3_coder", "hermes", "pythonic", "harmony"):
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        grammar = dovetail.format(name).grammar([tool])
        assert grammar is not None
        assert set(lost) <= {pointer for _, pointer in grammar.unenforced("lark")}
