"""Attacks from behind: servers of `--engine URL` that are silent, down, busy, or say what clients should not read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import dovetail
from benchmarks.attack import wire
from benchmarks.attack.on_payloads import chat
from benchmarks.attack.rows import Row, attack
from benchmarks.attack.served import connections, serving, watched
from benchmarks.attack.wire import CHAT, Connection
from dovetail.gateway.http.response import PING_SECONDS
from tests.backends.remote.fake import Fake, sse, vllm_chunk

TARGET = Path(dovetail.__file__).parent / "data" / "demo" / "target"
_OPTIONS = ("--strict", "off", "--served-model-name", "dovetail-demo", "--drafter", "none")
_DEADLINES = ("--first-token-timeout", "1", "--engine-idle-timeout", "1", "--engine-down-timeout", "1")
_USER = [{"role": "user", "content": "hi"}]
_STREAMS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": _USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": _USER, "max_tokens": 64},
    "/v1/responses": {"input": "hi", "store": False},
}
_PRIVATE = "at /srv/models/kimi on gpu-17.internal:8000 Traceback (most recent call last): secret"


async def _silent(body: dict[str, Any]) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def _stalls(body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield sse(vllm_chunk([72]))
    yield sse(vllm_chunk([73]))
    await asyncio.Event().wait()


async def _endless_line(body: dict[str, Any]) -> AsyncIterator[bytes]:
    while True:
        yield b"data: " if not body.pop("begun", False) else b"a" * 65536
        body["begun"] = True


@attack
async def silent_streams() -> AsyncIterator[Row]:
    """Streams of all four APIs in front of a server that is silent for longer than the interval of pings."""
    async with Fake(context=4096) as fake:
        fake.answer = _silent
        async with serving(str(TARGET), "--engine", fake.url, *_OPTIONS) as served, watched(served) as health:
            opened = [await Connection.open(served.port) for _ in _STREAMS]
            with connections(opened):
                for connection, (path, body) in zip(opened, _STREAMS.items(), strict=True):
                    body = {"model": "dovetail-demo", "stream": True, **body}
                    await connection.send(wire.post(path, json.dumps(body).encode()))
                async with asyncio.timeout(3 * PING_SECONDS):
                    pings = [await connection.reader.readuntil(b"\r\n\r\n") for connection in opened]
                await asyncio.sleep(PING_SECONDS)
        pinged = sum(b"200" in head for head in pings)
        yield Row(
            "a server that is silent for 20 s, streams of all four APIs",
            "pings; others answered",
            f"{pinged} of {len(opened)} pinged; {health}",
            pinged == len(opened) and health.worst < 500,
        )


@attack
async def upstream() -> AsyncIterator[Row]:
    async with Fake(context=4096) as fake:
        options = (str(TARGET), "--engine", fake.url, *_OPTIONS, *_DEADLINES)
        async with serving(*options) as served:
            port, usual = served.port, fake.answer

            fake.answer = _silent
            began = time.monotonic()
            answer = await wire.ask(port, CHAT, chat())
            took = time.monotonic() - began
            yield Row(
                "a silent server", "504", f"{answer.status} after {took:.1f} s", answer.status == 504 and took < 20
            )

            fake.answer = _stalls
            answer = await wire.ask(port, CHAT, chat(stream=True))
            reported = b"engine_timeout" in answer.body and answer.status == 200
            yield Row(
                "a server that stalls in a stream", "an error event", "it comes" if reported else "none", reported
            )

            fake.answer, memory = _endless_line, served.memory
            answer = await wire.ask(port, CHAT, chat())
            grown = served.memory - memory
            yield Row(
                "an event without end", "an error; memory bounded", f"{answer.status}, {grown:+.0f} MB",
                answer.status in (500, 502, 504) and grown < 100,
            )  # fmt: skip

            fake.answer = usual
            for status in (429, 503):
                fake.pages["/v1/completions"] = (status, b"full", [("Retry-After", "17")])
                answer = await wire.ask(port, CHAT, chat())
                after = answer.header("retry-after")
                yield Row(
                    f"{status} with Retry-After: 17", "passed on", f"{answer.status}, {after}",
                    (answer.status, after) == (status, "17"),
                )  # fmt: skip

            shown = []
            for status in (400, 500):
                fake.pages["/v1/completions"] = (status, _PRIVATE.encode())
                answer = await wire.ask(port, CHAT, chat())
                shown += [word for word in ("/srv", "gpu-17", "secret", fake.name) if word in answer.error]
            yield Row(
                "paths, hosts and tracebacks in its texts", "not shown", ", ".join(shown) or "none shown", not shown
            )

            await fake.stop()
            answer = await wire.ask(port, CHAT, chat())
            yield Row("a server that is down", "502", f"{answer.status}: {answer.error[:60]}…", answer.status == 502)
