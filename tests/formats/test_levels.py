"""What is pinned of an answer, in every family: `strict`, `tool_choice`, `parallel_tool_calls`, `response_format`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

import dovetail
from dovetail.conversation import check_response_format, check_tools
from dovetail.errors import InvalidRequest
from dovetail.events import Call, Message
from dovetail.formats.answers.tool_choice import requires_call, resolve_tool_choice
from dovetail.formats.declared.declared import markup
from dovetail.grammar.matcher import compile
from dovetail.tokens import Prompt
from tests.grammar.test_matcher import allows
from tests.reading import families

VALID, INVALID = '{"city": "Paris"}', '{"town": "Paris"}'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def tool(name: str, strict: bool | None = None) -> dict[str, Any]:
    function = {"name": name, "parameters": SCHEMA, "strict": strict}
    return {"type": "function", "function": function}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


TOOLS = [tool("weather"), tool("news")]
#: What a model may say: its calls, each of a name and arguments.
ANSWERS: dict[str, list[tuple[str, str]]] = {
    "nothing": [],
    "weather": [("weather", VALID)],
    "news": [("news", VALID)],
    "wrong weather": [("weather", INVALID)],
    "wrong news": [("news", INVALID)],
    "undeclared": [("rm", VALID)],
    "two": [("weather", VALID), ("weather", VALID)],
}


def ends(name: str) -> list[int]:
    control = families.tokenizer_of(name).control
    return [control[literal] for literal in families.format_of(name).end_of_turn if literal in control]


#: Families whose calls may begin without their marker: with what can be text.
UNMARKED = {"llama3_json": "<|python_tag|>", "pythonic": "<|python_start|>", "xlam": "<tool_call>"}

#: Families in which a call is a message of its own, to its tool.
IN_MESSAGES = ("functionary", "muse")


def accepts(
    name: str,
    grammar: Any,
    content: str = "",
    calls: Iterable[tuple[str, str]] = (),
    *,
    thinking: bool = False,
    marked: bool = False,
) -> bool:
    """Whether `grammar` allows what the family writes to say this, up to the end of the turn; `marked`: with the marker
    in front of calls that could do without."""
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    made = tuple(Call(f"functions.{called}:{i}", called, arguments) for i, (called, arguments) in enumerate(calls))
    reasoning = "hm" if thinking and fmt.reasoning != "none" else ""
    ids = list(fmt.write(Message(content, reasoning, made), thinking=thinking).ids(tokenizer))
    if marked and made and name in UNMARKED:
        assert not content + reasoning
        ids[0:0] = Prompt(markup(UNMARKED[name], tuple(tokenizer.control))).ids(tokenizer)
    return allows(compile(grammar, tokenizer, ends(name)), ids)


def taken(name: str, tools: Any = TOOLS, **asked: Any) -> set[str]:
    """Which of `ANSWERS` the family's grammar allows; all of them where there is none. An answer may be silent."""
    grammar = families.format_of(name).grammar(tools, thinking=False, silent=True, **asked)
    return {answer for answer, calls in ANSWERS.items() if grammar is None or accepts(name, grammar, calls=calls)}


