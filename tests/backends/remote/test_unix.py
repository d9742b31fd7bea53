"""A server on a Unix socket: the same pages and streams as over TCP, by another server than ours (aiohttp's)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from dovetail.backends.remote import RemoteEngine, Server
from dovetail.backends.remote.errors import ServerLost
from dovetail.backends.remote.http import Http
from dovetail.completion import total
from tests.backends.remote.fake import (
    PROMPT,
    VOCABULARY,
    completion,
    continuation,
    ids_of,
    run,
    sse,
    until,
    vllm_answer,
    vllm_chunk,
)

URL = "http://vllm"


class Served:
    """`path` is its socket. `headers` are those of its last request, `running` its streams."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.headers: dict[str, str] = {}
        self.running = 0
        self.endless = False

    async def page(self, request: web.Request) -> web.Response:
        self.headers = dict(request.headers)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 512}]})
        return web.Response(text="vllm:num_requests_running 3\n" if request.path == "/metrics" else "")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self.headers = dict(request.headers)
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        try:
            while self.endless:
                await response.write(sse(vllm_chunk([10])))
                await asyncio.sleep(0.005)
            async for piece in vllm_answer(body):
                await response.write(piece)
            return response
        finally:
            self.running -= 1


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    it = Served(str(folder / "vllm"))
    app = web.Application()
    app.router.add_get("/{page:.*}", it.page)
    app.router.add_post("/v1/completions", it.stream)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, it.path).start()
    try:
        yield it
    finally:
        await runner.cleanup()


def with_engine(folder: Path, test: Callable[[RemoteEngine, Served], Awaitable[None]]) -> None:
    async def main() -> None:
        async with served(folder) as it:
            engine = RemoteEngine([Server(URL, VOCABULARY, key="secret", path=it.path)])
            await engine.start()
            try:
                await test(engine, it)
            finally:
                await engine.stop()

    run(main)


def test_completions_and_counters_come_over_it(tmp_path: Path) -> None:
    async def test(engine: RemoteEngine, it: Served) -> None:
        batches = [batch async for batch in engine.complete(completion())]
        assert ids_of(batches) == continuation(PROMPT, 8)
        assert (it.headers["Host"], it.headers["Authorization"]) == ("vllm", "Bearer secret")
        await until(lambda: total(engine.gauges(), "running") == 3)
        many = await asyncio.gather(*(drained(engine) for _ in range(64)))
        assert many == [continuation(PROMPT, 8)] * 64

    with_engine(tmp_path, test)


async def drained(engine: RemoteEngine) -> list[int]:
    return ids_of([batch async for batch in engine.complete(completion())])


def test_closing_an_answer_ends_it_there(tmp_path: Path) -> None:
    async def test(engine: RemoteEngine, it: Served) -> None:
        it.endless = True
        async with aclosing(engine.complete(completion(10**6))) as batches:
            async for _ in batches:
                assert it.running == 1
                break
        await until(lambda: not it.running)

    with_engine(tmp_path, test)


def test_a_socket_where_nobody_listens_was_not_sent_to(tmp_path: Path) -> None:
    async def main() -> None:
        http = Http(URL, "vllm", None, 1.0, str(tmp_path / "vllm"))
        for why in ("No such file or directory", "Connection refused"):
            with pytest.raises(ServerLost, match=f"vllm cannot be reached: {why}") as caught:
                await http.page("/health")
            assert not caught.value.sent
            with socket.socket(socket.AF_UNIX) as dead:  # it stays when who listened is gone
                if why.startswith("No such"):
                    dead.bind(str(tmp_path / "vllm"))
        await http.close()

    run(main)


def test_a_full_queue_is_waited_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux refuses to queue more at a Unix socket, where TCP would let one wait."""
    path = str(tmp_path / "vllm")
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen(0)
            http = Http(URL, "vllm", None, 1.0, path)
            pages = [asyncio.create_task(http.page("/health", {"x": "y" * 100_000})) for _ in range(8)]
            await asyncio.sleep(0.1)  # in which the queue is full
            assert not any(page.done() for page in pages)

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
                writer.write(body)
                await writer.drain()
                writer.close()

            async with await asyncio.start_unix_server(answer, sock=listening):
                assert await asyncio.gather(*pages) == [(200, b"ok")] * 8
            await http.close()

    run(main)


def test_a_queue_that_stays_full_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.backends.remote.http.CONNECT_S", 0.2)
    path = str(tmp_path / "vllm")

    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen(0)
            http = Http(URL, "vllm", None, 1.0, path)
            waiting = asyncio.create_task(http.page("/health"))  # the one that there is room for
            await asyncio.sleep(0.05)
            with pytest.raises(ServerLost, match="it accepts no connection") as caught:
                await http.page("/health")
            assert not caught.value.sent
            await http.close()
            await asyncio.gather(waiting, return_exceptions=True)

    run(main)
