"""Anthropic's own client gets the message that the model generated, or its own typed error with the field named."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import pytest
from anthropic.types import ModelInfo

from dovetail.errors import EngineBusy, EngineError
from dovetail.events import Call, Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.apis.messages import Messages
from dovetail.gateway.http import response as http_response
from dovetail.tokens import Tokenizer
from tests.gateway.anthropic_sdk import accumulated, anthropic_client, checked, sse
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

USER: dict[str, Any] = {"role": "user", "content": "What is the weather in Paris?"}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 1000, "messages": [USER]}
PARIS = Message("I look.", "Paris, then.", (Call("functions.get_weather:0", "get_weather", '{ "city":"Paris" }'),))
SETTINGS = Settings(served_model_name=MODEL, record_key=b"sesame")


async def test_streamed_and_whole_are_the_same(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids, engine.sizes, engine.cached = ids_of(PARIS, tok), (4, 1, 3), 2
    async with anthropic_client(engine, tok, SETTINGS) as client:
        whole = await client.messages.create(**BODY, tools=[WEATHER])
        async with client.messages.stream(**BODY, tools=[WEATHER]) as stream:
            final = await stream.get_final_message()
        beta = await client.beta.messages.create(**BODY, tools=[WEATHER], betas=["effort-2025-11-24"])
        count = await client.messages.count_tokens(model=MODEL, messages=[USER], tools=[WEATHER])
    thinking, text, use = whole.content
    assert (thinking.type, thinking.thinking) == ("thinking", "Paris, then.")
    assert (text.type, text.text) == ("text", "I look.")
    assert (use.type, use.id, use.input) == ("tool_use", "functions.get_weather:0", {"city": "Paris"})
    assert (whole.stop_reason, whole.stop_sequence, whole.model, whole.role) == ("tool_use", None, MODEL, "assistant")
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert [block.to_dict() for block in beta.content] == [block.to_dict() for block in whole.content]
    usage = whole.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (len(engine.seen[0].prompt) - 2, 2)
    assert usage.output_tokens == final.usage.output_tokens == len(engine.ids)
    assert usage.output_tokens_details is not None and usage.output_tokens_details.thinking_tokens > 3
    assert count.input_tokens == usage.input_tokens + 2


async def test_events_have_the_documented_order(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids, engine.sizes = ids_of(PARIS, tok), (10_000,)
    async with in_process(engine, tok, SETTINGS) as client:
        body = BODY | {"tools": [WEATHER], "dovetail": {"return_token_ids": True}}
        response = await client.post("/v1/messages?beta=true", json=body | {"stream": True})
        whole = await client.post("/v1/messages", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = sse(response.text)
    deltas = [e["delta"]["type"] if e["type"] == "content_block_delta" else e["type"] for e in events]
    start, stop = "content_block_start", "content_block_stop"
    assert deltas == [
        "message_start",
        *(start, "thinking_delta", "signature_delta", stop),
        *(start, "text_delta", stop),
        *(start, "input_json_delta", stop),
        "message_delta",
        "message_stop",
    ]
    assert [e["content_block"] for e in events if e["type"] == start] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "functions.get_weather:0", "name": "get_weather", "input": {}},
    ]
    message = checked(whole.text)
    assert accumulated(events) | {"id": ""} == message | {"id": ""}
    assert message["dovetail"]["token_ids"] == list(engine.ids)


@pytest.mark.parametrize(
    "thinking", [{"type": "adaptive", "display": "omitted"}, {"type": "enabled", "budget_tokens": 99}]
)
async def test_thinking_may_come_without_its_text(engine: ScriptedEngine, tok: Tokenizer, thinking: Any) -> None:
    engine.ids = ids_of(Message("It rains.", "Hm."), tok)
    async with in_process(engine, tok, SETTINGS) as client:
        whole = checked((await client.post("/v1/messages", json=BODY | {"thinking": thinking})).text)
        streamed = await client.post("/v1/messages", json=BODY | {"thinking": thinking, "stream": True})
    block = whole["content"][0]
    assert block["thinking"] == ("" if "display" in thinking else "Hm.")
    assert block["signature"]
    assert accumulated(sse(streamed.text))["content"] == whole["content"]


async def test_why_an_answer_stopped(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("one, two, three, four"), tok, thinking=False)
    off = {"thinking": {"type": "disabled"}}
    async with in_process(engine, tok, SETTINGS) as client:

        async def stopped(**body: Any) -> tuple[str, str | None, Any]:
            message = checked((await client.post("/v1/messages", json=BODY | off | body)).text)
            streamed = await client.post("/v1/messages", json=BODY | off | body | {"stream": True})
            assert accumulated(sse(streamed.text)) | {"id": ""} == message | {"id": ""}
            return message["stop_reason"], message["stop_sequence"], message["content"]

        assert await stopped() == ("end_turn", None, [{"type": "text", "text": "one, two, three, four"}])
        assert await stopped(stop_sequences=["four", " thr"]) == (
            *("stop_sequence", " thr"),
            [{"type": "text", "text": "one, two,"}],
        )
        assert (await stopped(max_tokens=2))[0] == "max_tokens"
    small = ScriptedEngine(tok, context=len(engine.seen[0].prompt) + 3)
    small.ids = engine.ids
    async with in_process(small, tok, SETTINGS) as client:
        response = await client.post("/v1/messages", json=BODY | off)
    assert response.headers["x-dovetail-max-tokens"] == "3"
    assert checked(response.text)["stop_reason"] == "model_context_window_exceeded"


async def test_an_answer_is_continued(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(" it rains."), tok, thinking=False)
    body = BODY | {"messages": [USER, {"role": "assistant", "content": "Today"}], "thinking": {"type": "disabled"}}
    async with in_process(engine, tok, SETTINGS) as client:
        message = checked((await client.post("/v1/messages", json=body)).text)
    assert message["content"] == [{"type": "text", "text": " it rains."}]
    assert tok.decode(engine.seen[0].prompt).endswith("Today")


async def test_json_content(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message('{"city":"Paris"}'), tok, thinking=False)
    schema = WEATHER["input_schema"] | {"additionalProperties": False}
    async with anthropic_client(engine, tok, SETTINGS) as client:
        message = await client.messages.create(
            **BODY,
            thinking={"type": "disabled"},
            output_config={"format": {"type": "json_schema", "schema": schema}},
        )
    (block,) = message.content
    assert block.type == "text" and json.loads(block.text) == {"city": "Paris"}
    assert engine.seen[0].constraint is not None


async def test_a_stream_that_was_read_counts_as_ended(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """Although the server reports a disconnect as soon as the last event is sent."""
    engine.ids = ids_of(Message("ok"), tok)
    async with in_process(engine, tok, SETTINGS) as client:
        assert (await client.post("/v1/messages", json=BODY | {"stream": True})).status_code == 200
        metrics = (await client.get("/metrics")).text
    assert f'dovetail_requests_total{{api="messages",model="{MODEL}",outcome="stop"}} 1.0' in metrics


async def test_the_models_are_listed(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with anthropic_client(engine, tok, SETTINGS) as client:
        (listed,) = [model async for model in client.models.list()]
        retrieved = await client.models.retrieve(MODEL)
    assert listed.to_dict() == retrieved.to_dict()
    model = ModelInfo.model_validate_json(listed.to_json())
    assert (model.id, model.display_name, model.max_input_tokens) == (MODEL, MODEL, engine.info.context)


# -- errors -----------------------------------------------------------------------------------------------------------


def content(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}
RESULT = {"type": "tool_result", "tool_use_id": "a"}
# (fields added to a good request, the field that the error has to name)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [USER] * 100_001}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    (content("hi"), "messages[0].content[0]"),
    (content({"text": "hi"}), "messages[0].content[0]"),
    (content({"type": "text"}), "messages[0].content[0].text"),
    (content({"type": "text", "text": 3}), "messages[0].content[0].text"),
    (content(IMAGE), "messages.0.content.0.image.source.base64: Could not process image"),
    (content(PDF), "messages[0].content[0].source.type"),
    (content({"type": "thinking", "thinking": "hm", "signature": "x"}), "messages[0].content[0].type"),
    (content({"type": "container_upload", "file_id": "x"}), "messages[0].content[0].type"),
    (content({**RESULT, "content": [IMAGE]}), "messages.0.content.0.image.source.base64: Could not process image"),
    (content({**RESULT, "content": [{"type": "tool_reference"}]}), "messages[0].content[0].content[0].tool_name"),
    (
        content({**RESULT, "content": [{"type": "tool_reference", "tool_name": ""}]}),
        "messages[0].content[0].content[0]",
    ),
    (content({**RESULT, "tool_use_id": ""}), "messages[0].content[0].tool_use_id"),
    (content(RESULT), "messages[0].content[0].tool_use_id"),
    (content({"type": "tool_use", "id": "a", "name": "f"}, role="assistant"), "messages[0].content[0].input"),
    (
        content({"type": "tool_use", "id": "a", "name": "f", "input": 3}, role="assistant"),
        "messages[0].content[0].input",
    ),
    (content({"type": "tool_use", "id": "a", "name": "f", "input": {}}, role="assistant"), "messages[0].content[0]"),
    (content(RESULT, role="assistant"), "messages[0].content[0].type"),
    (content(IMAGE, role="system"), "messages[0].content[0].type"),
    ({"system": [IMAGE]}, "system[0].type"),
    ({"system": 3}, "system"),
    ({"model": 3}, "model"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"temperature": 2.5}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"stop_sequences": "a"}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
    ({"thinking": {"type": "maybe"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "enormous"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "strin"}}}}, "output_config.format"),
    ({"tools": {}}, "tools"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "f", "input_schema": {}, "type": "function"}]}, "tools[0].type"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [WEATHER | {"strict": True, "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
    ({"tools": [WEATHER], "tool_choice": "auto"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thread": {"id": "x"}}, "thread"),
    ({"dovetail": {"strickt": "off"}}, "dovetail.strickt"),
    ({"dovetail": {"repair": {"nothing": True}}}, "dovetail.repair.nothing"),
]


@pytest.mark.parametrize(("extra", "field"), REFUSED, ids=[repr(extra)[:60] for extra, _ in REFUSED])
async def test_the_client_raises_its_own_error_with_the_field(
    engine: ScriptedEngine, tok: Tokenizer, extra: dict[str, Any], field: str
) -> None:
    async with anthropic_client(engine, tok, SETTINGS) as client:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.post("/v1/messages", body=BODY | extra, cast_to=object)
    assert caught.value.type == "invalid_request_error"
    body: Any = caught.value.body
    assert body["error"]["message"].startswith(field) or field in body["error"]["message"], body
    assert len(body["error"]["message"]) < 600
    assert body["request_id"] == caught.value.request_id
    assert not engine.seen


async def test_errors_by_kind(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async def busy(batch: int) -> None:
        raise EngineBusy("32 requests are waiting")

    async def broken(batch: int) -> None:
        raise ValueError("secret")

    engine.ids = ids_of(Message(content="never"), tok)
    keyed = Settings(served_model_name=MODEL, api_key="sesame", max_body_bytes=1000)
    async with anthropic_client(engine, tok, keyed) as client:
        with pytest.raises(anthropic.AuthenticationError) as no_key:
            await client.messages.create(**BODY)
        assert no_key.value.type == "authentication_error"
        client = client.with_options(auth_token="sesame")
        with pytest.raises(anthropic.NotFoundError, match="model") as unknown:
            await client.messages.create(**BODY | {"model": "claude-9"})
        assert unknown.value.type == "not_found_error"
        with pytest.raises(anthropic.APIStatusError) as large:
            await client.messages.create(**BODY | {"system": "word " * 1000})
        assert (large.value.status_code, large.value.type) == (413, "request_too_large")
        for fails, kind in ((busy, "overloaded_error"), (broken, "api_error")):
            engine.before = fails
            for stream in (False, True):
                with pytest.raises(anthropic.InternalServerError) as failed:
                    await client.messages.create(**BODY, stream=stream)
                assert failed.value.type == kind
                assert "secret" not in str(failed.value)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.list()


async def test_a_failure_midway_is_an_event(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async def fail(batch: int) -> None:
        if batch == 4:
            raise EngineError("out of memory")

    engine.ids, engine.before = ids_of(Message(content="a long story"), tok, thinking=False), fail
    async with anthropic_client(engine, tok, SETTINGS) as client:
        with pytest.raises(anthropic.APIStatusError, match="out of memory") as caught:
            async with client.messages.stream(**BODY, thinking={"type": "disabled"}) as stream:
                await stream.get_final_message()
    assert caught.value.type == "api_error"
    assert engine.running == 0


async def test_no_event_follows_the_last_one(
    engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a ping that waits while a slow client takes the last events."""
    monkeypatch.setattr(http_response, "PING_SECONDS", 0.0)
    engine.ids, engine.sizes = ids_of(Message(content="a story"), tok, thinking=False), (4,)
    bodies: list[Any] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message)
        for _ in range(5):
            await asyncio.sleep(0)

    await _asgi_post(engine, tok, BODY | {"stream": True, "thinking": {"type": "disabled"}}, send)
    assert [body["more_body"] for body in bodies] == [True] * (len(bodies) - 1) + [False]
    kinds = [event["type"] for event in sse(b"".join(body["body"] for body in bodies))]
    assert "ping" in kinds and kinds[-1] == "message_stop"