EVERYTHING = set(ANSWERS)
NAMES = EVERYTHING - {"undeclared"}
VALID_ONLY = {"nothing", "weather", "news", "two"}
WEATHER = {"nothing", "weather", "two"}
#: Options of a request, and the answers that its grammar allows.
LEVELS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, VALID_ONLY),
    ({"strict": "names"}, NAMES),
    ({"strict": "off"}, EVERYTHING),
    # A tool's own word is for its arguments.
    ({"tools": [tool("weather", True), tool("news")], "strict": "names"}, NAMES - {"wrong weather"}),
    ({"tools": [tool("weather", True), tool("news")], "strict": "off"}, NAMES - {"wrong weather"}),
    ({"tools": [tool("weather", False), tool("news")]}, VALID_ONLY | {"wrong weather"}),
    ({"tools": [tool("weather", False), tool("news", False)], "strict": "off"}, EVERYTHING),
    ({"tools": [tool("weather", True), tool("news", False)], "strict": "off"}, NAMES - {"wrong weather"}),
    # Which tools.
    ({"tool_choice": "required"}, VALID_ONLY - {"nothing"}),
    ({"tool_choice": "required", "strict": "off"}, NAMES - {"nothing"}),
    ({"tool_choice": "none"}, {"nothing"}),
    ({"tool_choice": "none", "strict": "off"}, {"nothing"}),
    ({"tool_choice": named("news")}, {"news"}),
    ({"tool_choice": named("news"), "strict": "names"}, {"news", "wrong news"}),
    ({"tool_choice": allowed("auto", "weather")}, WEATHER),
    ({"tool_choice": allowed("required", "weather")}, WEATHER - {"nothing"}),
    ({"tool_choice": allowed("auto", "weather"), "strict": "off"}, WEATHER | {"wrong weather"}),
    ({"tool_choice": allowed("auto", "news", "weather"), "strict": "off"}, NAMES),
    ({"tool_choice": allowed("auto", "news"), "strict": "names"}, {"nothing", "news", "wrong news"}),
    # How many calls.
    ({"parallel_tool_calls": False}, VALID_ONLY - {"two"}),
    ({"parallel_tool_calls": False, "strict": "off"}, NAMES - {"two"}),
    ({"parallel_tool_calls": False, "tool_choice": "required"}, {"weather", "news"}),
]


@pytest.mark.parametrize("name", families.NAMES)
def test_a_pinned_tool_choice_is_enforced_at_every_level(name: str) -> None:
    in_text = families.opens_in_text(name) and name not in IN_MESSAGES
    for asked, may in LEVELS:
        if name in families.ONE_CALL and may != EVERYTHING:
            may = may - {"two"}
        if (name in UNMARKED or in_text) and asked.get("tool_choice") == "none":
            may = EVERYTHING  # it is text, and is read as text
        assert taken(name, **asked) == may, asked


# -- response formats -------------------------------------------------------------------------------------------------


