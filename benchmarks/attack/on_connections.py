"""Attacks on connections: half-sent, idle, endless, many, and nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from benchmarks.attack import wire
from benchmarks.attack.rows import Row, attack
from benchmarks.attack.served import MODEL, SHORT, Served, connections, serving, watched
from benchmarks.attack.wire import CHAT, HOST, JSON, Connection

_HALF = b"GET /health HTTP/1.1\r\n" + HOST
_HALF_BODY = b"POST /v1/chat/completions HTTP/1.1\r\n%s%sContent-Length: 1000\r\n\r\n{" % (HOST, JSON)
_CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\n%s%sTransfer-Encoding: chunked\r\n\r\n" % (HOST, JSON)
_MB = 1e6


async def _opened(served: Served, count: int, data: bytes) -> list[Connection]:
    opened = [await Connection.open(served.port) for _ in range(count)]
    for each in opened:
        await each.send(data)
    return opened


async def _closed(opened: list[Connection], seconds: float) -> int:
    """How many of them the server closes within so many seconds."""
    ends = await asyncio.gather(*(each.rest(seconds) for each in opened))
    return sum(closed for _, closed in ends)


@attack
async def few_descriptors() -> AsyncIterator[Row]:
    async with serving(*SHORT, files=256) as served:
        opened = await _opened(served, 300, _HALF)
        with connections(opened):
            async with watched(served) as others:
                await asyncio.sleep(3)
            lines = served.log.count("connections: ")
            traces = served.log.count("Traceback")
        yield Row(
            "300 half-sent headers, 256 descriptors",
            "/health answers; a line of log a second, no traceback",
            f"{others}; {lines} lines of log, {traces} tracebacks",
            others.p99 < 1000 and lines <= 6 and not traces,
        )


@attack
async def idle() -> AsyncIterator[Row]:
    async with serving(*SHORT) as served:
        kinds = {"silent": b"", "half headers": _HALF, "half a body": _HALF_BODY, "kept alive": _HALF + b"\r\n"}
        opened = {kind: await _opened(served, 50, data) for kind, data in kinds.items()}
        ends = await asyncio.gather(*(_closed(each, 15) for each in opened.values()))
        for each in opened.values():
            with connections(each):
                pass
        counts = ", ".join(f"{closed} {kind}" for kind, closed in zip(kinds, ends, strict=True))
        yield Row("50 idle connections of each kind", "closed by deadlines", f"closed: {counts}", ends == [50] * 4)

        began = asyncio.get_running_loop().time()
        drip = await Connection.open(served.port)
        await drip.send(_HALF_BODY)
        while await drip.send(b" ") and asyncio.get_running_loop().time() - began < 60:
            await asyncio.sleep(0.5)
        took = asyncio.get_running_loop().time() - began
        drip.close()
        yield Row(
            "a body of one byte every 0.5 s (slowloris)",
            "ends after 10 times the body's deadline (2 s)",
            f"closed after {took:.0f} s",
            took < 30,
        )


@attack
async def after_a_refusal() -> AsyncIterator[Row]:
    async with serving(key="sesame") as served:
        for name, data in (
            ("one-byte chunks", b"1\r\na\r\n" * 4096),
            ("an endless body", b"1000000\r\n" + b"a" * 65536),
        ):
            cpu, memory, sent = served.cpu, served.memory, 0
            connection = await Connection.open(served.port)
            await connection.send(_CHUNKED)
            while await connection.send(data) and sent < 1 << 30:
                sent += len(data)
                await asyncio.sleep(0)
            answer = wire.parsed(*await connection.rest(5))
            connection.close()
            yield Row(
                f"{name} after a 401",
                "Connection: close, and closed",
                f"closed after {sent / _MB:.1f} MB; {served.cpu - cpu:.2f} s of CPU, {served.memory - memory:+.0f} MB",
                sent < 24 * _MB and served.cpu - cpu < 1 and answer.status in (0, 401),
            )
    async with serving() as served:
        memory, sent = served.memory, 0
        connection = await Connection.open(served.port)
        await connection.send(
            b"POST %s HTTP/1.1\r\n%s%sContent-Length: 9999999999\r\n\r\n" % (CHAT.encode(), HOST, JSON)
        )
        while await connection.send(b"a" * 65536) and sent < 1 << 30:
            sent += 65536
        connection.close()
        yield Row(
            "an endless body after a 413",
            "closed",
            f"closed after {sent / _MB:.1f} MB; {served.memory - memory:+.0f} MB",
            sent < 24 * _MB,
        )


@attack
async def bodies() -> AsyncIterator[Row]:
    limit = 64
    async with serving("--body-memory", str(limit << 20)) as served:
        memory = served.memory
        opened = await _opened(served, 100, _CHUNKED)
        with connections(opened):
            part = b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
            async with watched(served) as others:
                for _ in range(7):
                    await asyncio.gather(*(each.send(part) for each in opened))
            grown = served.memory - memory
            whole = await wire.ask(served.port, CHAT, {"model": MODEL, "messages": [], "pad": "x" * (1 << 20)})
        yield Row(
            f"100 bodies of 7 MB that do not end, --body-memory {limit} MiB",
            "memory bounded; whole bodies are read",
            f"{grown:+.0f} MB; a whole body of 1 MB: {whole.status}; {others}",
            grown < 3 * limit and whole.status == 400,
        )


@attack
async def many() -> AsyncIterator[Row]:
    async with serving() as served:
        for _ in range(200):  # warm
            await wire.get(served.port, "/version")
        memory, cpu = served.memory, served.cpu
        for _ in range(30):
            for each in [await Connection.open(served.port) for _ in range(100)]:
                each.close()
        yield Row(
            "3,000 connections that end at once",
            "memory flat",
            f"{served.memory - memory:+.1f} MB, {1e3 * (served.cpu - cpu) / 3000:.2f} ms of CPU each",
            served.memory - memory < 20,
        )
        memory = served.memory
        connection = await Connection.open(served.port)
        request = b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"
        try:
            async with asyncio.timeout(5):
                sent = 0
                while await connection.send(request * 100) and sent < 200_000:
                    sent += 100
        except TimeoutError:
            pass
        grown = served.memory - memory
        connection.close()
        health = await wire.get(served.port, "/health")
        yield Row(
            "pipelined requests without end, none read",
            "memory bounded; /health answers",
            f"{sent} sent, {grown:+.0f} MB, /health {health.status}",
            grown < 100 and health.status == 200,
        )
