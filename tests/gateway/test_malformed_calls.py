"""A call that cannot be read, in the four APIs: it is a call with its text as arguments, or the text is content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.gateway import Settings
from dovetail.reading import MALFORMED
from dovetail.tokens import Tokenizer
from dovetail.tokens.raw_text import raw_prompt
from tests.gateway import anthropic_sdk
from tests.gateway.responses import official
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, folded, in_process, prepared
from tests.gateway.test_four_apis import of_chat, of_messages, of_responses

pytestmark = pytest.mark.anyio

TEXT = "ls -la please"
CONTENT = (
    "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>"
    f"{TEXT}<|tool_call_end|><|tool_calls_section_end|>"
)
ANSWER = f"</think>{CONTENT}"
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
FUNCTION = {"name": "bash", "parameters": PARAMETERS}
USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": USER, "tools": [{"type": "function", "function": FUNCTION}]},
    "messages": {"messages": USER, "max_tokens": 999, "tools": [{"name": "bash", "input_schema": PARAMETERS}]},
    "responses": {"input": "hi", "store": False, "tools": [{"type": "function", **FUNCTION, "strict": False}]},
}
apis = pytest.mark.parametrize("api", BODIES)
cuts = pytest.mark.parametrize("sizes", [(1,), (4, 1, 3), (10_000,)])


def written(text: str, tok: Tokenizer) -> tuple[int, ...]:
    """`text` as a model generates it, with the end of its turn."""
    return tuple(raw_prompt(f"{text}<|im_end|>", tok, prefix=False, controls=True).ids(tok))


async def answer(
    engine: ScriptedEngine, tok: Tokenizer, api: str, settings: Settings | None = None, /, **fields: Any
) -> tuple[str, list[tuple[str, str, Any]], str, list[str]]:
    """The text, the calls as (id, name, arguments), how the answer ended, and its defects.

    The answer is asked for whole and as a stream, which must say the same.
    """
    fields["dovetail"] = {"strict": "off"} | fields.get("dovetail", {})
    body = {"model": MODEL} | BODIES[api] | fields
    async with in_process(engine, tok, settings) as client:
        whole = await client.post(f"/v1/{api}", json=body)
        stream = await client.post(f"/v1/{api}", json=body | {"stream": True})
    assert (whole.status_code, stream.status_code) == (200, 200), whole.text
    first, second = told(api, whole.json()), told(api, streamed(api, stream.text))
    assert first == second
    return first


def streamed(api: str, text: str) -> Any:
    """The whole body that a stream adds up to."""
    if api == "chat/completions":
        (choice,) = folded(events_of(text)[:-1])
        return {"choices": [choice]}
    if api == "messages":
        return anthropic_sdk.accumulated(anthropic_sdk.sse(text))
    return official.events_of(text)[-1]["response"]


def told(api: str, body: Any) -> tuple[str, list[tuple[str, str, Any]], str, list[str]]:
    if api == "chat/completions":
        (_, text, calls, _), finish = of_chat(body), body["choices"][0]["finish_reason"]
        body = body["choices"][0]["message"]
    elif api == "messages":
        (_, text, calls, _), finish = of_messages(body), body["stop_reason"]
    else:
        (_, text, calls, _), finish = of_responses(body), body["status"]
        assert {item["status"] for item in body["output"]} == {"completed"}
    return text, calls, finish, [defect["kind"] for defect in body.get("dovetail", {}).get("defects", ())]


ENDED_IN_CALLS = {"chat/completions": "tool_calls", "messages": "tool_use", "responses": "completed"}
ENDED = {"chat/completions": "stop", "messages": "end_turn", "responses": "completed"}


@apis
@cuts
@pytest.mark.parametrize("asked", [{}, {"on_malformed_call": "error"}])
async def test_it_is_a_call_with_its_text_as_arguments(
    engine: ScriptedEngine, tok: Tokenizer, api: str, sizes: tuple[int, ...], asked: dict[str, str]
) -> None:
    engine.ids, engine.sizes = written(ANSWER, tok), sizes
    text, calls, finish, defects = await answer(engine, tok, api, dovetail=asked)
    assert (text, calls) == ("I look.", [("functions.bash:0", "bash", {MALFORMED: TEXT})])
    assert finish == ENDED_IN_CALLS[api]
    assert defects == ["malformed_call"]


@apis
@cuts
async def test_arguments_that_were_passed_on_before_the_fault_are_taken_back(
    engine: ScriptedEngine, tok: Tokenizer, api: str, sizes: tuple[int, ...]
) -> None:
    raw = '{"command": "ls", "a": oh no no}'
    engine.ids, engine.sizes = written(ANSWER.replace(TEXT, raw), tok), sizes
    _, ((_, _, arguments),), finish, defects = await answer(engine, tok, api, dovetail={"on_malformed_call": "error"})
    assert arguments.pop(MALFORMED) == raw
    assert "command" in arguments and not any(arguments.values())
    assert (finish, defects[-1]) == (ENDED_IN_CALLS[api], "malformed_call")


@apis
@cuts
async def test_or_its_text_is_content(engine: ScriptedEngine, tok: Tokenizer, api: str, sizes: tuple[int, ...]) -> None:
    engine.ids, engine.sizes = written(ANSWER, tok), sizes
    text, calls, finish, _ = await answer(engine, tok, api, dovetail={"on_malformed_call": "text"})
    assert (text, calls, finish) == (CONTENT, [], ENDED[api])


@apis
async def test_the_server_has_a_default_that_a_request_may_override(
    engine: ScriptedEngine, tok: Tokenizer, api: str
) -> None:
    engine.ids = written(ANSWER, tok)
    settings = Settings(served_model_name=MODEL, on_malformed_call="text")
    assert (await answer(engine, tok, api, settings))[1] == []
    assert (await answer(engine, tok, api, settings, dovetail={"on_malformed_call": None}))[1] == []
    _, calls, _, _ = await answer(engine, tok, api, settings, dovetail={"on_malformed_call": "error"})
    assert calls == [("functions.bash:0", "bash", {MALFORMED: TEXT})]


async def test_a_completion_is_the_text_whatever_is_asked(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = written(ANSWER, tok)
    body: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 999}
    async with in_process(engine, tok) as client:
        for word in ("error", "text"):
            asked = body | {"dovetail": {"on_malformed_call": word}}
            whole = await client.post("/v1/completions", json=asked)
            stream = await client.post("/v1/completions", json=asked | {"stream": True})
            pieces = [event["choices"][0]["text"] for event in events_of(stream.text)[:-1] if event["choices"]]
            assert whole.json()["choices"][0]["text"] == "".join(pieces) == ANSWER


async def test_the_input_of_a_custom_tool_is_the_text(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """Not a JSON object that holds the text."""
    engine.ids = written(ANSWER, tok)
    body = BODIES["chat/completions"] | {"tools": [{"type": "custom", "custom": {"name": "bash"}}]}
    async with in_process(engine, tok) as client:
        response = await client.post(
            "/v1/chat/completions", json={"model": MODEL, "dovetail": {"strict": "off"}} | body
        )
    (call,) = response.json()["choices"][0]["message"]["tool_calls"]
    assert call["custom"] == {"name": "bash", "input": TEXT}


@apis
async def test_the_call_goes_back_into_the_history(engine: ScriptedEngine, tok: Tokenizer, api: str) -> None:
    """An agent returns it with its own error, and the model is shown both."""
    engine.ids = written("</think>Sorry.", tok)
    arguments = {MALFORMED: TEXT}
    body: dict[str, Any] = {"model": MODEL} | BODIES[api]
    function = {"name": "bash", "arguments": json.dumps(arguments)}
    if api == "chat/completions":
        call: Any = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}
        body["messages"] = [*USER, call, {"role": "tool", "tool_call_id": "a", "content": "no command"}]
    elif api == "messages":
        call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "bash", "input": arguments}]}
        result = {"type": "tool_result", "tool_use_id": "a", "content": "no command", "is_error": True}
        body["messages"] = [*USER, call, {"role": "user", "content": [result]}]
    else:
        call = {"type": "function_call", "call_id": "a", **function}
        body["input"] = [*USER, call, {"type": "function_call_output", "call_id": "a", "output": "no command"}]
    async with in_process(engine, tok) as client:
        assert (await client.post(f"/v1/{api}", json=body)).status_code == 200
    prompt = tok.decode(engine.seen[0].prompt)
    assert json.dumps(arguments) in prompt and "no command" in prompt


@pytest.mark.parametrize("api", [*BODIES, "completions"])
@pytest.mark.parametrize("value", ["drop", "", True, ["error"]])
async def test_another_word_is_refused_by_name(engine: ScriptedEngine, tok: Tokenizer, api: str, value: Any) -> None:
    body = {"model": MODEL, **BODIES.get(api, {"prompt": "hi"}), "dovetail": {"on_malformed_call": value}}
    async with in_process(engine, tok) as client:
        refused = await client.post(f"/v1/{api}", json=body)
    assert refused.status_code == 400
    assert "dovetail.on_malformed_call" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("server", "request_says", "reads"),
    [
        ((), None, True),
        ((), False, False),
        ((), {"unmarked_call": False}, False),
        ((), {"call_id": False}, True),
        (("unmarked_call",), None, False),
        (("unmarked_call",), True, True),
        (("unmarked_call",), {"unmarked_call": True}, True),
        (("call_id",), None, True),
    ],
)
def test_calls_without_markup_are_a_repair(
    tok: Tokenizer, server: tuple[str, ...], request_says: Any, reads: bool
) -> None:
    settings = Settings(served_model_name=MODEL, no_repair=frozenset(server))
    turn = prepared(
        tok, settings=settings, tools=BODIES["chat/completions"]["tools"], dovetail={"repair": request_says}
    )
    answer = json.dumps({"name": "bash", "arguments": {"command": "ls"}})
    message = turn.language.parse(f"</think>{answer}")
    assert [call.name for call in message.calls] == (["bash"] if reads else [])
    assert message.content == ("" if reads else answer)