async def test_a_ping_that_cannot_be_sent_ends_the_pings_only(
    engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_response, "PING_SECONDS", 0.001)
    engine.ids, engine.sizes = ids_of(Message(content="a story"), tok, thinking=False), (10_000,)
    failed = asyncio.Event()
    sent: list[bytes] = []

    async def wait(batch: int) -> None:
        await failed.wait()

    async def send(message: Any) -> None:
        if b"event: ping" in message.get("body", b""):
            failed.set()
            raise OSError("gone")
        sent.append(message.get("body", b""))

    engine.before = wait
    await _asgi_post(engine, tok, BODY | {"stream": True, "thinking": {"type": "disabled"}}, send)
    assert b"".join(sent).endswith(b'data: {"type":"message_stop"}\n\n')
    assert not caplog.records


async def test_a_silent_engine_gets_pings(
    engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first event and between events; the answer goes on once the client has a ping each time."""
    monkeypatch.setattr(http_response, "PING_SECONDS", 0.001)
    engine.ids, engine.sizes = ids_of(Message(content="a story"), tok, thinking=False), (4, 10_000)
    pinged = [asyncio.Event(), asyncio.Event()]

    async def wait(batch: int) -> None:
        await pinged[batch].wait()

    engine.before = wait
    kinds: list[str] = []
    sent = b""

    async def send(message: Any) -> None:
        nonlocal sent
        sent += message.get("body", b"")
        kinds[:] = [event["type"] for event in sse(sent)] if sent else []
        if kinds[-1:] == ["ping"]:
            pinged[engine.sent].set()

    await _asgi_post(engine, tok, BODY | {"stream": True, "thinking": {"type": "disabled"}}, send)
    assert kinds[:2] == ["message_start", "ping"]
    assert "ping" in kinds[kinds.index("content_block_delta") :]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert accumulated(sse(sent))["content"] == [{"type": "text", "text": "a story"}]


async def _asgi_post(engine: ScriptedEngine, tok: Tokenizer, body: Any, send: Any) -> None:
    """A request straight to the app, because httpx gives the events of a stream only at its end."""
    data = json.dumps(body).encode()
    messages = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/messages",
        "raw_path": b"/v1/messages",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("dovetail", 80),
        "client": ("test", 1),
    }
    await create_app(engine, KimiK25(), tok, SETTINGS)(scope, receive, send)


async def test_very_many_small_messages_take_linear_time(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """A quadratic translation would take minutes."""
    texts = [{"type": "text", "text": "a"}] * 50_000
    thoughts = [{"type": "thinking", "thinking": "a", "signature": ""}] * 50_000
    body = BODY | {"messages": [*([USER] * 50_000), {"role": "assistant", "content": [*thoughts, *texts]}, USER]}
    translated = Messages(json.dumps(body).encode()).turn_request.messages
    assert [len(message["content"]) for message in translated] == [50_000 * 31 - 2, 50_000, 29]
    assert translated[1]["reasoning_content"] == "a" * 50_000
