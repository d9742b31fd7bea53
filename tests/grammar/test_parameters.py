"""Families that write one parameter at a time: the grammar allows the calls that a family writes if they are valid, and
every call that it allows reads back as valid, except for the keywords that are listed as not enforced."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

import dovetail
from dovetail.errors import SchemaRefused
from dovetail.events import Call, Message
from dovetail.formats.answers import flat_schemas as schemas
from dovetail.formats.answers.flat_schemas import NotSimpleError
from dovetail.grammar import Grammar
from dovetail.grammar.matcher import compile
from dovetail.grammar.schemas.keywords import kind_of
from dovetail.grammar.schemas.references import References
from dovetail.reading.parameter_reader import ParameterReader
from tests.conftest import SHARED
from tests.examples import examples
from tests.grammar.test_matcher import allowed, tool
from tests.reading import families
from tests.reading.test_vectors import READ_BY

TAGGED = "deepseek_v32 deepseek_v4 deepseek_v41 glm45 glm47 kimi_k3 minicpm5 minimax_m2 qwen3_coder".split()

_texts = st.lists(
    st.sampled_from(("a", "null", "true", "3", " ", "\n", "<", "</", "</b>", "{", "[", '"', "\\", "&", "é🙂", "x=1")),
    max_size=4,
).map("".join)
_PLACE = {"type": "object", "properties": {"name": {"type": "string"}, "near": {"$ref": "#/$defs/place"}}}
_UUID = "123e4567-e89b-12d3-a456-426614174000"


def _of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


#: Schemas of parameters, and values: valid ones as a rule.
_PARAMETERS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ({"type": "string"}, _texts),
    ({"type": "string", "minLength": 1, "maxLength": 3}, _texts),
    ({"type": "string", "pattern": "^[a-z]+$"}, _of("a", "null", "abc", "A", "")),
    ({"type": "string", "pattern": "[<3]", "maxLength": 9}, _texts),
    ({"type": "string", "pattern": r"a\b"}, _texts),
    ({"type": "string", "pattern": "x(^a|b)"}, _of("xb", "a")),
    ({"type": "string", "format": "uuid"}, _of(_UUID, "a")),
    ({"type": "string", "format": "hostname", "minLength": 2}, _of("a.example", "-", "a")),
    ({"enum": ["a", "b c", "", "</b>", "null"]}, _of("a", "b c", "", "</b>", "null", "x")),
    ({"type": "string", "const": "3"}, _of("3", 3)),
    ({"type": "integer", "minimum": 0, "maximum": 9}, st.integers(-1, 10)),
    ({"type": "number"}, _of(0, -1.5, 25)),
    ({"type": "boolean"}, st.booleans()),
    ({"type": "null"}, st.none()),
    ({"type": "array", "items": {"type": "string"}}, st.lists(_texts, max_size=2)),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, st.dictionaries(_of("a", "b"), st.just(3))),
    ({}, _texts | st.integers(0, 9) | st.none() | st.lists(st.booleans(), max_size=1)),
    (True, _texts | st.booleans()),
    (False, _texts),
    ({"type": ["string", "null"]}, _texts | st.none()),
    ({"type": ["string", "null"], "minLength": 5}, _texts | st.none()),
    ({"type": ["string", "integer"], "maximum": 5}, _texts | st.integers(0, 9)),
    ({"type": ["string", "boolean"], "pattern": "^a"}, _texts | st.booleans()),
    ({"enum": ["a", 3, None, [1], {"b": "c"}, "3"]}, _of("a", 3, None, [1], {"b": "c"}, "3", 4)),
    ({"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]}, _of("a", "b", None, "c")),
    ({"anyOf": [{"type": "string", "pattern": "^a+$"}, {"type": "string", "maxLength": 1}]}, _texts),
    ({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}, _texts | _of([1], ["x"])),
    ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, st.integers(0, 9) | st.none()),
    ({"allOf": [{"type": "string"}, {"minLength": 1}, {"minLength": 2}]}, _texts),
    ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, st.integers(0, 9) | _texts),
    ({"$ref": "#/$defs/place"}, _of({}, {"name": "x"}, {"name": "x", "near": {"name": "y"}}, {"name": 3})),
    ({"$ref": "#/$defs/word"}, _texts),
    ({"$ref": "#/$defs/place/properties/name"}, _texts),
    ({"$ref": "#/$defs/loop"}, _texts),
    ({"type": "string", "not": {"const": "a"}}, _texts),
    ({"nullable": True, "type": "string"}, _texts),
    ({"title": "x", "description": "y", "default": 3, "type": "string"}, _texts),
]
_DEFINITIONS = {
    "place": _PLACE,
    "word": {"type": "string", "maxLength": 4},
    "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "string"}]},
}
_KEYS = ("city", "a.b", "x-y", "é", "day")


@st.composite
def _cases(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema of parameters, and arguments in its order."""
    declared = draw(st.dictionaries(_of(*_KEYS), _of(*_PARAMETERS), max_size=3))
    properties = {key: schema for key, (schema, _) in declared.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "$defs": _DEFINITIONS}
    schema |= draw(_of({}, {"required": list(declared)[:1]}, {"required": ["more"]}, {"minProperties": 1}))
    schema |= draw(
        _of(
            *({}, {"additionalProperties": False}, {"additionalProperties": True}),
            *({"additionalProperties": {"type": kind}} for kind in ("string", "integer", ["string", "null"])),
        )
    )
    schema |= draw(_of(*[{}] * 4, {"anyOf": [{"required": [key]} for key in declared] or [{}]}, {"propertyNames": {}}))
    arguments = {key: draw(values) for key, (_, values) in declared.items() if draw(st.integers(0, 3))}
    if draw(st.booleans()):
        arguments |= {draw(_of("more", "cit")): draw(_texts | st.integers(0, 9) | st.none())}
    return schema, arguments


