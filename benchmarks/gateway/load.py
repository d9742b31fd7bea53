"""Requests to a front end, by the client of `dovetail bench`. Answers are looked at only when all are there."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from dovetail.client.transport import Arrival, HttpTransport, NotTested, Reply

_LIMIT_S = 600.0
#: Between two requests for the same page.
_EVERY_S = 0.01
#: The latency of a page that did not come.
FAILED_S = 1e9


async def at_once(url: str, path: str, body: Mapping[str, Any], count: int) -> list[Arrival]:
    """`count` requests at once, each on a connection of its own. Raises `NotTested` if one has no answer."""
    async with _client(url) as client:
        data = json.dumps(body).encode()
        return await asyncio.gather(*(client.timed("POST", path, data) for _ in range(count)))


async def one_by_one(url: str, path: str, body: Mapping[str, Any], count: int, *, keep: bool) -> list[Arrival]:
    """`count` requests, each after the answer before: on one connection, or each on a new one. Raises `NotTested`."""
    data, arrivals = json.dumps(body).encode(), []
    async with _client(url) as kept:
        for _ in range(count):
            async with contextlib.nullcontext(kept) if keep else _client(url) as client:
                arrivals.append(await client.timed("POST", path, data))
    return arrivals


async def page_latencies(url: str, path: str, seconds: list[float]) -> None:
    """Ask for a page every 10 ms until cancelled, on new connections, and add each latency to `seconds`."""
    while True:
        async with _client(url) as client:
            try:
                arrival = await client.timed("GET", path, None)
            except NotTested:
                seconds.append(FAILED_S)
            else:
                seconds.append(latency(arrival) if arrival.reply.status == 200 else FAILED_S)
        await asyncio.sleep(max(0.0, _EVERY_S - seconds[-1]))


def latency(arrival: Arrival) -> float:
    """Seconds from when a request was written to its connection to the last bytes of its answer."""
    return arrival.pieces[-1][0] - arrival.sent


def text_of(reply: Reply) -> str:
    """The text that an answer of chat completions or completions adds up to; of any other, its beginning."""
    if reply.status != 200:
        return f"{reply.status}: {reply.body[:900].decode(errors='replace')}"
    if not reply.headers.get("content-type", "").startswith("text/event-stream"):
        return _text(json.loads(reply.body))
    lines = reply.body.split(b"\n")
    events = [line[6:] for line in lines if line.startswith(b"data: ") and line != b"data: [DONE]"]
    return "".join(_text(json.loads(event)) for event in events)


def _text(value: Mapping[str, Any]) -> str:
    text = ""
    for choice in value.get("choices", []):
        part = choice.get("delta") or choice.get("message") or choice
        text += part.get("reasoning_content") or part.get("content") or part.get("text") or ""
    return text


@contextlib.asynccontextmanager
async def _client(url: str) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(url, None, _LIMIT_S)
    try:
        yield transport
    finally:
        await transport.close()
