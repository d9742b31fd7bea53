"""JSON Schemas as Python arguments: the grammar allows written valid calls, and every allowed call is valid."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.errors import SchemaRefused
from dovetail.events import Call, Message
from tests.examples import examples
from tests.grammar.test_matcher import TOOLS, allows, tool
from tests.grammar.test_text_families import HOT, NAMES, accepts, both, constraint, encoded, ends_of, read

__all__ = ["both"]  # a fixture

# -- what the format writes -------------------------------------------------------------------------------------------

FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER
_KEYS = ("a", "city", "class", "é", "a-b", "with space", 'q"t', "", "_x1")
_strings = st.text(st.characters(codec="utf-8"), max_size=6)
_words = st.sampled_from(("c", "it's", 'a"b', "back\\slash", "line\nline", "True", "é漢🙂", ""))


@st.composite
def _sorts(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any]:
    """A schema and a value that is valid to it, with keys in the order of the schema."""
    scalar = ("string", "lengths", "pattern", "format", "integer", "bounds", "number", "boolean", "null", "enum", "any")
    kind = draw(st.sampled_from((*scalar, *("array", "tuple", "object", "anyOf", "allOf", "types") * bool(depth))))
    match kind:
        case "string":
            return {"type": "string"}, draw(_strings)
        case "lengths":
            low, more = draw(st.integers(0, 3)), draw(st.integers(0, 3))
            characters = st.characters(codec="utf-8")
            return {"type": "string", "minLength": low, "maxLength": low + more}, draw(
                st.text(characters, min_size=low, max_size=low + more)
            )
        case "pattern":
            return {"type": "string", "pattern": "^[a-c]{1,3}$"}, draw(st.text("abc", min_size=1, max_size=3))
        case "format":
            return {"type": "string", "format": "date"}, "2024-02-29"
        case "integer":
            return {"type": "integer"}, draw(st.integers())
        case "bounds":
            return {"type": "integer", "minimum": -5, "exclusiveMaximum": 100}, draw(st.integers(-5, 99))
        case "number":
            return {"type": "number"}, draw(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
        case "boolean":
            return {"type": "boolean"}, draw(st.booleans())
        case "null":
            return {"type": "null"}, None
        case "enum":
            values = draw(st.lists(_words | st.integers(-9, 99) | st.booleans() | st.none(), min_size=1, max_size=4))
            values += draw(st.sampled_from(([], [{"x": [True, None]}])))
            return {"enum": values}, draw(st.sampled_from(values))
        case "array":
            item = draw(_sorts(depth - 1))[0]
            values = [value for _ in range(draw(st.integers(0, 3))) if (value := draw(_value(item))) is not _NO_VALUE]
            bounds = draw(st.sampled_from(({}, {"minItems": len(values)}, {"maxItems": len(values) + 1})))
            return {"type": "array", "items": item, **bounds}, values
        case "tuple":
            first, second = draw(_sorts(depth - 1)), draw(_sorts(depth - 1))
            few = draw(st.booleans())
            schema = {"type": "array", "prefixItems": [first[0], second[0]], "items": few, "minItems": 1}
            return schema, draw(st.sampled_from(([first[1]], [first[1], second[1]])))
        case "object":
            return draw(_objects(depth - 1))
        case "anyOf" | "types":
            some = [draw(_sorts(depth - 1)) for _ in range(2)]
            return {"anyOf": [schema for schema, _ in some]}, draw(st.sampled_from(some))[1]
        case "allOf":
            schema, value = draw(_sorts(depth - 1))
            return {"allOf": [schema], "description": "so"}, value
    return draw(st.sampled_from(({}, True))), draw(_json)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _strings,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(("k", "é", 'a"b')), inner, max_size=2),
    max_leaves=4,
)
_NO_VALUE = object()


@st.composite
def _value(draw: st.DrawFn, schema: Any) -> Any:
    """A value for a schema that was drawn before: one of a few simple ones, if any of them is valid."""
    few = ["", "c", "abc", "2024-02-29", 0, 7, 1.5, True, None, [], {}, [1], ["a"], {"a": 1}]
    few += schema.get("enum", []) if isinstance(schema, dict) else []
    valid = [it for it in few if jsonschema.Draft202012Validator(schema, format_checker=FORMATS).is_valid(it)]
    return draw(st.sampled_from(valid)) if valid else _NO_VALUE


@st.composite
def _objects(draw: st.DrawFn, depth: int) -> tuple[dict[str, Any], dict[str, Any]]:
    keys = draw(st.lists(st.sampled_from(_KEYS), unique=True, max_size=4))
    members = {key: draw(_sorts(depth)) for key in keys}
    required = [key for key in keys if draw(st.booleans())]
    made = {key: value for key, (_, value) in members.items() if key in required or draw(st.booleans())}
    schema: dict[str, Any] = {"type": "object", "properties": {key: it for key, (it, _) in members.items()}}
    if required:
        schema["required"] = required
    match draw(st.sampled_from(("open", "closed", "typed", "unsaid"))):
        case "open":
            schema["additionalProperties"] = True
            made |= draw(st.dictionaries(st.sampled_from(("cit", "cityx", "b c", "_", "ab", "漢")), _json, max_size=2))
        case "closed":
            schema["additionalProperties"] = False
        case "typed":
            schema["additionalProperties"] = {"type": "boolean"}
            made |= draw(st.dictionaries(st.sampled_from(("clas", "x")), st.booleans(), max_size=2))
    return schema, made


@pytest.mark.slow
@given(drawn=_objects(2), twice=st.booleans(), text=st.sampled_from(("", "Hm, [1] <b> ", " ", "f(x)")))
@examples(150)
@pytest.mark.parametrize("name", NAMES)
def test_written_calls_are_allowed_and_read_back(
    name: str, drawn: tuple[dict[str, Any], dict[str, Any]], twice: bool, text: str
) -> None:
    schema, arguments = drawn
    jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(arguments)
    if not llguidance_takes(arguments) and name == "llama3_json":
        return
    fmt, tokenizer = dovetail.format(name), HOT[name]
    sent = Message(text, "", (Call("call_0", "f", json.dumps(arguments, ensure_ascii=False)),) * (1 + twice))
    ids = fmt.write(sent, thinking=False).ids(tokenizer)
    for strict in ("schema", "names"):
        assert allows(constraint(name, tokenizer, [tool("f", schema)], strict=strict), ids), fmt.write(sent).text
    message = read(name, ids, [tool("f", schema)])
    assert message.content == text
    assert [json.loads(call.arguments) for call in message.calls] == [arguments] * len(sent.calls)


def llguidance_takes(value: Any) -> bool:
    """Its JSON strings know DEL only as an escape, and no key comes twice in two spellings."""
    return "\x7f" not in json.dumps(value, ensure_ascii=False)


@pytest.mark.slow
@given(drawn=_objects(2), other=_json)
@examples(150)
def test_invalid_arguments_are_refused_as_python(drawn: Any, other: Any) -> None:
    """Each member of a valid call with another value."""
    schema, arguments = drawn
    pythonic = dovetail.format("pythonic").grammar([tool("f", schema)])
    assert pythonic is not None
    if list(pythonic.unenforced("lark")):
        return
    for key in arguments:
        wrong = {**arguments, key: other}
        sent = Message("", "", (Call("call_0", "f", json.dumps(wrong, ensure_ascii=False)),))
        ids = dovetail.format("pythonic").write(sent, thinking=False).ids(HOT["pythonic"])
        if allows(constraint("pythonic", HOT["pythonic"], [tool("f", schema)]), ids):
            jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(wrong)


# -- schemas as Python ------------------------------------------------------------------------------------------------

_TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "required": ["root"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
}


def python(schema: dict[str, Any], text: str) -> bool:
    return accepts("pythonic", f"[f({text})]", [tool("f", schema)])


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            _TREE,
            ['root={"v": 1}', "root={'v': 1, 'next': [{'v': 2, 'next': []}]}"],
            ["root={}", 'root={"v": 1, "w": 2}'],
        ),
        (of({"anyOf": [{"type": "string"}, {"type": "null"}]}), ["a=None", "a='x'"], ["a=1", ""]),
        (of({"type": ["integer", "null"]}), ["a=None", "a=-3"], ["a=1.5", "a='x'", "a=01"]),
        (of({"oneOf": [{"const": 1}, {"const": "x"}]}), ["a=1", "a='x'", 'a="x"'], ["a=2"]),
        (of({"type": "string", "enum": ["x", 1]}), ["a='x'"], ["a=1"]),
        (of({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}), ["a=[True]"], ["a=[]"]),
        (
            of({"type": "array", "prefixItems": [{"type": "null"}], "items": False}),
            ["a=[]", "a=[None]"],
            ["a=[None,1]"],
        ),
        (of({"items": [{"type": "null"}], "type": "array"}), ["a=[None, 1]"], ["a=[1]"]),
        (of({"type": "array", "maxItems": 0}), ["a=[]"], ["a=[1]"]),
        (of({"type": "object", "properties": {"b": False}}), ["a={}", "a={'c': 1}"], ["a={'b': 1}"]),
        (of({"type": "object", "required": ["b"]}), ["a={'b': 1}", "a={'b': 1, 'c': 2}"], ["a={}", "a={'c': 1}"]),
        (of({"type": "number", "minimum": 1, "maximum": 2}), ["a=1", "a=1.5"], ["a=0", "a=3"]),
        (of({"type": "string", "minLength": 2}), ["a='xy'", r"a='\n\''"], ["a='x'", "a=''"]),
        ({"type": "object", "properties": {"a-b": {"type": "null"}}}, ['**{"a-b": None}', ""], ['**{"a-b": 1}']),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}},
            ["a=None", "b=1", "a=None, ab=1"],
            ["a=1", "b=1,a=1"],
        ),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]},
            ["b=1", "a=1, b=2"],
            ["a=1", "", "b=1,"],
        ),
        (
            {"type": "object", "$ref": "#/$defs/x", "$defs": {"x": of({"type": "null"})}},
            ["a=None"],
            ["a=1", ""],
        ),
    ],
    ids=lambda it: json.dumps(it)[:50],
)
def test_schemas_as_python(schema: dict[str, Any], valid: list[str], invalid: list[str]) -> None:
    assert [text for text in valid if not python(schema, text)] == []
    assert [text for text in invalid if python(schema, text)] == []


def test_keywords_that_python_does_not_enforce_are_listed() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "uniqueItems": True, "contains": {}},
            "b": {"anyOf": [{"type": "string", "pattern": "^a", "maxLength": 3}, {"type": "number", "multipleOf": 2}]},
            "c": {"not": {}, "title": "x", "uniqueItems": False},
            "d~/": {"oneOf": [{"type": "string"}, {"maxLength": 3}]},
            "e": {"$ref": "#/properties/b", "type": "string"},
        },
        "patternProperties": {"^x": {}},
    }
    grammar = dovetail.format("pythonic").grammar([tool("f", schema)])
    assert grammar is not None
    nowhere = ["/patternProperties", "/properties/a/uniqueItems", "/properties/a/contains", "/properties/c/not"]
    nowhere += ["/properties/d~0~1/oneOf", "/properties/e/type"]
    origin = "tools[0].function.parameters"
    assert sorted(grammar.unenforced("lark")) == sorted((origin, f"#{it}") for it in nowhere)
    leaves = [f"/properties/b/anyOf/{it}" for it in ("0/pattern", "0/maxLength", "1/multipleOf")]
    assert sorted(grammar.unenforced("structural_tag")) == sorted((origin, f"#{it}") for it in (*nowhere, *leaves))


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (of({"type": "strin"}), "#/properties/a/type is no type"),
        (of({"$ref": "#/nowhere"}), "points at nothing"),
        (of({"$ref": "#/properties/a"}), "#/properties/a/$ref refers to a schema of which every value is infinite"),
        (of(False), "nothing can be valid to #"),
        (of({"enum": []}), "nothing can be valid to #"),
        (of({"type": "string", "minLength": 3, "maxLength": 2}), "nothing can be valid to #"),
        (of({"type": "array", "minItems": 2, "prefixItems": [{}], "items": False}), "nothing can be valid to #"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            "#/properties/a/$ref refers to a schema of which every value is infinite",
        ),
        (of({"anyOf": []}), "#/properties/a/anyOf is no list"),
        (of({"items": 3}), "#/properties/a/items is no JSON Schema"),
        (of({"type": "array", "minItems": "x"}), "#/properties/a/minItems is no number"),
        ({"type": "object", "properties": 3}, "has no valid properties"),
        (
            of({"required": [f"k{i}" for i in range(1001)]}),
            "#/properties/a makes more than 1000 properties",
        ),
        (of({"anyOf": [{"anyOf": [{"type": "string"}] * 30}] * 30}), ""),
    ],
    ids=lambda it: json.dumps(it)[:50],
)
def test_invalid_schemas_are_refused(schema: dict[str, Any], complaint: str) -> None:
    fmt = dovetail.format("pythonic")
    if not complaint:
        assert fmt.grammar([tool("f", schema)]) is not None
        return
    strict = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    with pytest.raises(SchemaRefused, match=re.escape(complaint)) as caught:
        fmt.grammar([TOOLS[0], strict])
    assert caught.value.param == "tools[1].function.parameters"
    assert fmt.grammar([TOOLS[0], tool("f", schema)], strict="names") is not None


@given(drawn=_objects(2))
@examples(30)
def test_both_writers_allow_written_python(drawn: Any, both: Any) -> None:
    schema, arguments = drawn
    fmt, tokenizer = dovetail.format("pythonic"), HOT["pythonic"]
    sent = Message("", "", (Call("call_0", "f", json.dumps(arguments, ensure_ascii=False)),))
    ids = fmt.write(sent, thinking=False).ids(tokenizer)
    matchers = both(fmt.grammar([tool("f", schema)]), tokenizer, tuple(ends_of("pythonic", tokenizer)))
    assert matchers.accepted_counts(ids) == (len(ids), len(ids))


def test_schemas_as_python_in_a_tag(both: Any) -> None:
    """Recursion, choices, lists and objects, token by token."""
    schema = of(
        {"anyOf": [{"type": "array", "items": {"$ref": "#/properties/a"}, "maxItems": 2}, {"enum": ["x", True]}]}
    )
    grammar = dovetail.format("pythonic").grammar([tool("f", schema)])
    tokenizer = HOT["pythonic"]
    ends = tuple(ends_of("pythonic", tokenizer))
    pieces = ["[", "]", ", ", "'x'", '"x"', "True", "1", " "]
    matchers = both(grammar, tokenizer, ends)
    for made in product(pieces, repeat=4):
        ids = [*encoded(f"[f(a={''.join(made)})]", tokenizer), ends[0]]
        first, second = matchers.accepted_counts(ids)
        assert first == second, made
        matchers.first.rollback(first)
        matchers.second.rollback(second)