def _validates(schema: Any, arguments: Any) -> bool:
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    try:
        return validator.is_valid(arguments)
    except RecursionError:  # of a schema that is only itself
        reject()


def _read(name: str, schema: Any, ids: list[int]) -> dovetail.Message:
    fmt, tokenizer = dovetail.format(name), families.tokenizer_of(name)
    reader = fmt.reader([tool("act", schema)], thinking=False, tokenizer=tokenizer)
    return dovetail.fold([*reader.feed("", ids), *reader.finish()])


def _arguments(message: dovetail.Message) -> Any:
    """Those of the only call; None for anything else."""
    if [call.name for call in message.calls] != ["act"]:
        return None
    try:
        return json.loads(message.calls[0].arguments)
    except ValueError:
        return None


def _grammar(name: str, schema: Any, **options: Any) -> Grammar:
    grammar = dovetail.format(name).grammar([tool("act", schema)], thinking=False, **options)
    assert grammar is not None
    return grammar


def _takes(name: str, grammar: Grammar, ids: list[int]) -> bool:
    fmt, tokenizer = dovetail.format(name), families.tokenizer_of(name)
    matcher = compile(grammar, tokenizer, [tokenizer.control[literal] for literal in fmt.end_of_turn])
    return all(matcher.advance(token) for token in ids)


def _written(name: str, arguments: Mapping[str, Any]) -> list[int]:
    call = Call("x", "act", json.dumps(arguments, ensure_ascii=False))
    return dovetail.format(name).write(Message("", "", (call,)), thinking=False).ids(families.tokenizer_of(name))


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other)


