"""A client that disconnects or reads slowly: its sequence is freed at once, and no buffer grows."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from dovetail.errors import EngineBusy, EngineError
from dovetail.events import Message
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, ids_of, in_process, serving

pytestmark = pytest.mark.anyio

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
DEADLINE_S = 30  # only a test that hangs gets there


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("at", [0, 3], ids=["before the first token", "midway"])
async def test_a_disconnect_frees_the_sequence(engine: ScriptedEngine, tok: Tokenizer, stream: bool, at: int) -> None:
    engine.ids = ids_of(Message(content="a long story"), tok)
    stuck = asyncio.Event()

    async def stop_at(batch: int) -> None:
        if batch == at:
            stuck.set()
            await asyncio.Event().wait()

    engine.before = stop_at
    async with serving(engine, tok) as url, httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=BODY | {"stream": stream}))
        async with asyncio.timeout(DEADLINE_S):
            await stuck.wait()
        assert engine.running == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: engine.running == 0)
        metrics = (await client.get(f"{url}/metrics")).text
    assert engine.freed == [engine.seen[0].request_id]
    assert f'dovetail_requests_total{{api="chat",model="{MODEL}",outcome="disconnected"}} 1.0' in metrics


async def test_a_disconnect_before_the_body_is_no_error(
    engine: ScriptedEngine, tok: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(engine, tok) as url:
        port = int(url.rsplit(":", 1)[1])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"content-length: 100\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.05)
    assert not engine.seen
    assert not caplog.records


@pytest.mark.slow
async def test_a_slow_client_slows_the_engine_and_fills_no_buffer(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine = ScriptedEngine(tok, context=10**6)
    engine.ids = (*(tok.encode("word ") * 50_000), tok.control["<|im_end|>"])
    engine.before = lambda number: asyncio.sleep(0)  # like a real engine, which lets other tasks run between two steps
    async with serving(engine, tok) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), limit=2**10)
        # Small buffers at the client's end, so that the connection is full after little text.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        free = {"dovetail": {"strict": "off"}}
        body = json.dumps(BODY | {"stream": True, "reasoning_effort": "none"} | free).encode()
        writer.write(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        await until(lambda: engine.sent > 0)
        sent = -1
        while sent != engine.sent:  # until the engine stops, because nobody reads
            sent = engine.sent
            await asyncio.sleep(0.3)
        assert 0 < sent < len(engine.ids) / 2
        assert engine.running == 1
        writer.close()
        await until(lambda: engine.running == 0)
    del reader


async def test_a_busy_engine_is_503_even_for_a_stream(
    engine: ScriptedEngine, tok: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    async def busy(batch: int) -> None:
        raise EngineBusy("32 requests are waiting; try again later")

    engine.ids, engine.before = ids_of(Message(content="never"), tok), busy
    async with in_process(engine, tok) as client:
        for stream in (True, False):
            response = await client.post("/v1/chat/completions", json=BODY | {"stream": stream})
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_busy"
            assert response.headers["retry-after"] == "1"
        metrics = (await client.get("/metrics")).text
    assert f'dovetail_requests_total{{api="chat",model="{MODEL}",outcome="busy"}} 2.0' in metrics
    assert f'dovetail_prompt_tokens_total{{model="{MODEL}"}} 0.0' in metrics
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize(
    ("error", "message"),
    [(EngineError("out of memory"), "out of memory"), (ValueError("secret"), "internal error")],
    ids=["expected", "unexpected"],
)
async def test_an_engine_failure_midway_is_reported(
    engine: ScriptedEngine, tok: Tokenizer, error: Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(batch: int) -> None:
        if batch == 4:
            raise error

    engine.ids, engine.before = ids_of(Message(content="a long story"), tok, thinking=False), fail
    async with in_process(engine, tok) as client:
        streamed = await client.post("/v1/chat/completions", json=BODY | {"stream": True, "reasoning_effort": "none"})
        at_once = await client.post("/v1/chat/completions", json=BODY)
        metrics = (await client.get("/metrics")).text
    assert streamed.status_code == 200
    *chunks, last = events_of(streamed.text)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == tok.decode(engine.ids[:4])
    assert last["error"]["message"].startswith(message)
    assert at_once.status_code == 500 and at_once.json()["error"]["message"].startswith(message)
    assert "secret" not in streamed.text + at_once.text
    assert at_once.headers["x-request-id"] in caplog.text
    assert f'dovetail_requests_total{{api="chat",model="{MODEL}",outcome="failed"}} 2.0' in metrics
    assert engine.running == 0
