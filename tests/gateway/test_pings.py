"""Streams of a silent engine: every API sends pings, and the event loop stays free for everybody else."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from dovetail.events import Message
from dovetail.gateway.http import response as http_response
from dovetail.gateway.http.response import streamed
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, prepared, serving

USER = [{"role": "user", "content": "hi"}]
STREAMS = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 64},
    "/v1/responses": {"input": "hi", "store": False},
}
PINGS = (b": waiting\n\n", b"event: ping\n")

# A loop that never suspends would hang the test too: pytest-timeout interrupts it.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.mark.parametrize("path", STREAMS)
async def test_a_silent_engine_gets_pings_and_health_answers(
    path: str, engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_response, "PING_SECONDS", 0.01)
    engine.ids, go = ids_of(Message(content="ok"), tok), asyncio.Event()

    async def silent(batch: int) -> None:
        await go.wait()

    engine.before = silent
    async with serving(engine, tok) as url, httpx.AsyncClient(base_url=url, verify=False) as client:
        body = {"model": MODEL, "stream": True, **STREAMS[path]}
        async with client.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200
            got, chunks = b"", answer.aiter_bytes()
            while sum(map(got.count, PINGS)) < 3:
                got += await anext(chunks)
                assert (await client.get("/health")).status_code == 200
            go.set()
            got += b"".join([chunk async for chunk in chunks])
    end = {"/v1/messages": b"message_stop", "/v1/responses": b"response.completed"}.get(path, b"[DONE]")
    assert end in got


class _Empty:
    """A stream whose ping has nothing to send."""

    ping = b""
    done = False

    def start(self) -> bytes:
        return b""

    step = error = lambda self, _: b""


async def test_an_empty_ping_leaves_the_event_loop_free(tok: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_response, "PING_SECONDS", 0.001)

    async def send(message: Any) -> None:
        raise AssertionError("there is nothing to send")

    async with streamed(_Empty(), prepared(tok), send, "id"):
        for _ in range(20):  # each takes one turn of the event loop, between pings
            await asyncio.sleep(0.001)
