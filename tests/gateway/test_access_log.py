"""Each request has one access line, with what an operator asks about it and nothing that is the client's alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest

from dovetail.errors import EngineError
from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.http.middleware import Telemetry
from dovetail.gateway.limits.keys import ApiKey, KeyLimits, Keyring, digest_of
from dovetail.gateway.limits.queue import QueueLimits
from dovetail.gateway.observe.request_report import APIS
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of

pytestmark = pytest.mark.anyio

SECRET = "sk-a-key-that-nobody-may-read"
WORDS = "words of a prompt"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
#: One request of each API.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": WORDS}], "dovetail": {"strict": "off"}}),
    "responses": ("/v1/responses", {"input": WORDS, "dovetail": {"strict": "off"}}),
    "messages": ("/v1/messages", {"max_tokens": 99, "messages": [{"role": "user", "content": WORDS}]}),
    "completions": ("/v1/completions", {"prompt": WORDS, "max_tokens": 99}),
}


@asynccontextmanager
async def logging_client(
    engine: ScriptedEngine, tok: Tokenizer, lines: list[bytes], **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    telemetry = Telemetry(write_line=lines.append)
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL, **settings), telemetry)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("192.0.2.7", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client:
        yield client


def test_every_api_has_a_request_here() -> None:
    assert set(REQUESTS) == set(APIS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_a_turn_has_one_line_with_its_figures(
    engine: ScriptedEngine, tok: Tokenizer, api: str, stream: bool
) -> None:
    engine.ids = ids_of(Message(content="ok", reasoning="hm" if api != "completions" else ""), tok)
    engine.sizes, engine.cached = (3,), 2
    lines: list[bytes] = []
    path, body = REQUESTS[api]
    async with logging_client(engine, tok, lines, api_key=SECRET) as client:
        response = await client.post(
            path,
            json=body | {"model": MODEL, "stream": stream},
            headers={"authorization": f"Bearer {SECRET}", "x-request-id": "mine", "traceparent": TRACEPARENT},
        )
    assert response.status_code == 200
    (line,) = lines
    steps = -(-len(engine.ids) // 3)
    fields = json.loads(line)
    assert datetime.fromisoformat(fields.pop("time")).utcoffset() is not None
    assert 0 <= fields.pop("queue") <= fields.pop("time_to_first_token") <= fields.pop("duration")
    reasoning = fields.pop("reasoning_tokens")
    assert (reasoning > 0) == (api != "completions")
    assert fields == {
        "kind": "access",
        "method": "POST",
        "path": path,
        "status": 200,
        "request_id": "mine",
        "peer": "192.0.2.7",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "api": api,
        "model": MODEL,
        "stream": stream,
        "outcome": "stop",
        "finish_reason": "stop",
        "prompt_tokens": len(engine.seen[0].prompt),
        "completion_tokens": len(engine.ids),
        "cached_tokens": 2,
        "drafted": 3 * steps,
        "accepted": len(engine.ids) - steps,
    }


async def test_the_line_has_the_name_of_the_key(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    lines: list[bytes] = []
    path, body = REQUESTS["chat"]
    key = ApiKey(name="alice", digest=digest_of(SECRET), limits=KeyLimits(requests_per_minute=1))
    async with logging_client(engine, tok, lines, keys=Keyring([key])) as client:
        for headers in ({"x-api-key": SECRET}, {"x-api-key": SECRET}, {"x-api-key": "another"}):
            await client.post(path, json=body | {"model": MODEL}, headers=headers)
    shown = [json.loads(line) for line in lines]
    assert [(line.get("key"), line["status"]) for line in shown] == [("alice", 200), ("alice", 429), (None, 401)]
    assert shown[1]["error"] == "RateLimited" and shown[1]["peer"] == "192.0.2.7"
    assert not any(SECRET.encode() in line or digest_of(SECRET).hex().encode() in line for line in lines)


async def test_several_choices_have_several_finish_reasons(engine: ScriptedEngine, tok: Tokenizer) -> None:
    whole = ids_of(Message(content="ok"), tok, thinking=False)
    engine.scripts = [whole, whole[:-1]]
    lines: list[bytes] = []
    _, body = REQUESTS["chat"]
    async with logging_client(engine, tok, lines) as client:
        off = {"chat_template_kwargs": {"thinking": False}}
        await client.post("/v1/chat/completions", json=body | off | {"model": MODEL, "n": 2})
    assert json.loads(lines[0])["finish_reason"] == ["stop", "length"]
    assert json.loads(lines[0])["completion_tokens"] == 2 * len(whole) - 1


@pytest.mark.parametrize(
    ("path", "body", "status", "fields"),
    [
        ("/v1/chat/completions", {"messages": WORDS}, 400, {"outcome": "refused", "error": "InvalidRequest"}),
        ("/v1/messages", {"model": "m" * 500}, 400, {"outcome": "refused", "error": "InvalidRequest"}),
        ("/nowhere/" + "x" * 500, {}, 404, {}),
        ("/tokenize", {"prompt": WORDS}, 200, {}),
    ],
)
async def test_other_requests_have_a_line_too(
    engine: ScriptedEngine, tok: Tokenizer, path: str, body: Any, status: int, fields: dict[str, Any]
) -> None:
    lines: list[bytes] = []
    async with logging_client(engine, tok, lines) as client:
        await client.post(path, json={"model": MODEL} | body)
    (line,) = map(json.loads, lines)
    assert line["status"] == status and path.startswith(line["path"]) and len(line["path"]) <= 200
    assert {name: line.get(name) for name in ("outcome", "error")} == {"outcome": None, "error": None} | fields
    assert "trace_id" not in line
    assert ("completion_tokens" in line) == ("outcome" in fields)


async def test_an_unknown_model_is_shortened(engine: ScriptedEngine, tok: Tokenizer) -> None:
    lines: list[bytes] = []
    path, body = REQUESTS["chat"]
    async with logging_client(engine, tok, lines) as client:
        await client.post(path, json=body | {"model": "m" * 10_000})
    (line,) = map(json.loads, lines)
    assert line["status"] == 404 and line["error"] == "UnknownModel" and line["model"] == "m" * 200


async def test_a_wrong_key_is_in_no_line(engine: ScriptedEngine, tok: Tokenizer) -> None:
    lines: list[bytes] = []
    async with logging_client(engine, tok, lines, api_key="another") as client:
        await client.get("/v1/models?api-key=" + SECRET, headers={"authorization": f"Bearer {SECRET}"})
    (line,) = lines
    assert json.loads(line)["status"] == 401 and json.loads(line)["error"] == "Unauthorized"
    assert SECRET.encode() not in line


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_after_tokens_keeps_its_figures(engine: ScriptedEngine, tok: Tokenizer, stream: bool) -> None:
    async def fail(number: int) -> None:
        if number == 2:
            raise EngineError(f"broken at {WORDS}")

    engine.ids, engine.before = ids_of(Message(content="ok", reasoning="hm"), tok), fail
    lines: list[bytes] = []
    path, body = REQUESTS["chat"]
    async with logging_client(engine, tok, lines) as client:
        await client.post(path, json=body | {"model": MODEL, "stream": stream})
    (line,) = lines
    fields = json.loads(line)
    assert (fields["status"], fields["outcome"], fields["error"]) == (200 if stream else 500, "failed", "EngineError")
    assert fields["completion_tokens"] == 2 and "finish_reason" not in fields
    assert WORDS.encode() not in line


def hanging(engine: ScriptedEngine) -> asyncio.Event:
    """Let `engine` never answer. Returns the event of a request that has reached it."""
    begun = asyncio.Event()

    async def hang(number: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    engine.before = hang
    return begun


async def test_a_client_that_leaves_before_an_answer_has_status_499(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok", reasoning="hm"), tok)
    begun = hanging(engine)
    lines: list[bytes] = []
    path, body = REQUESTS["chat"]
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL), Telemetry(write_line=lines.append))
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": json.dumps(body | {"model": MODEL}).encode()}
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "scheme": "http", "query_string": b""}
    await app(scope, receive, send)
    (line,) = map(json.loads, lines)
    assert (line["status"], line["outcome"], line["error"]) == (499, "disconnected", "ClientDisconnect")
    assert line["queue"] >= 0 and "time_to_first_token" not in line and "peer" not in line


async def test_a_request_that_waited_in_vain_has_its_time_in_the_queue(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok", reasoning="hm"), tok)
    running, go_on = asyncio.Event(), asyncio.Event()

    async def hang(number: int) -> None:
        running.set()
        await go_on.wait()

    engine.before = hang
    lines: list[bytes] = []
    path, body = REQUESTS["chat"]
    async with logging_client(engine, tok, lines, queue=QueueLimits(running=1, seconds=0.01)) as client:
        first = asyncio.create_task(client.post(path, json=body | {"model": MODEL}))
        await running.wait()
        assert (await client.post(path, json=body | {"model": MODEL})).status_code == 503
        go_on.set()
        assert (await first).status_code == 200
        metrics = (await client.get("/metrics")).text
    line = json.loads(lines[0])
    assert (line["status"], line["outcome"], line["error"]) == (503, "busy", "EngineBusy")
    assert line["queue"] > 0 and line["prompt_tokens"] > 0 and line["completion_tokens"] == 0
    assert f'dovetail_queue_seconds_count{{api="chat",model="{MODEL}"}} 2.0' in metrics
    of_the_one_that_ran = json.loads(lines[1])["prompt_tokens"]
    assert f'dovetail_prompt_tokens_total{{model="{MODEL}"}} {of_the_one_that_ran}.0' in metrics


async def test_a_request_that_is_cancelled_ends_too(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """As a server does that has waited long enough for its end."""
    engine.ids = ids_of(Message(content="ok", reasoning="hm"), tok)
    begun = hanging(engine)
    lines: list[bytes] = []
    path, body = REQUESTS["chat"]
    async with logging_client(engine, tok, lines) as client:
        sending = asyncio.create_task(client.post(path, json=body | {"model": MODEL}))
        await begun.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        metrics = (await client.get("/metrics")).text
    assert (json.loads(lines[0])["outcome"], json.loads(lines[0])["error"]) == ("failed", "CancelledError")
    assert f'dovetail_requests_total{{api="chat",model="{MODEL}",outcome="failed"}} 1.0' in metrics
