"""The server's connections under attack: deadlines, the limit, malformed requests; and the end after a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from dovetail.errors import EngineBusy
from dovetail.gateway.limits.queue import Draining
from dovetail.server import connections, server
from dovetail.server.connections import ConnectionLimits
from dovetail.server.server import GracefulServer, ServerOptions, listen

pytestmark = pytest.mark.anyio

HOST = b"Host: a\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
SHORT = ConnectionLimits(header_s=0.2, body_s=0.2, send_s=0.2, keep_alive_s=0.2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers /refused at once, and anything else with the length of its body."""
    size = 0
    if scope["path"] == "/refused":
        await respond(send, 413, b"too large")
        return
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await respond(send, 200, str(size).encode())


async def respond(send: Any, status: int, body: bytes) -> None:
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": length})
    await send({"type": "http.response.body", "body": body})


class Engine:
    """An engine that only has to stop."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    async def stop(self) -> None:
        self.stopped.set()


@contextlib.asynccontextmanager
async def serving(
    app: Any,
    limits: ConnectionLimits | None = None,
    *,
    engine: Any = None,
    draining: Draining | None = None,
    grace_s: float = 30.0,
) -> AsyncIterator[int]:
    """The port of a server around `app`, which is stopped at the end."""
    listener = listen("127.0.0.1", 0)
    options = ServerOptions(connections=limits or ConnectionLimits(), grace_s=grace_s)
    running = GracefulServer(app, engine or Engine(), draining or Draining(), options)
    task = asyncio.create_task(running.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        running.stop()
        running.stop()
        await task


async def answer(port: int, *sent: bytes, until: bytes = b"") -> tuple[bytes, bool]:
    """What the server answers to `sent`, and whether it closes the connection.

    With `until`, it may leave the connection open: then it has a fifth of a second to close it after `until`. What it
    answers takes as long as it takes.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        for piece in sent:
            writer.write(piece)
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30) as deadline:
            while part := await reader.read(65536):
                got += part
                if until and got.endswith(until):
                    deadline.reschedule(asyncio.get_running_loop().time() + 0.2)
        return got, True
    except TimeoutError:
        return got, False
    except ConnectionError:
        return got, True
    finally:
        writer.close()


async def healthy(port: int) -> bool:
    return (await answer(port, GET[:-2] + b"Connection: close\r\n\r\n"))[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhellox",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +5\r\n\r\nhello",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X: b\rc\r\n\r\n",
        b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
        b"GET /\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        GET[:-2] + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        GET[:-2] + b"X: " + b"a" * 70_000,
        GET[:-2] + b"X: a\r\n" * 20_000 + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        CHUNKED + b"5;" + b"a" * 70_000,
        CHUNKED + b"0\r\n" + b"X: aaaaaaaaaaaaaaaaaaaaaaa\r\n" * 4000 + b"\r\n",
        CHUNKED + b"zz\r\n\r\n",
        CHUNKED + b"fffffffffffffffff\r\n",
    ],
)
async def test_a_malformed_request_is_refused_and_its_connection_closed(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo) as port:
        got, closed = await answer(port, sent)
        assert closed and got.startswith(b"HTTP/1.1 400") and b"invalid_request_error" in got
        assert await healthy(port)


async def test_requests_are_served_one_after_the_other_on_one_connection() -> None:
    post = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc"
    chunks = CHUNKED + b"".join(b"1\r\na\r\n" for _ in range(20_000)) + b"0\r\n\r\n"
    async with serving(echo) as port:
        got, closed = await answer(port, GET, post, GET + post + GET, chunks, until=b"20000")
    assert got.count(b"HTTP/1.1 200") == 6 and not closed
    assert got.endswith(b"20000")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        GET[:-2],
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nabc",
        CHUNKED + b"5\r\nab",
        GET,
    ],
)
async def test_a_client_that_sends_no_whole_request_is_disconnected(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo, SHORT) as port:
        got, closed = await answer(port, sent)
    assert closed
    assert got.count(b"200 OK") == (sent == GET)


async def test_a_body_that_drips_ends_at_the_deadline_of_the_whole_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_WHOLE_BODY", 2)
    async with serving(echo, SHORT) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\n")
        dripped = 0
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof() and dripped < 900:
                writer.write(b"x")
                dripped += 1
                await asyncio.sleep(0.05)
        writer.close()
    assert dripped < 900


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        disconnect = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not disconnect.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        ended.set()

    async with serving(app, SHORT) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(GET)
        async with asyncio.timeout(20):
            await ended.wait()
        writer.close()


