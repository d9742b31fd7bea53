"""Custom tools through chat completions: declared, chosen, called, answered, and refused when they are malformed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

import dovetail
from dovetail.errors import InvalidRequest
from dovetail.events import Call, Message
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, openai_client, turn_request

pytestmark = pytest.mark.anyio

NOTE = {"type": "custom", "custom": {"name": "note", "description": "Writes a note.", "format": {"type": "text"}}}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
            "additionalProperties": False,
        },
    },
}
USER = [{"role": "user", "content": "Write it down."}]
TEXT = 'a "quoted" \\ text\n\twith 🌦 and \x01'
ANSWER = Message(
    reasoning="Two calls.",
    calls=(
        Call("functions.note:0", "note", json.dumps({"input": TEXT})),
        Call("functions.add:1", "add", '{"input": "1"}'),
    ),
)
HISTORY = [
    *USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "functions.note:0", "type": "custom", "custom": {"name": "note", "input": TEXT}}],
    },
    {"role": "tool", "tool_call_id": "functions.note:0", "content": "done"},
]


@pytest.mark.parametrize("sizes", [(1,), (4, 1, 3), (10_000,)])
async def test_the_official_client_gets_the_input_whole_and_streamed(
    engine: ScriptedEngine, tok: Tokenizer, sizes: tuple[int, ...]
) -> None:
    engine.ids, engine.sizes = ids_of(ANSWER, tok), sizes
    body: Any = {"model": MODEL, "messages": USER, "tools": [NOTE, ADD], "extra_body": {"dovetail": {"strict": "off"}}}
    async with openai_client(engine, tok) as client:
        whole = (await client.chat.completions.create(**body)).choices[0]
        first, second = whole.message.tool_calls or ()
        assert first.model_dump() == {
            "id": "functions.note:0",
            "type": "custom",
            "custom": {"name": "note", "input": TEXT},
        }
        assert second.model_dump()["function"] == {"name": "add", "arguments": '{"input": "1"}'}
        assert whole.finish_reason == "tool_calls"
        calls: list[dict[str, Any]] = []
        async for chunk in await client.chat.completions.create(**body, stream=True):
            for piece in chunk.choices[0].delta.model_dump(exclude_unset=True).get("tool_calls", ()):
                if "id" in piece:
                    assert piece.pop("index") == len(calls)
                    calls.append(piece)
                elif "custom" in piece:
                    assert piece["custom"].keys() == {"input"} and piece["custom"]["input"]
                    calls[piece["index"]]["custom"]["input"] += piece["custom"]["input"]
                else:
                    calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
        assert calls == [first.model_dump(), second.model_dump()]


def test_the_prompt_shows_a_custom_tool_and_its_calls_as_a_function() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+ apples"}}
    counts = {"type": "custom", "custom": {"name": "count", "format": grammar}}
    for name in ("kimi_k25", "deepseek_v32", "kimi_k3", "harmony"):
        fmt = dovetail.format(name)
        messages, _ = fmt.repair(HISTORY, [NOTE, counts])
        prompt = fmt.render(messages, [NOTE, counts])
        assert "Writes a note." in prompt.text
        assert "[0-9]+ apples" in prompt.text
        function = {"name": "note", "arguments": json.dumps({"input": TEXT}, ensure_ascii=False)}
        called = {"id": "functions.note:0", "type": "function", "function": function}
        history = [HISTORY[0], {**HISTORY[1], "tool_calls": [called]}, HISTORY[2]]
        shown = {
            "type": "object",
            "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
            "required": ["input"],
            "additionalProperties": False,
        }
        note = {
            "type": "function",
            "function": {"name": "note", "description": "Writes a note.", "parameters": shown},
        }
        assert fmt.render(HISTORY, [NOTE]).text == fmt.render(history, [note]).text
    assert dovetail.format("kimi_k25").repair(HISTORY, [NOTE])[0][1]["tool_calls"][0]["type"] == "function"


async def test_a_chosen_custom_tool_is_called(engine: ScriptedEngine, tok: Tokenizer) -> None:
    answer = Message(calls=(Call("functions.note:0", "note", json.dumps({"input": "x"})),))
    engine.ids = ids_of(answer, tok)
    for choice in (
        {"type": "custom", "custom": {"name": "note"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "note"}}]},
        },
    ):
        body: Any = {"model": MODEL, "messages": USER, "tools": [NOTE, ADD], "tool_choice": choice}
        async with openai_client(engine, tok) as client:
            completion = await client.chat.completions.create(**body)
        (call,) = completion.choices[0].message.tool_calls or ()
        assert call.model_dump()["custom"] == {"name": "note", "input": "x"}
        grammar = engine.seen[-1].grammar
        assert grammar is not None and "functions.add" not in grammar.lark({})


def test_what_has_a_wrong_shape_is_refused_when_it_is_rendered() -> None:
    fmt = dovetail.format("kimi_k25")
    for messages, tools, field in (
        (USER, [{"type": "custom"}], "tools[0].custom"),
        (3, None, "messages"),
        ([*USER, 3], None, "messages[1]"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            fmt.render(messages, tools)
        assert refused.value.param == field


def test_a_message_may_declare_a_custom_tool() -> None:
    fmt = dovetail.format("kimi_k3")
    declaring: Any = [{"role": "system", "content": "", "tools": [NOTE]}, *USER]
    assert "Writes a note." in fmt.render(fmt.repair(declaring)[0]).text


def custom(**fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": "note", **fields}}


def grammar(**fields: Any) -> dict[str, Any]:
    return custom(format={"type": "grammar", "grammar": fields})


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"type": "custom"}, "custom"),
        ({"type": "custom", "custom": 3}, "custom"),
        (custom(name=3), "custom.name"),
        (custom(name=""), "custom.name"),
        (custom(name="a b"), "custom.name"),
        (custom(name="functions.a"), "custom.name"),
        (custom(name="add"), "custom.name"),
        (custom(description=3), "custom.description"),
        (custom(format="text"), "custom.format"),
        (custom(format={}), "custom.format.type"),
        (custom(format={"type": "json"}), "custom.format.type"),
        (custom(format={"type": "grammar"}), "custom.format.grammar"),
        (grammar(definition="a"), "custom.format.grammar.syntax"),
        (grammar(syntax="ebnf", definition="a"), "custom.format.grammar.syntax"),
        (grammar(syntax="regex"), "custom.format.grammar.definition"),
        (grammar(syntax="lark", definition=["start: A"]), "custom.format.grammar.definition"),
        ({"type": "browser"}, "type"),
    ],
)
async def test_a_malformed_custom_tool_is_refused_by_field(
    engine: ScriptedEngine, tok: Tokenizer, tool: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        turn_request({"messages": USER, "tools": [ADD, tool]})
    assert refused.value.param == f"tools[1].{field}"
    async with openai_client(engine, tok) as client:
        with pytest.raises(openai.BadRequestError) as error:
            body: Any = {"model": MODEL, "messages": USER, "tools": [ADD, tool]}
            await client.chat.completions.create(**body)
    assert error.value.param == f"tools[1].{field}"


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({"type": "custom"}, "custom"),
        ({"type": "custom", "custom": "note"}, "custom"),
        ({"type": "custom", "custom": {"name": "", "input": "x"}}, "custom.name"),
        ({"type": "custom", "custom": {"name": "note"}}, "custom.input"),
        ({"type": "custom", "custom": {"name": "note", "input": {"a": 1}}}, "custom.input"),
    ],
)
def test_a_malformed_call_in_the_history_is_refused_by_field(call: dict[str, Any], field: str) -> None:
    history = [*USER, {"role": "assistant", "tool_calls": [{"id": "a", **call}]}]
    with pytest.raises(InvalidRequest) as refused:
        turn_request({"messages": history, "tools": [NOTE]})
    assert refused.value.param == f"messages[1].tool_calls[0].{field}"
    with pytest.raises(InvalidRequest):
        dovetail.format("kimi_k25").repair(history, [NOTE])


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ({"type": "custom", "custom": {"name": "add"}}, "tool_choice"),
        ({"type": "function", "function": {"name": "note"}}, "tool_choice"),
        ({"type": "custom", "custom": {}}, "tool_choice"),
        ({"type": "custom"}, "tool_choice"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "custom"}]}},
            "tool_choice.allowed_tools.tools[0]",
        ),
    ],
)
def test_a_choice_of_another_kind_is_refused(choice: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        turn_request({"messages": USER, "tools": [NOTE, ADD], "tool_choice": choice})
    assert refused.value.param == field


DIGITS = custom(format={"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+"}})


@pytest.mark.parametrize(
    ("arguments", "defect", "text"),
    [
        ('{"input": "12"}', None, "12"),
        ('{"input": "1x"}', "call 0: /input against the tool's grammar", "1x"),
        ('{"input": ""}', "call 0: /input ends too early for the tool's grammar", ""),
        ('{"input": "12", "more": 1}', "call 0: the arguments against #/additionalProperties", "12"),
        ('{"text": "12"}', "call 0: the arguments against #/additionalProperties", '{"text": "12"}'),
    ],
)
async def test_an_input_that_was_not_enforced_is_checked(
    engine: ScriptedEngine, tok: Tokenizer, arguments: str, defect: str | None, text: str
) -> None:
    engine.ids = ids_of(Message(calls=(Call("functions.note:0", "note", arguments),)), tok)
    body: Any = {"model": MODEL, "messages": USER, "tools": [DIGITS], "extra_body": {"dovetail": {"strict": "off"}}}
    async with openai_client(engine, tok) as client:
        message = (await client.chat.completions.create(**body)).choices[0].message
    defects = (message.model_extra or {}).get("dovetail", {}).get("defects", [])
    assert defects == ([{"kind": "schema_mismatch", "detail": defect}] if defect else [])
    (call,) = message.tool_calls or ()
    assert call.model_dump()["custom"]["input"] == text


async def test_a_grammar_that_is_only_shown_is_listed(engine: ScriptedEngine, tok: Tokenizer) -> None:
    broken = grammar(syntax="lark", definition="start: MISSING")
    engine.ids = ids_of(Message(content="No."), tok)
    async with openai_client(engine, tok) as client:
        for strict, refused in (("schema", True), ("names", False), ("off", False)):
            body: Any = {"model": MODEL, "messages": USER, "tools": [broken]}
            extension = {"dovetail": {"strict": strict}}
            if refused:
                with pytest.raises(openai.BadRequestError) as error:
                    await client.chat.completions.create(**body, extra_body=extension)
                assert error.value.param == "tools[0].custom.format.grammar.definition"
            else:
                raw = await client.chat.completions.with_raw_response.create(**body, extra_body=extension)
                assert raw.headers["x-dovetail-unenforced"] == "tools[0].custom.format.grammar.definition"


async def test_the_grammar_is_enforced_while_decoding(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with openai_client(engine, tok) as client:
        for text, allowed in (("12", True), ("1x", False)):
            engine.ids = ids_of(Message(calls=(Call("functions.note:0", "note", json.dumps({"input": text})),)), tok)
            body: Any = {"model": MODEL, "messages": USER, "tools": [DIGITS]}
            if allowed:
                await client.chat.completions.create(**body)
            else:
                with pytest.raises(openai.APIError):  # the scripted engine fails where the grammar forbids its script
                    await client.chat.completions.create(**body)
