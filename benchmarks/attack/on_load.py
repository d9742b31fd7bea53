"""Attacks by work: answers that nobody reads, and one client with more than its share."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from benchmarks.attack import wire
from benchmarks.attack.on_payloads import chat
from benchmarks.attack.rows import Row, attack
from benchmarks.attack.served import MODEL, SHORT, Served, connections, serving, watched
from benchmarks.attack.wire import CHAT, Connection

_CROWDED_S = 10.0
_LONG = {"stream": True, "max_tokens": 2000, "ignore_eos": True, "n": 16}


@attack
async def stalled_readers() -> AsyncIterator[Row]:
    async with serving(*SHORT, "--kv-cache-memory-bytes", str(32 << 20)) as served:
        await wire.ask(served.port, CHAT, chat())
        memory = served.memory
        body = json.dumps(chat(**_LONG, logprobs=True, top_logprobs=20)).encode()
        opened = []
        for _ in range(4):
            connection = await Connection.open(served.port, room=4096)
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await connection.send(wire.post(CHAT, body))
            opened.append(connection)
        with connections(opened):
            most = memory
            for _ in range(40):
                await asyncio.sleep(0.5)
                most = max(most, served.memory)
            waited = await served.until_idle(280)
        yield Row(
            "4 readers that stall, n = 16, 20 log probabilities",
            "what waits is bounded; then the answers end",
            f"at most {most - memory:+.0f} MB; the engine is idle after {20 + waited:.0f} s",
            most - memory < 500 and waited < 280,
        )


@attack
async def crowded_preparing() -> AsyncIterator[Row]:
    """Bodies of very many messages, all of which are refused, beside another client's requests with one tool."""
    async with serving() as served:
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
        other = json.dumps(chat(tools=[tool], max_tokens=2))
        async with watched(served, other) as alone:
            await asyncio.sleep(3)
        for number in (250_000, 9_990):
            message = b'{"role":"user","content":"a"}'
            body = b'{"model":"%s","messages":[%s]}' % (MODEL.encode(), b",".join([message] * number))
            async with watched(served, other) as beside:
                until = time.monotonic() + _CROWDED_S
                answers = await asyncio.gather(*(_asked_until(served, body, until) for _ in range(4)))
            refused = sum(map(len, answers))
            yield Row(
                f"4 clients that send bodies of {number:,} tiny messages, again and again",
                "another client's requests with a tool: p99 under 300 ms",
                f"p99 {beside.p99:.0f} ms of {len(beside.sorted_ms)} ({alone.p99:.0f} ms alone); {refused} refused",
                beside.p99 < 300 and {400} == {status for each in answers for status in each},
            )


async def _asked_until(served: Served, body: bytes, until: float) -> list[int]:
    statuses: list[int] = []
    while time.monotonic() < until:
        statuses.append((await wire.ask(served.port, CHAT, body)).status)
    return statuses


@attack
async def one_client_with_much() -> AsyncIterator[Row]:
    async with serving() as served:
        body = json.dumps(chat(**_LONG | {"max_tokens": 64})).encode()
        opened = [await Connection.open(served.port) for _ in range(66)]
        with connections(opened):
            for connection in opened:
                await connection.send(wire.post(CHAT, body))
            await asyncio.sleep(2)
            other = await Connection.open(served.port, source="127.0.0.2")
            began = time.monotonic()
            await other.send(wire.post(CHAT, json.dumps(chat(stream=True)).encode()))
            async with asyncio.timeout(300):
                got = b""
                while b'"content"' not in got and b"[DONE]" not in got and (part := await other.reader.read(65536)):
                    got += part
            took = time.monotonic() - began
            other.close()
            left = await served.metric("dovetail_queued_requests")
        yield Row(
            "66 requests of n = 16 from one client",
            "another client's first token comes before theirs are done",
            f"after {took:.1f} s, with {left:.0f} of them still waiting",
            bool(got) and left > 0,
        )