@pytest.mark.slow
@pytest.mark.parametrize("name", TAGGED)
@given(case=_cases())
@examples(60)
def test_written_calls_are_allowed_if_and_only_if_they_are_valid(
    name: str, case: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    _is_allowed_if_valid(name, *case)


@pytest.mark.parametrize("name", ["deepseek_v32", "glm45"])
@pytest.mark.parametrize("schema", [schema for schema, _ in _PARAMETERS if "loop" not in str(schema)], ids=json.dumps)
def test_a_written_value_is_allowed_if_and_only_if_it_is_valid(name: str, schema: Any) -> None:
    root = {"type": "object", "properties": {"city": schema}, "$defs": _DEFINITIONS}
    for arguments in ({"city": value} for value in ("a", "null", 3, None, {}, ["x"])):
        _is_allowed_if_valid(name, root, arguments)


def _is_allowed_if_valid(name: str, schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    ids = _written(name, arguments)
    try:
        grammar = _grammar(name, schema)
    except SchemaRefused:
        assert not _validates(schema, arguments)
        return
    parsed = _arguments(_read(name, schema, ids))
    accepted = _takes(name, grammar, ids)
    undeclared = [key for key in arguments if key not in schema["properties"] and key not in schema.get("required", ())]
    if undeclared and not schema.get("additionalProperties", not schema["properties"]):
        assert not accepted
    elif _same(parsed, arguments) and _validates(schema, arguments):
        assert accepted
    elif accepted:
        assert parsed is not None
        assert _validates(schema, parsed) or [*grammar.unenforced("lark")]


@pytest.mark.slow
@pytest.mark.parametrize("name", TAGGED)
@given(case=_cases(), arguments=st.dictionaries(_of("a", "city", "more"), _texts | st.integers(0, 9), max_size=2))
@examples(10)
def test_with_names_alone_arguments_are_anything(
    name: str, case: tuple[dict[str, Any], dict[str, Any]], arguments: dict[str, Any]
) -> None:
    assert _takes(name, _grammar(name, case[0], strict="names"), _written(name, arguments))


@pytest.mark.slow
@pytest.mark.parametrize("name", TAGGED)
@given(case=_cases(), seed=st.integers(0, 2**32))
@examples(15)
def test_allowed_calls_read_back_as_valid(name: str, case: tuple[dict[str, Any], dict[str, Any]], seed: int) -> None:
    """A blind walk that likes what ends things."""
    schema, draws = case[0], random.Random(seed)
    fmt, tokenizer = dovetail.format(name), families.tokenizer_of(name)
    ends = [tokenizer.control[literal] for literal in fmt.end_of_turn]
    try:
        grammar = _grammar(name, schema, tool_choice="required")
    except SchemaRefused:
        return
    matcher = compile(grammar, tokenizer, ends)
    closing = (b'"', b"}", b"]", b"<", b">", b"/")
    ids: list[int] = []
    while not set(ends) & set(ids):
        assume(len(ids) < 250)
        options = sorted(allowed(matcher, tokenizer))
        controls = [token for token in options if token in tokenizer.control_literals and token not in ends]
        closers = [token for token in options if tokenizer.token_bytes(token)[:1] in closing]
        token = draws.choice(draws.choice([pool for pool in (options, controls, closers, closers) if pool]))
        assert matcher.advance(token)
        ids.append(token)
    message = _read(name, schema, ids)
    assert {defect.kind for defect in message.defects} <= {"duplicate_parameter"}
    assert message.calls and {call.name for call in message.calls} == {"act"}
    for call in message.calls:
        assert _validates(schema, json.loads(call.arguments)) or [*grammar.unenforced("lark")]


# -- what ends a value ------------------------------------------------------------------------------------------------


def _stops(name: str) -> list[str]:
    reader = dovetail.format(name).reader()
    assert isinstance(reader, ParameterReader)
    return [stop for stop in reader.value_stops if not any(literal in stop for literal in families.controls(name))]


@pytest.mark.parametrize("name", ["qwen3_coder", "minimax_m2"])
@pytest.mark.parametrize("kind", ["string", ["string", "integer"]])
@pytest.mark.parametrize("strict", ["names", "schema"])
def test_a_text_cannot_contain_the_tags_that_end_it(name: str, kind: Any, strict: Any) -> None:
    """In families whose tags are ordinary text, the text after a tag would be read as another parameter or call."""
    schema = {"type": "object", "properties": {"a": {"type": kind}}}
    grammar = _grammar(name, schema, strict=strict)
    stops = _stops(name)
    assert len(stops) > 3
    for stop in stops:
        assert not _takes(name, grammar, _written(name, {"a": f"x{stop}y"}))
        assert _takes(name, grammar, _written(name, {"a": f"x{stop[:-1]}y"}))


@pytest.mark.parametrize("name", ["qwen3_coder", "minimax_m2"])
def test_content_cannot_contain_the_beginning_of_a_call(name: str) -> None:
    fmt, tokenizer = dovetail.format(name), families.tokenizer_of(name)
    for opener in fmt.reader_type.text_openers:
        parsed = fmt.write(Message(f"x {opener}act>y</function>"), thinking=False).ids(tokenizer)
        assert not _takes(name, _grammar(name, {"type": "object"}), parsed)
        assert _takes(name, _grammar(name, {"type": "object"}, tool_choice="none"), parsed)
        plain = fmt.write(Message("x <y>"), thinking=False).ids(tokenizer)
        assert _takes(name, _grammar(name, {"type": "object"}), plain)


@pytest.mark.parametrize("name", TAGGED)
def test_json_strings_may_contain_the_tag_that_ends_a_value(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": "object"}}}
    ends = ["</p>", *(stop for stop in _stops(name) if not stop.startswith("\n"))]
    arguments = {"a": [*ends, "".join(ends)], "b": {f"{end}</x>": end for end in ends}}
    ids = _written(name, arguments)
    assert _takes(name, _grammar(name, schema), ids)
    assert _same(_arguments(_read(name, schema, ids)), arguments)


def _of_models(name: str) -> Iterator[tuple[list[Any], list[int]]]:
    """Tools, and ids of an output that reads without a defect as valid calls with nothing between or behind them."""
    fmt, tokenizer = dovetail.format(name), families.tokenizer_of(name)
    literal = re.compile("|".join(map(re.escape, sorted(tokenizer.control, key=len, reverse=True))))
    for source in sorted(kind for kind, reader in READ_BY.items() if reader == name):
        for case in json.loads((SHARED / "vectors" / f"{source}.json").read_text()):
            text = (case.get("model_text") or "").removesuffix(fmt.end_of_turn[0])
            tools = {it["function"]["name"]: it for it in case.get("tools") or ()}
            ids: list[int] = []
            for piece, control in zip(literal.split(text), [*literal.findall(text), None], strict=True):
                ids += tokenizer.encode(piece) + ([tokenizer.control[control]] if control else [])
            reader = fmt.reader([*tools.values()], thinking=False, tokenizer=tokenizer)
            message = dovetail.fold([*reader.feed("", ids), *reader.finish()])
            ended = text.rstrip().endswith(">") and text.count(fmt.reader_type.openers[0].strip()) == 1
            if ended and tools and message.calls and not message.defects:
                wanted = [tools[call.name]["function"].get("parameters") or {} for call in message.calls]
                given = [json.loads(call.arguments) for call in message.calls]
                if all(map(_validates, wanted, given)):
                    yield [*tools.values()], ids


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(READ_BY.values()) & set(TAGGED)))
def test_most_valid_calls_of_models_are_allowed(name: str) -> None:
    """The other calls lack new lines that the family's template has."""
    if not (SHARED / "vectors").is_dir():
        pytest.skip(f"the vectors of other engines ({SHARED / 'vectors'}) are not beside this checkout")
    accepted = []
    for tools, ids in _of_models(name):
        grammar = dovetail.format(name).grammar(tools, thinking=False)
        assert grammar is not None
        accepted.append(_takes(name, grammar, ids))
    assert sum(accepted) > len(accepted) / 2


# -- schemas that are no good -----------------------------------------------------------------------------------------

_LOOP: dict[str, Any] = {"properties": {"a": {"$ref": "#/properties/a"}}}


@pytest.mark.parametrize("name", ["qwen3_coder", "deepseek_v32", "kimi_k3"])
@pytest.mark.parametrize(
    ("schema", "culprit"),
    [
        ({"properties": {"a": False}, "required": ["a"]}, "#/properties/a: "),
        ({"required": ["a"], "additionalProperties": False}, "#/required: "),
        ({"anyOf": [{"properties": {"a": False}, "required": ["a"]}, False]}, "#/properties/a: "),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "#: "),
        ({"properties": {"a": {"enum": []}}, "required": ["a"]}, "#/properties/a: "),
        (
            {"properties": {"a": {"minLength": 3, "maxLength": 2, "type": "string"}}, "required": ["a"]},
            "#/properties/a: ",
        ),
        ({"properties": {"a": {"allOf": [{"const": "x"}, {"const": "y"}]}}, "required": ["a"]}, "#/properties/a: "),
        ({"$ref": "#"}, "#/$ref "),
        ({"allOf": [{"$ref": "#"}]}, "#/allOf/0/$ref "),
    ],
)
def test_a_contradiction_is_refused(name: str, schema: dict[str, Any], culprit: str) -> None:
    with pytest.raises(SchemaRefused, match=re.escape(f"cannot be enforced: {culprit}")) as caught:
        _grammar(name, schema)
    assert caught.value.param == "tools[0].function.parameters"