def schema_format(schema: Any = SCHEMA, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


OBJECT = {"type": "json_object"}
#: Contents, by what they are: an answer to a schema, another object, no object.
FITTING = (VALID, '{\n  "city": "R\\u0001 \\"é\\""\n}')
OTHER = (INVALID, "{}", '{"city": "Paris", "days": [1, null]}')
NONE = ("", "Paris.", "[]", "3", VALID + " It is.", "```json\n" + VALID + "\n```", '{"city": "Paris"')
THINKING = [name for name in families.NAMES if families.format_of(name).reasoning != "none"]


@pytest.mark.parametrize("name", families.NAMES)
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(
    ("tools", "strict"), [(None, "schema"), (TOOLS, "off"), (TOOLS, "schema")], ids=["no tools", "off", "schema"]
)
def test_content_is_of_the_response_format(name: str, thinking: bool, tools: Any, strict: Any) -> None:
    fmt = families.format_of(name)
    for wanted, good, bad in (
        (schema_format(), FITTING, OTHER + NONE),
        (schema_format(strict=False), FITTING + OTHER, NONE),
        (OBJECT, FITTING + OTHER, NONE),
    ):
        grammar = fmt.grammar(tools, thinking=thinking, response_format=wanted, strict=strict)
        assert grammar is not None
        for content in good:
            assert accepts(name, grammar, content, thinking=thinking), content
        for content in bad:
            assert not accepts(name, grammar, content, thinking=thinking), content


@pytest.mark.parametrize("name", families.NAMES)
@pytest.mark.parametrize("thinking", [True, False])
def test_beside_a_response_format_there_are_calls_or_content(name: str, thinking: bool) -> None:
    fmt = families.format_of(name)
    for choice, calls, content in (("auto", True, True), ("required", True, False), ("none", False, True)):
        for strict in ("off", "schema"):
            grammar = fmt.grammar(
                TOOLS, tool_choice=choice, strict=strict, thinking=thinking, response_format=schema_format()
            )
            assert grammar is not None

            def permits(text: str, *calls: str, grammar: Any = grammar) -> bool:
                made = [("weather", call) for call in calls]
                return accepts(name, grammar, text, made, thinking=thinking, marked=not text)

            assert permits(VALID) is content
            assert permits("", VALID) is calls
            assert permits("", INVALID) is (calls and strict == "off")  # names are enforced whenever anything is
            assert not permits("Let me see.", VALID)
            assert not accepts(name, grammar, "", [("rm", VALID)], thinking=thinking, marked=True)


@pytest.mark.parametrize("name", families.NAMES)
@pytest.mark.parametrize("thinking", [True, False])
def test_content_that_the_grammar_allows_is_read_as_content(name: str, thinking: bool) -> None:
    """Even JSON that looks like the family's calls, where its grammar allows that for content."""
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    reasoning = "hm" if thinking and fmt.reasoning != "none" else ""
    grammar = fmt.grammar(TOOLS, thinking=thinking, response_format=OBJECT)
    assert grammar is not None
    for content in (
        VALID,
        '{"name": "weather", "parameters": {"city": "Paris"}}',
        '{"a": "[weather(city=1)] <function=weather> <invoke name=weather> <tool_call>"}',
    ):
        ids = list(fmt.write(Message(content, reasoning), thinking=thinking).ids(tokenizer))
        assert allows(compile(grammar, tokenizer, ends(name)), ids)
        reader = fmt.reader(TOOLS, thinking=None if thinking else False, tokenizer=tokenizer, structured=True)
        message = dovetail.fold([*reader.feed("", ids), *reader.finish()])
        assert (message.content.strip(), message.calls) == (content, ())


def test_white_space_comes_to_an_end() -> None:
    """A model that is fond of it would write nothing else; what pretty printers write is all there."""
    grammar = dovetail.format("kimi_k25").grammar(response_format=OBJECT, thinking=False)
    for indent in (None, 1, 2, 4, "\t"):
        assert accepts("kimi_k25", grammar, json.dumps({"a": [{"b": [[], {}]}], "c": {"d": {}}}, indent=indent))
    for space in (" " * 40, "\n\n", "\n" + " " * 40):
        for content in (f'{{{space}"a": 1}}', f'{{"a":{space}1}}', f'{{"a": [1{space}]}}'):
            assert not accepts("kimi_k25", grammar, content)


def test_a_schema_may_be_of_anything() -> None:
    fmt = dovetail.format("kimi_k25")
    for schema, good, bad in (
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", '["a"]'),
        ({"enum": ["yes", "no"]}, '"yes"', '"maybe"'),
        ({}, "null", "nothing"),
    ):
        grammar = fmt.grammar(response_format=schema_format(schema), thinking=False)
        assert accepts("kimi_k25", grammar, good) and not accepts("kimi_k25", grammar, bad)
        loose = fmt.grammar(response_format=schema_format(schema, strict=False), thinking=False)
        assert accepts("kimi_k25", loose, good)


def test_text_is_no_response_format() -> None:
    fmt = dovetail.format("kimi_k25")
    for wanted in (None, {"type": "text"}):
        assert check_response_format(wanted) is None
        assert fmt.grammar(response_format=wanted) is None
        assert fmt.grammar(TOOLS, response_format=wanted) == fmt.grammar(TOOLS)


BAD_FORMATS: list[tuple[Any, str]] = [
    ("json_object", ""),
    ([], ""),
    ({}, ".type"),
    ({"type": "json"}, ".type"),
    ({"type": ["text"]}, ".type"),
    ({"type": "json_schema"}, ".json_schema"),
    ({"type": "json_schema", "json_schema": "x"}, ".json_schema"),
    ({"type": "json_schema", "json_schema": {"schema": {}}}, ".json_schema.name"),
    (schema_format(name="a b"), ".json_schema.name"),
    (schema_format(name="a" * 65), ".json_schema.name"),
    (schema_format(name=3), ".json_schema.name"),
    (schema_format(None, strict=True), ".json_schema.schema"),
    (schema_format(None, parameters={}), ".json_schema.schema"),
    (schema_format(True), ".json_schema.schema"),
    (schema_format(strict="yes"), ".json_schema.strict"),
    (schema_format(description=3), ".json_schema.description"),
    # Other servers' words for it, which would be missed if nothing came of them.
    ({"type": "json_object", "schema": SCHEMA}, ".schema"),
    ({"type": "json_schema", "schema": SCHEMA}, ".schema"),
    ({"type": "text", "json_schema": {"name": "a", "schema": SCHEMA}}, ".json_schema"),
]


@pytest.mark.parametrize(("wanted", "field"), BAD_FORMATS, ids=[json.dumps(wanted)[:60] for wanted, _ in BAD_FORMATS])
def test_a_wrong_response_format_is_named(wanted: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        dovetail.format("kimi_k25").grammar(response_format=wanted)
    assert refused.value.param == f"response_format{field}"
    assert refused.value.message.startswith(f"response_format{field}")


# -- shapes -----------------------------------------------------------------------------------------------------------


def test_no_tool_choice_is_auto() -> None:
    assert resolve_tool_choice(None, ()) == ("auto", {})


def test_allowed_tools_keep_their_places() -> None:
    first, second = declared = check_tools(TOOLS)
    assert resolve_tool_choice(allowed("auto", "news", "weather", "news"), declared) == ("auto", {0: first, 1: second})
    assert resolve_tool_choice(allowed("required", "news"), declared) == ("required", {1: second})


WHERE = "tool_choice.allowed_tools"
BAD_CHOICES: list[tuple[Any, str]] = [
    ("maybe", "tool_choice"),
    (3, "tool_choice"),
    ({"type": "auto"}, "tool_choice"),
    ({"type": "function", "name": "weather"}, "tool_choice"),  # as in responses
    ({"type": "function", "function": {"name": ["weather"]}}, "tool_choice"),
    (named("rm"), "tool_choice"),
    ({"type": "allowed_tools"}, WHERE),
    ({"type": "allowed_tools", "mode": "auto", "tools": [named("weather")]}, WHERE),  # as in responses
    ({"type": "allowed_tools", "allowed_tools": {"tools": [named("weather")]}}, f"{WHERE}.mode"),
    (allowed("none", "weather"), f"{WHERE}.mode"),
    (allowed("auto"), f"{WHERE}.tools"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": "weather"}}, f"{WHERE}.tools"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["weather"]}}, f"{WHERE}.tools[0]"),
    (allowed("auto", "weather", "rm"), f"{WHERE}.tools[1]"),
]


@pytest.mark.parametrize(("choice", "field"), BAD_CHOICES, ids=[json.dumps(choice)[:60] for choice, _ in BAD_CHOICES])
def test_a_wrong_tool_choice_is_named(choice: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolve_tool_choice(choice, check_tools(TOOLS))
    assert refused.value.param == field
    assert refused.value.message.startswith(field)


def test_a_choice_without_tools_is_refused() -> None:
    for choice in ("required", named("weather"), allowed("auto", "weather")):
        with pytest.raises(InvalidRequest):
            resolve_tool_choice(choice, ())


@pytest.mark.parametrize("strict", ["yes", 1, []])
def test_strict_is_true_false_or_null(strict: Any) -> None:
    tools = [TOOLS[0], {"type": "function", "function": {"name": "f", "strict": strict}}]
    with pytest.raises(InvalidRequest) as refused:
        check_tools(tools)
    assert refused.value.param == "tools[1].function.strict"
    assert [each.strict for each in check_tools([tool("a", True), tool("b", False), tool("c")])] == [True, False, None]


def test_which_choices_require_a_call() -> None:
    declared = check_tools(TOOLS)
    named = {"type": "function", "function": {"name": "news"}}
    for choice in (None, "auto", "none", "required", named, allowed("auto", "news"), allowed("required", "news")):
        assert requires_call(choice) == (resolve_tool_choice(choice, declared)[0] == "required")
