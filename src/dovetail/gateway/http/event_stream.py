"""A streamed response on its way to the client: its events, and pings while the engine is silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from starlette.types import Send

from dovetail.errors import DovetailError
from dovetail.gateway.http.errors import public_error
from dovetail.gateway.http.report_headers import turn_headers
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn import Turn

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


@asynccontextmanager
async def streamed(stream: ResponseStream, turn: Turn, send: Send, request_id: str) -> AsyncIterator[SendStep]:
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

    def __init__(self, stream: ResponseStream, turn: Turn, send: Send) -> None:
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
