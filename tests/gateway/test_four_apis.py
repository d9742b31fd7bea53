"""The four APIs tell the same message of the same tokens."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dovetail.events import Call, Message
from dovetail.gateway import Settings
from dovetail.tokens import Tokenizer
from tests.examples import examples
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

PARAMETERS = {"type": "object", "properties": {"a": {}}}
TEXT = st.text('aé🌦 .\n"\\<', max_size=12).map(str.strip)
CALLS = st.lists(
    st.fixed_dictionaries({}, optional={"a": st.integers() | TEXT | st.lists(st.booleans(), max_size=2)}), max_size=2
)

#: Reasoning, text, calls as (id, name, arguments), and how the answer ended.
Answered = tuple[str, str, list[tuple[str, str, Any]], str]


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reasoning=TEXT, content=TEXT, arguments=CALLS, size=st.integers(1, 9), cut=st.booleans())
def test_the_same_tokens_are_the_same_message(
    small_tokenizer: Tokenizer, reasoning: str, content: str, arguments: list[Any], size: int, cut: bool
) -> None:
    tok = small_tokenizer
    calls = tuple(Call(f"functions.f:{i}", "f", json.dumps(each)) for i, each in enumerate(arguments))
    engine = ScriptedEngine(tok)
    engine.ids, engine.sizes = ids_of(Message(content, reasoning, calls), tok), (size,)
    if cut:
        engine.ids = engine.ids[: len(engine.ids) // 2]
    *answered, completion = asyncio.run(answers(engine, tok))
    chat, messages, responses = (without_cut_arguments(each) if cut else each for each in answered)
    assert chat == messages == responses
    # A completion is the text as it is, markers and all.
    assert completion == b"".join(map(tok.token_bytes, shown(engine.ids, tok))).decode(errors="replace")


def shown(ids: tuple[int, ...], tok: Tokenizer) -> tuple[int, ...]:
    return ids[:-1] if ids[-1:] == (tok.control["<|im_end|>"],) else ids


async def answers(engine: ScriptedEngine, tok: Tokenizer) -> tuple[Any, ...]:
    user = [{"role": "user", "content": "hi"}]
    function = {"name": "f", "parameters": PARAMETERS}
    limit = len(engine.ids)
    plain = Settings(served_model_name=MODEL, strict="off")
    async with in_process(engine, tok, plain) as client:

        async def post(path: str, **body: Any) -> Any:
            response: httpx.Response = await client.post(path, json={"model": MODEL, **body})
            assert response.status_code == 200, response.text
            return response.json()

        chat = await post(
            "/v1/chat/completions", messages=user, max_tokens=limit, tools=[{"type": "function", "function": function}]
        )
        messages = await post(
            "/v1/messages",
            messages=user,
            max_tokens=limit,
            tools=[{"name": "f", "input_schema": PARAMETERS}],
            thinking={"type": "adaptive"},
        )
        responses = await post(
            "/v1/responses",
            input="hi",
            max_output_tokens=limit,
            store=False,
            tools=[{"type": "function", **function, "strict": False}],
        )
        completion = await post("/v1/completions", prompt="hi", max_tokens=limit)
    return of_chat(chat), of_messages(messages), of_responses(responses), completion["choices"][0]["text"]


def loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def without_cut_arguments(answered: Answered) -> Answered:
    """Half a call has half its arguments, which Messages cannot say: its `input` is an object."""
    reasoning, text, calls, finish = answered
    return reasoning, text, [*calls[:-1], *((*call[:2], None) for call in calls[-1:])], finish


def of_chat(body: Any) -> Answered:
    choice = body["choices"][0]
    message = choice["message"]
    calls = [
        (call["id"], call["function"]["name"], loaded(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    finish = {"tool_calls": "stop"}.get(choice["finish_reason"], choice["finish_reason"])
    return message.get("reasoning_content", ""), message["content"] or "", calls, finish


def of_messages(body: Any) -> Answered:
    blocks = body["content"]
    thinking = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    finish = {"end_turn": "stop", "tool_use": "stop", "max_tokens": "length"}[body["stop_reason"]]
    return thinking, text, calls, finish


def of_responses(body: Any) -> Answered:
    items = body["output"]
    reasoning = "".join(
        part["text"] for item in items if item["type"] == "reasoning" for part in item.get("content") or ()
    )
    text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
    calls = [
        (item["call_id"], item["name"], loaded(item["arguments"])) for item in items if item["type"] == "function_call"
    ]
    return reasoning, text, calls, {"completed": "stop", "incomplete": "length"}[body["status"]]