@pytest.mark.parametrize("name", ["qwen3_coder", "deepseek_v32", "kimi_k3"])
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/nowhere"},
        {"$ref": 3},
        {"allOf": 3},
        {"properties": 3},
        {"required": 3},
        {"anyOf": [{"required": [str(i)]} for i in range(100)]},
        {"patternProperties": {"^a": {"type": "string"}}, "properties": {"b": {"type": "string"}}},
        {"allOf": [{"patternProperties": {}}, {"properties": {}}]},
        {"properties": {"a": {"type": "string", "minLength": -1, "maxLength": 2.5}}},
        {"properties": {"a": {"anyOf": [{"type": "string", "minLength": "x"}, {"minLength": 1}]}}},
        {"if": {}, "then": {"required": ["a"]}},
        {"minProperties": 1},
    ],
    ids=lambda it: json.dumps(it)[:60],
)
def test_ambiguous_types_are_left_to_the_check(name: str, schema: dict[str, Any]) -> None:
    grammar = _grammar(name, schema)
    assert {origin for origin, _ in grammar.unenforced("lark")} <= {"tools[0].function.parameters"}
    assert [*grammar.unenforced("lark")]
    assert _takes(name, grammar, _written(name, {"a": "text"} if "properties" in schema else {"b": 3}))


