"""POST /v1/chat/completions: reads the body, runs the turn, sends what comes, and stops when the client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from dovetail.errors import PayloadTooLarge, UnknownModel
from dovetail.gateway.apis import chat_response
from dovetail.gateway.apis.chat_request import decode
from dovetail.gateway.errors import error_json, told
from dovetail.gateway.metrics import Metrics, RequestMetrics
from dovetail.gateway.settings import Settings
from dovetail.gateway.turn import Chat, Step, Turn

#: Characters of places in a header: proxies bound the length of one.
_LONGEST_LIST = 1_000

#: Threads that prepare requests. Reading, rendering and tokenizing are Python, so more threads take longer turns from
#: the event loop and serve nobody sooner; with a second one, what the library compiles holds up no other request.
_PREPARING = 2

_LOG = logging.getLogger("dovetail.gateway")

_JSON = [(b"content-type", b"application/json")]
# The last one asks nginx not to collect a stream before passing it on.
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ChatCompletions:
    """The endpoint, as an ASGI app of its own because it watches `receive` for the client's leaving while it works."""

    def __init__(self, chat: Chat, metrics: Metrics, settings: Settings) -> None:
        self._chat = chat
        self._metrics = metrics
        self._settings = settings
        self._threads = ThreadPoolExecutor(_PREPARING, "dovetail-prepare")

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
        turn = await asyncio.get_running_loop().run_in_executor(self._threads, self._prepare, body)
        metrics.prepared(len(turn.prompt), turn.repairs)
        _LOG.debug("request %s: repairs: %s", request_id, _counts(turn) or "none")
        async with aclosing(self._chat.steps(turn)) as steps, aclosing(_counted(steps, metrics)) as counted:
            if turn.request.stream:
                await _stream(turn, counted, send, request_id)
            else:
                await _whole(turn, counted, send)

    def _prepare(self, body: bytes) -> Turn:
        request = decode(body)
        served = self._settings.served_model_name
        if request.model != served:
            raise UnknownModel(f"the model {request.model!r:.80} is not served here; {served!r} is", param="model")
        return self._chat.prepare(request)


async def _counted(steps: AsyncGenerator[Step], metrics: RequestMetrics) -> AsyncGenerator[Step]:
    async for step in steps:
        metrics.step(step)
        yield step


async def _whole(turn: Turn, steps: AsyncGenerator[Step], send: Send) -> None:
    body = chat_response.whole(turn, [step async for step in steps])
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [*_JSON, length, *_told(turn)]})
    await send({"type": "http.response.body", "body": body})


async def _stream(turn: Turn, steps: AsyncGenerator[Step], send: Send, request_id: str) -> None:
    stream = chat_response.Stream(turn)
    # The status waits for the first step, so that an engine that is busy answers 503 and not a broken stream.
    step = await anext(steps)
    await send({"type": "http.response.start", "status": 200, "headers": [*_EVENT_STREAM, *_told(turn)]})
    try:
        data = stream.start() + stream.step(step)
        while not stream.done:
            if data:
                # Returns when the connection takes more: a slow client holds this loop up, and nothing piles up in it.
                await send({"type": "http.response.body", "body": data, "more_body": True})
            step = await anext(steps)
            data = stream.step(step)
    except Exception as error:
        data = chat_response.sse(error_json(told(error, request_id)))
        await send({"type": "http.response.body", "body": data})
        raise
    await send({"type": "http.response.body", "body": data})


def _counts(turn: Turn) -> str:
    """How often each kind of repair was made."""
    return ",".join(f"{kind}={n}" for kind, n in Counter(repair.kind for repair in turn.repairs).items())


def _told(turn: Turn) -> list[tuple[bytes, bytes]]:
    """Headers that are there when there is something to tell: what was mended, and what no grammar enforces."""
    repairs = [(b"x-dovetail-repairs", _counts(turn).encode())] if turn.repairs else []
    return repairs + ([(b"x-dovetail-unenforced", _listed(turn.unenforced))] if turn.unenforced else [])


def _listed(places: Sequence[str]) -> bytes:
    """As many places as fit, percent-encoded as a JSON pointer in a URI is, and how many more there are."""
    shown: list[str] = []
    left = _LONGEST_LIST
    for place in places:
        if len(place) > left:  # encoding makes nothing shorter, and there may be very many
            continue
        spelled = quote(place, safe="/#[]$~:@!&'()*+=?")
        if len(spelled) <= left:
            shown.append(spelled)
            left -= len(spelled)
    rest = len(places) - len(shown)
    return ", ".join((*shown, *([f"{rest} more"] if rest else []))).encode()


async def _body(request: Request, limit: int) -> bytes:
    """The whole body. Raises `PayloadTooLarge` past `limit` bytes, without reading on, and `ClientDisconnect`."""
    too_large = PayloadTooLarge(f"the body is larger than the {limit} bytes that are accepted")
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
    """Waits for `work`; when the client leaves first, `work` is cancelled and `ClientDisconnect` raised."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
