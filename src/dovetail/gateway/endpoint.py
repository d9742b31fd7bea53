"""An API's endpoint: reads the body, runs the turn, sends the response, and stops when the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Protocol
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from dovetail.errors import DovetailError, PayloadTooLarge
from dovetail.gateway.errors import public_error, unknown_model
from dovetail.gateway.metrics import Metrics, RequestMetrics
from dovetail.gateway.output import Step
from dovetail.gateway.settings import Settings
from dovetail.gateway.turn import Turn, TurnRunner
from dovetail.gateway.turn_request import TurnRequest

#: Longest list of fields in a header, in characters, because proxies limit the length of a header.
_LONGEST_LIST = 1_000

#: Threads that prepare turns. The work is Python code, so more threads would only take the event loop's time. There is
#: a second one because compiling a grammar releases the interpreter lock and should not delay other requests.
_PREPARE_THREADS = 2

_LOG = logging.getLogger("dovetail.gateway")

_JSON = [(b"content-type", b"application/json")]
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx passes the stream on as it comes
]


class ResponseStream(Protocol):
    """A streamed response as server-sent events: `start()`, then `step()` for each step until `done`."""

    @property
    def done(self) -> bool: ...

    def start(self) -> bytes: ...

    def step(self, step: Step) -> bytes: ...

    def error(self, error: DovetailError) -> bytes: ...


class Exchange(Protocol):
    """One request of an API and its response: the translation that a file of `apis/` makes."""

    model: str
    streams: bool
    turn_request: TurnRequest

    def whole(self, turn: Turn, steps: Sequence[Step]) -> bytes:
        """The body of a response that is not streamed."""

    def stream(self, turn: Turn) -> ResponseStream: ...


class Endpoint:
    """The endpoint of one API, as an ASGI app.

    An ASGI app and not a Starlette handler, because it watches `receive` for the client's disconnect while it works.
    `read` makes an exchange of a request's body, or raises `InvalidRequest`.
    """

    def __init__(
        self, read: Callable[[bytes], Exchange], runner: TurnRunner, metrics: Metrics, settings: Settings
    ) -> None:
        self._read = read
        self._runner = runner
        self._metrics = metrics
        self._settings = settings
        self._threads = ThreadPoolExecutor(_PREPARE_THREADS, "dovetail-prepare")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self._metrics.request()
        try:
            body = await _body(Request(scope, receive), self._settings.max_body_bytes)
            await _while_connected(receive, self._answer(body, send, metrics, scope["request_id"]))
        except ClientDisconnect:
            metrics.disconnected()
        except Exception as error:
            metrics.failed(error)
            raise
        else:
            metrics.finished()

    async def _answer(self, body: bytes, send: Send, metrics: RequestMetrics, request_id: str) -> None:
        exchange, turn = await asyncio.get_running_loop().run_in_executor(self._threads, self._prepare, body)
        metrics.prepared(len(turn.prompt), turn.repairs)
        _LOG.debug("request %s: repairs: %s", request_id, _repair_counts(turn) or "none")
        async with aclosing(self._runner.steps(turn)) as steps, aclosing(_counted(steps, metrics)) as counted:
            if exchange.streams:
                await _send_stream(exchange.stream(turn), turn, counted, send, request_id)
            else:
                await _send_whole(exchange, turn, counted, send)

    def _prepare(self, body: bytes) -> tuple[Exchange, Turn]:
        exchange = self._read(body)
        if exchange.model != self._settings.served_model_name:
            raise unknown_model(exchange.model, self._settings.served_model_name)
        return exchange, self._runner.prepare(exchange.turn_request)


async def _counted(steps: AsyncGenerator[Step], metrics: RequestMetrics) -> AsyncGenerator[Step]:
    async for step in steps:
        metrics.step(step)
        yield step


async def _send_whole(exchange: Exchange, turn: Turn, steps: AsyncGenerator[Step], send: Send) -> None:
    body = exchange.whole(turn, [step async for step in steps])
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [*_JSON, length, *_report_headers(turn)]})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(
    stream: ResponseStream, turn: Turn, steps: AsyncGenerator[Step], send: Send, request_id: str
) -> None:
    # The status is sent after the first step, so that a busy engine becomes a 503 and not a broken stream.
    step = await anext(steps)
    await send({"type": "http.response.start", "status": 200, "headers": [*_EVENT_STREAM, *_report_headers(turn)]})
    try:
        data = stream.start() + stream.step(step)
        while not stream.done:
            if data:
                # Returns when the connection takes more: a slow client slows this loop down, and nothing piles up.
                await send({"type": "http.response.body", "body": data, "more_body": True})
            step = await anext(steps)
            data = stream.step(step)
    except Exception as error:
        data = stream.error(public_error(error, request_id))
        await send({"type": "http.response.body", "body": data})
        raise
    await send({"type": "http.response.body", "body": data})


def _repair_counts(turn: Turn) -> str:
    """The number of repairs of each kind, as in `call_id=3,result_id=3`."""
    return ",".join(f"{kind}={n}" for kind, n in Counter(repair.kind for repair in turn.repairs).items())


def _report_headers(turn: Turn) -> list[tuple[bytes, bytes]]:
    """Headers that name the repairs made to the history and the fields that no grammar enforces, if there are any."""
    repairs = [(b"x-dovetail-repairs", _repair_counts(turn).encode())] if turn.repairs else []
    return repairs + ([(b"x-dovetail-unenforced", _field_list(turn.unenforced))] if turn.unenforced else [])


def _field_list(fields: Sequence[str]) -> bytes:
    """As many fields as fit, percent-encoded like a JSON pointer in a URI, and the number of the others."""
    shown: list[str] = []
    room = _LONGEST_LIST
    for field in fields:
        if len(field) > room:  # skipped without encoding it, which makes nothing shorter: there may be very many
            continue
        encoded = quote(field, safe="/#[]$~:@!&'()*+=?")
        if len(encoded) <= room:
            shown.append(encoded)
            room -= len(encoded)
    rest = len(fields) - len(shown)
    return ", ".join((*shown, *([f"{rest} more"] if rest else []))).encode()


async def _body(request: Request, limit: int) -> bytes:
    """The whole body. Raises `PayloadTooLarge` past `limit` bytes, without reading on, and `ClientDisconnect`."""
    too_large = PayloadTooLarge(f"the body is larger than the limit of {limit} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Wait for `work`. If the client disconnects first, cancel `work` and raise `ClientDisconnect`."""
    working = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        working.result()
    finally:
        working.cancel()
        disconnect.cancel()
        await asyncio.gather(working, disconnect, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