async def test_nothing_is_read_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client may send on for a while, so that it can read why."""
    monkeypatch.setattr(connections, "_LINGER_BYTES", 100_000)
    head = b"POST /refused HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000000\r\n\r\n"
    async with serving(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"x" * 50_000)
        got = await reader.read()
        assert got.startswith(b"HTTP/1.1 413") and b"connection: close" in got and got.endswith(b"too large")
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"x" * 50_000)
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()


async def test_a_client_that_sends_a_large_body_first_reads_why_it_is_refused() -> None:
    """More than the sockets' buffers and the server's own hold."""
    body = b"x" * 12_000_000
    async with serving(echo) as port, httpx.AsyncClient() as client:
        answer = await client.post(f"http://127.0.0.1:{port}/refused", content=body)
    assert (answer.status_code, answer.text) == (413, "too large")


async def test_a_refused_client_that_sends_nothing_more_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LINGER_S", 0.1)
    async with serving(echo) as port:
        got, closed = await answer(port, b"POST /refused HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\n")
    assert closed and b"413" in got


async def test_a_burst_is_accepted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that make room are closed between two parts, so that the process has files for the others."""
    most = 0
    opened = connections.Connections.opened

    def counted(self: connections.Connections, connection: Any) -> bool:
        nonlocal most
        room = opened(self, connection)
        most = max(most, self._open)
        return room

    monkeypatch.setattr(connections.Connections, "opened", counted)
    async with serving(echo, ConnectionLimits(connections=8)) as port:
        burst = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]  # the server's loop stands still
        assert await healthy(port)
        for each in burst:
            each.close()
    assert 8 <= most < 60


async def test_requests_without_end_on_one_connection_are_refused() -> None:
    async with serving(echo) as port:
        got, closed = await answer(port, GET * 2_000)
        assert closed and b"HTTP/1.1 400" in got
        assert got.count(b"HTTP/1.1 200") < 200
        assert await healthy(port)


@pytest.mark.slow
async def test_half_sent_requests_lock_nobody_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dovetail.server")
    async with serving(echo, ConnectionLimits(connections=8)) as port:
        half = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for _, writer in half:
            writer.write(b"GET / HTTP/1.1\r\nHost")
        for _ in range(3):
            assert await healthy(port)
        await asyncio.sleep(1.1)
        for _, writer in half:
            writer.close()
    lines = [record.getMessage() for record in caplog.records if record.name == "dovetail.server"]
    assert 1 <= len(lines) <= 2 and "closed, because there may be 8 at a time" in lines[0]


async def test_a_connection_that_is_being_answered_keeps_its_place() -> None:
    begun, go = asyncio.Semaphore(0), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        begun.release()
        await go.wait()
        await respond(send, 200, b"done")

    async with serving(slow, ConnectionLimits(connections=4)) as port:
        running = [asyncio.create_task(answer(port, GET, until=b"done")) for _ in range(4)]
        for _ in running:
            await begun.acquire()
        refused, closed = await answer(port, GET)
        assert (refused, closed) == (b"", True)
        go.set()
        assert all(b"200 OK" in got for got, _ in await asyncio.gather(*running))


def test_the_soft_limit_of_files_is_raised_to_what_is_needed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, hard), hard))
        assert connections._affordable(300) == min(300, (hard - 64) // 2)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 664)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# The end after a signal.


async def test_a_signal_lets_answers_end_and_refuses_what_comes() -> None:
    go = asyncio.Event()
    draining = Draining()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] == "/new":
            with pytest.raises(EngineBusy):
                draining.check()
            await respond(send, 503, b"")
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half of ", "more_body": True})
        os.kill(os.getpid(), signal.SIGTERM)
        await go.wait()
        await send({"type": "http.response.body", "body": b"the answer"})

    engine = Engine()
    async with serving(app, engine=engine, draining=draining) as port, httpx.AsyncClient() as client:
        answering = asyncio.create_task(client.get(f"http://127.0.0.1:{port}"))
        while not draining.started:
            await asyncio.sleep(0.01)
        assert (await client.get(f"http://127.0.0.1:{port}/new")).status_code == 503
        go.set()
        assert (await answering).text == "half of the answer"
    assert not engine.stopped.is_set()


@pytest.mark.parametrize("signals", [1, 2])
async def test_the_engine_ends_answers_that_outlast_the_grace_period(signals: int) -> None:
    """Or a second signal. Clients get the engine's error, and not half a line."""
    engine = Engine()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half of ", "more_body": True})
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.05)
        await engine.stopped.wait()
        await send({"type": "http.response.body", "body": b"the answer"})

    grace_s = 0.2 if signals == 1 else 600
    async with serving(app, engine=engine, grace_s=grace_s) as port, httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{port}", timeout=30)).text == "half of the answer"


async def test_a_client_that_reads_nothing_does_not_hold_the_server_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LAST_EVENT_S", 0.1)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await receive())["type"] == "http.disconnect"

    async with serving(app, grace_s=0.1) as port:
        assert await answer(port, GET) == (b"", True)
