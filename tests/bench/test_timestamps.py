"""Times are taken at the socket: what the client's own event loop does meanwhile is not in them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp.streams import StreamReader

from dovetail.client import transport as transport_module
from dovetail.client.transport import Arrival, HttpTransport
from tests.verify.harness import served

_BUSY_S = 0.03


async def _stream(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(3):
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        await asyncio.sleep(0.005)  # so that each is a piece
    await send({"type": "http.response.body"})


def _timed(busy: float = 0.0) -> tuple[float, Arrival]:
    """When a request was asked for, and its times. `busy`: seconds for which the event loop then does other work."""

    async def main(address: str) -> tuple[float, Arrival]:
        transport = HttpTransport(address, None, 20)
        try:
            began = asyncio.get_running_loop().time()
            request = asyncio.create_task(transport.timed("POST", "/", b"{}"))
            await asyncio.sleep(0)
            time.sleep(busy)
            return began, await request
        finally:
            await transport.close()

    with served(_stream) as address:
        return asyncio.run(main(address))


def test_a_request_is_sent_when_it_is_written() -> None:
    began, arrival = _timed(_BUSY_S)
    assert arrival.sent - began >= _BUSY_S
    times = [arrival.sent, *(at for at, _ in arrival.pieces)]
    assert times == sorted(times)


def test_a_piece_has_come_when_its_bytes_came(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[float] = []
    feed = StreamReader.feed_data

    def slow(*arguments: Any) -> Any:
        fed.append(time.monotonic())
        time.sleep(_BUSY_S)  # work of the client before the one who waits for these bytes has its turn
        return feed(*arguments)

    monkeypatch.setattr(StreamReader, "feed_data", slow)
    _, arrival = _timed()
    assert arrival.pieces[0][0] <= fed[0] and arrival.pieces[-1][0] <= fed[-1]
    assert arrival.pieces[-1][1] == len(arrival.reply.body) == 30


@pytest.mark.parametrize(("idle", "connections"), [(60.0, 1), (0.01, 2)])
def test_a_connection_that_was_idle_is_not_used_again(
    idle: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may be closing it at that moment."""
    ports: set[int] = set()

    async def note(scope: Any, receive: Any, send: Any) -> None:
        ports.add(scope["client"][1])
        await _stream(scope, receive, send)

    async def main(address: str) -> None:
        transport = HttpTransport(address, None, 20)
        try:
            await transport.timed("POST", "/", b"{}")
            await asyncio.sleep(0.1)
            await transport.timed("POST", "/", b"{}")
        finally:
            await transport.close()

    monkeypatch.setattr(transport_module, "IDLE_S", idle)
    with served(note) as address:
        asyncio.run(main(address))
    assert len(ports) == connections
