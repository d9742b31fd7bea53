"""Tools for a model whose chat template shows none, through the gateway: choices, APIs, streams, records."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from dovetail.events import Call, Message
from dovetail.formats.derived.jinja import JinjaFormat
from dovetail.gateway import Settings
from dovetail.tokens import Tokenizer
from tests.formats import chat_templates
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, folded, in_process

pytestmark = pytest.mark.anyio

PLAIN = chat_templates.PLAIN.replace("<|im_start|>", "<|im_user|>")  # tokens of the small tokenizer
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {**PARAMETERS, "additionalProperties": False}}}
    for name in ("get_weather", "get_time")
]
USER = {"role": "user", "content": "hi"}
CALL = Call("", "get_weather", '{"city": "Paris"}')
NAMED = {"type": "function", "function": {"name": "get_time"}}
SETTINGS = Settings(served_model_name=MODEL, record_key=b"k" * 32)


@pytest.fixture
def fmt(tok: Tokenizer) -> JinjaFormat:
    return chat_templates.of_source(PLAIN, tuple(tok.control), ends=("<|im_end|>",))


async def ask(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    sent = {"model": MODEL, "messages": [USER], "tools": TOOLS, **body}
    return await client.post("/v1/chat/completions", json=sent)


def ids_of(fmt: JinjaFormat, tok: Tokenizer, content: str = "", *calls: Call) -> tuple[int, ...]:
    return tuple(fmt.write(Message(content, "", calls)).ids(tok))


@pytest.mark.parametrize(
    ("content", "calls", "body"),
    [
        ("Sunny.", (), {}),
        ("Let me see.", (CALL, CALL), {}),
        ("", (CALL,), {"tool_choice": "required"}),
        ("", (Call("", "get_time", '{"city": "Rome"}'),), {"tool_choice": NAMED}),
        ("", (CALL,), {"parallel_tool_calls": False}),
        ('{"a": 1}', (), {"response_format": {"type": "json_object"}}),
        ("", (CALL,), {"response_format": {"type": "json_object"}}),
        ("Sunny.", (), {"tool_choice": "none"}),
    ],
)
async def test_calls_whole_and_streamed(
    engine: ScriptedEngine, tok: Tokenizer, fmt: JinjaFormat, content: str, calls: tuple[Call, ...], body: Any
) -> None:
    """The scripted engine fails at a token that the grammar refuses."""
    engine.ids = ids_of(fmt, tok, content, *calls)
    async with in_process(engine, tok, SETTINGS, fmt) as client:
        whole, streamed = [await ask(client, stream=stream, **body) for stream in (False, True)]
    *events, _ = events_of(streamed.text)
    for response, message in ((whole, whole.json()["choices"][0]["message"]), (streamed, folded(events)[0]["message"])):
        assert response.headers["x-dovetail-repairs"] == "generic_tools=1"
        assert (message["content"] or "") == content
        called = [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls", ())]
        assert called == [(call.name, call.arguments) for call in calls]
        assert [repair["kind"] for repair in message["dovetail"]["repairs"]] == ["generic_tools"]
        assert "defects" not in message["dovetail"]


async def test_the_other_apis_take_results(engine: ScriptedEngine, tok: Tokenizer, fmt: JinjaFormat) -> None:
    engine.ids = ids_of(fmt, tok, "", CALL)
    called = {"city": "Paris"}
    messages: list[Any] = [
        USER,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "get_weather", "input": called}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "Sun"}]},
    ]
    items: list[Any] = [
        USER,
        {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": CALL.arguments},
        {"type": "function_call_output", "call_id": "a", "output": "Sun"},
    ]
    own = [{"name": tool["function"]["name"], "input_schema": PARAMETERS} for tool in TOOLS]
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    async with in_process(engine, tok, SETTINGS, fmt) as client:
        message = await client.post(
            "/v1/messages", json={"model": MODEL, "messages": messages, "tools": own, "max_tokens": 99}
        )
        response = await client.post(
            "/v1/responses", json={"model": MODEL, "input": items, "tools": flat, "store": False}
        )
    for answer in (message, response):
        assert answer.headers["x-dovetail-repairs"].startswith("generic_tools=1")
    assert [block["input"] for block in message.json()["content"]] == [called]
    assert [item["arguments"] for item in response.json()["output"]] == [CALL.arguments]
    for completion in engine.seen:
        assert "<tool_response>\nSun\n</tool_response><|im_end|>" in tok.decode(completion.prompt)


async def test_turns_are_token_exact(engine: ScriptedEngine, tok: Tokenizer, fmt: JinjaFormat) -> None:
    text, end = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city":  "Paris"}}\n</tool_call>',
        tok.control["<|im_end|>"],
    )
    engine.ids = (*(token for letter in text for token in tok.encode(letter)), end)
    async with in_process(engine, tok, SETTINGS, fmt) as client:
        answer = (await ask(client, dovetail={"record": True, "strict": "off"})).json()["choices"][0]["message"]
        call_id = answer["tool_calls"][0]["id"]
        engine.ids = ids_of(fmt, tok, "Sunny.")
        await ask(client, messages=[USER, answer, {"role": "tool", "tool_call_id": call_id, "content": "Sun"}])
    first, second = (completion.prompt for completion in engine.seen)
    assert second[: len(first) + len(text) + 1] == (*first, *(tok.encode(letter)[0] for letter in text), end)


async def test_without_generic_tools_they_are_refused(engine: ScriptedEngine, tok: Tokenizer) -> None:
    fmt = chat_templates.of_source(PLAIN, tuple(tok.control), ends=("<|im_end|>",), generic_tools=False)
    async with in_process(engine, tok, SETTINGS, fmt) as client:
        refused = await ask(client)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    assert "does not show tools" in refused.json()["error"]["message"]
