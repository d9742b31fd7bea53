"""A response on its way to the client: whole, or as events with pings while the engine is silent; and its headers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import quote

from starlette.types import Send

from dovetail.errors import DovetailError
from dovetail.formats.prompts.history import Repair
from dovetail.gateway.http.errors import public_error
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn import PreparedTurn, Rendered

#: Headers of a response that is a stream of events.
EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx passes the stream on as it comes
]

#: How long a client waits without a byte, at most, so that no proxy gives up.
PING_SECONDS = 10.0

#: The ping of an API without an event that means nothing: a comment, which clients ignore (HTML, "Server-sent events").
COMMENT = b": waiting\n\n"

#: The end of a stream in OpenAI's APIs.
DONE = b"data: [DONE]\n\n"

#: Longest list of fields in a header, in characters, because proxies limit the length of a header.
_LONGEST_LIST = 1_000

Headers = list[tuple[bytes, bytes]]
#: Sends what a step adds to a response.
SendStep = Callable[[Step], Awaitable[None]]


class ResponseStream(Protocol):
    """A streamed response as server-sent events: `start()`, then `step()` for each step until `done`."""

    @property
    def ping(self) -> bytes:
        """What to send while the engine is silent."""

    @property
    def done(self) -> bool: ...

    def start(self) -> bytes: ...

    def step(self, step: Step) -> bytes: ...

    def error(self, error: DovetailError) -> bytes: ...


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


@asynccontextmanager
async def whole(
    make: Callable[[PreparedTurn, Sequence[Step]], bytes], turn: PreparedTurn, send: Send
) -> AsyncIterator[SendStep]:
    """Sends the response that `make` makes of all steps, when the context ends."""
    steps: list[Step] = []

    async def take(step: Step) -> None:
        steps.append(step)

    yield take
    await send_json(make(turn, steps), turn_headers(turn), send)


async def send_json(body: bytes, headers: Headers, send: Send) -> None:
    """Send a whole response."""
    length = (b"content-length", str(len(body)).encode())
    headers = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def streamed(stream: ResponseStream, turn: PreparedTurn, send: Send, request_id: str) -> AsyncIterator[SendStep]:
    """Sends the events of each step that what it yields is called with, and pings in between.

    A failure in the context is the last event, and then raised. If nothing was sent before it, it is only raised.
    """
    events = _EventStream(stream, turn, send)
    pings = asyncio.ensure_future(events.keep_alive())
    pings.add_done_callback(_retrieved)
    try:
        yield events.send
    except Exception as error:
        await events.fail(public_error(error, request_id))
        raise
    finally:
        pings.cancel()


def _retrieved(pings: asyncio.Task[None]) -> None:
    """Take the error of a ping that could not be sent: the next step's events meet the same."""
    if not pings.cancelled():
        pings.exception()


class _EventStream:
    """The events of a streamed response on their way to the client.

    The status is sent with the first event, so that a busy engine becomes a 503 and not a broken stream.
    """

    def __init__(self, stream: ResponseStream, turn: PreparedTurn, send: Send) -> None:
        self._stream = stream
        self._turn = turn
        self._send = send
        self._lock = asyncio.Lock()  # steps and pings come from two tasks
        self._begun = False  # the stream has its first event, which may be empty
        self._started = False  # the status is sent
        self._sent_at = time.monotonic()

    async def send(self, step: Step | None) -> None:
        """Send the events of `step`; None: a ping.

        Returns when the connection takes more: a slow client slows the turn down, and nothing piles up.
        """
        async with self._lock:
            if self._stream.done:  # a ping that waited for the lock
                return
            data = b"" if self._begun else self._stream.start()
            self._begun = True
            data += self._stream.ping if step is None else self._stream.step(step)
            if not data and not self._stream.done:
                return
            if not self._started:
                self._started = True
                headers = [*EVENT_STREAM_HEADERS, *turn_headers(self._turn)]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": not self._stream.done})
            self._sent_at = time.monotonic()

    async def fail(self, error: DovetailError) -> None:
        """Tell the client about `error`, unless nothing was sent yet."""
        async with self._lock:
            if self._started:
                await self._send({"type": "http.response.body", "body": self._stream.error(error)})

    async def keep_alive(self) -> None:
        """Send pings while the engine is silent, so that the client gets a byte every `PING_SECONDS`; until cancelled.

        It sleeps in every round: a ping that has nothing to send, or is sent at once, cannot keep the event loop busy.
        """
        while True:
            await asyncio.sleep(PING_SECONDS / 2)
            if time.monotonic() - self._sent_at >= PING_SECONDS / 2:
                await self.send(None)


def turn_headers(turn: PreparedTurn) -> Headers:
    """Headers that report how the answer differs from what the request spells; none for a request taken as it is.

    They are the repairs made to the history, the fields that no grammar enforces, the fields left out, control
    tokens that a raw prompt spells as text, and the limit on new tokens if it was cut.
    """
    return _present(
        {
            b"x-dovetail-repairs": repair_counts(turn.repairs).encode(),
            b"x-dovetail-unenforced": _field_list(turn.unenforced),
            b"x-dovetail-omitted": _field_list(turn.request.omitted),
            b"x-dovetail-spelled-controls": _field_list(turn.spelled_controls),
            b"x-dovetail-max-tokens": str(turn.max_tokens).encode() if turn.max_tokens_cut else b"",
        }
    )


def rendered_headers(rendered: Rendered) -> Headers:
    """The repairs made to the history and the fields left out, if there are any."""
    return _present(
        {
            b"x-dovetail-repairs": repair_counts(rendered.repairs).encode(),
            b"x-dovetail-omitted": _field_list(rendered.request.omitted),
        }
    )


def _present(headers: dict[bytes, bytes]) -> Headers:
    return [(name, value) for name, value in headers.items() if value]


def repair_counts(repairs: Sequence[Repair]) -> str:
    """The number of repairs of each kind, as in `call_id=3,result_id=3`."""
    if not repairs:
        return ""
    return ",".join(f"{kind}={n}" for kind, n in Counter(repair.kind for repair in repairs).items())


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