@pytest.mark.parametrize("name", ["qwen3_coder", "deepseek_v32", "kimi_k3"])
def test_hostile_schemas_are_refused_or_bounded(name: str) -> None:
    deep: Any = {"type": "string"}
    for _ in range(500):
        deep = {"type": "object", "properties": {"a": deep}}
    wide = {"properties": {f"p{i}": {"enum": [f"{i}-{j}" for j in range(100)]} for i in range(100)}}
    doubling = {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}}
    fmt, tokenizer = dovetail.format(name), families.tokenizer_of(name)
    ends = [tokenizer.control[literal] for literal in fmt.end_of_turn]
    with pytest.raises(SchemaRefused, match="nested more than"):
        _grammar(name, deep)
    for schema in (wide, {**doubling, "properties": {"a": {"$ref": "#/$defs/d0"}}}, _LOOP):
        try:
            compile(_grammar(name, schema), tokenizer, ends)
        except SchemaRefused as error:
            assert error.param == "tools[0].function.parameters"


def test_unenforced_keywords_are_listed_by_pointer() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a/b": {"type": "string", "format": "hostname", "not": {"const": "a"}},
            "n": {"type": ["string", "integer"], "maximum": 3},
            "u": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/x"}},
        },
        "$defs": {"x": {"type": "array", "uniqueItems": True}},
        "minProperties": 1,
        "anyOf": [{"required": ["n"], "maxProperties": 2}, {}],
    }
    pointers = [pointer for _, pointer in _grammar("qwen3_coder", schema).unenforced("lark")]
    assert sorted(pointers) == [
        "#/$defs/x/uniqueItems",
        "#/anyOf",
        "#/minProperties",
        "#/properties/a~1b/format",
        "#/properties/a~1b/not",
        "#/properties/n/maximum",
        "#/properties/u/uniqueItems",
    ]


# -- schemas taken apart ----------------------------------------------------------------------------------------------


@given(_of(*(schema for schema, _ in _PARAMETERS)), st.data())
def test_a_value_is_valid_if_an_alternative_allows_it(schema: Any, data: st.DataObject) -> None:
    root = {"$defs": _DEFINITIONS}
    value = data.draw(st.one_of(*(values for _, values in _PARAMETERS)))
    references = References(root)
    try:
        flats = schemas.alternatives(schema, references)
    except NotSimpleError:
        assert "loop" in json.dumps(schema)
        return
    whole = {"$ref": "#/$defs/whole", **root, "$defs": {**_DEFINITIONS, "whole": schema}}
    assert _validates(whole, value) == any(_validates({**root, **flat}, value) for flat in flats)
    for flat in flats:
        kind = kind_of(value)
        only = schemas.of_kinds(flat, {kind})
        assert (only is not None and _validates({**root, **only}, value)) == _validates({**root, **flat}, value)
        assert not schemas.is_free(flat, kind) or _validates({**root, **flat}, value)
    assert _validates(schemas.carrying(schema, references), value) == _validates(whole, value)
