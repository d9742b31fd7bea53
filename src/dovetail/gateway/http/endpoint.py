"""An API's endpoint: reads the body, runs the turn, sends the response, and stops when the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from dovetail.gateway.http.bodies import Body
from dovetail.gateway.http.connection import JSON_HEADERS, account_of, client_of, while_connected
from dovetail.gateway.http.errors import unknown_model
from dovetail.gateway.http.event_stream import ResponseStream, send_stream
from dovetail.gateway.http.report_headers import repair_counts, turn_headers
from dovetail.gateway.keys.accounts import Account
from dovetail.gateway.keys.key_limits import check_model, limited, metered
from dovetail.gateway.recordings.capture import NoCapture
from dovetail.gateway.settings import Settings
from dovetail.gateway.telemetry.metrics import Metrics, RequestMetrics
from dovetail.gateway.telemetry.request_report import Api
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import Turn
from dovetail.gateway.turn.turn_request import TurnRequest

#: Threads that prepare turns. The work is Python code, so more threads would only take the event loop's time. There is
#: a second one because compiling a grammar releases the interpreter lock and should not delay other requests.
_PREPARE_THREADS = 2

_LOG = logging.getLogger("dovetail.gateway")


class Exchange(Protocol):
    """One request of an API and its response: the translation that a file of `apis/` makes."""

    model: str
    streams: bool
    turn_request: TurnRequest

    def whole(self, turn: Turn, steps: Sequence[Step]) -> bytes:
        """The body of a response that is not streamed."""

    def stream(self, turn: Turn) -> ResponseStream: ...

    @property
    def concludes(self) -> bool:
        """Whether there is work at the end of the answer that takes long, such as its record or a store."""

    def conclude(self, turn: Turn, steps: Sequence[Step]) -> None:
        """Do that work. Runs in a thread, when all `steps` are there and before the last of them is translated."""


class Endpoint:
    """The endpoint of one API, as an ASGI app.

    An ASGI app and not a Starlette handler, because it watches `receive` for the client's disconnect while it works.
    `read` makes an exchange of a request's body, or raises `InvalidRequest`. Metrics count it under the name `api`.
    """

    def __init__(
        self, read: Callable[[bytes], Exchange], runner: TurnRunner, metrics: Metrics, settings: Settings, api: Api
    ) -> None:
        self._read = read
        self._api: Api = api
        self._runner = runner
        self._metrics = metrics
        self._settings = settings
        self._threads = ThreadPoolExecutor(_PREPARE_THREADS, "dovetail-prepare")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self._metrics.request(self._api, scope["report"])
        try:
            self._runner.draining.check()
            async with self._runner.bodies.read(Request(scope, receive)) as body:
                await while_connected(receive, self._answer(body, send, metrics, scope))
        except ClientDisconnect:
            metrics.disconnected()
        except BaseException as error:
            metrics.failed(error)
            raise
        else:
            metrics.finished()

    async def _answer(self, body: Body, send: Send, metrics: RequestMetrics, scope: Scope) -> None:
        with self._runner.captures.begin(body, scope["report"]) as capture:
            await self._answer_captured(body, send, metrics, scope, capture)

    async def _answer_captured(
        self, body: Body, send: Send, metrics: RequestMetrics, scope: Scope, capture: NoCapture
    ) -> None:
        request_id, account = scope["request_id"], account_of(scope)
        loop = asyncio.get_running_loop()
        exchange, turn = await loop.run_in_executor(self._threads, self._prepare, body, metrics, account)
        body.release()
        metrics.prepared(turn)
        capture.prepared(turn)
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("request %s: repairs: %s", request_id, repair_counts(turn.repairs) or "none")
        async with (
            aclosing(self._runner.steps(turn)) as steps,
            aclosing(self._admitted(steps, turn, client_of(scope), metrics)) as admitted,
            aclosing(metered(admitted, turn, account)) as within_limits,
            aclosing(_concluded(exchange, turn, within_limits, metrics)) as concluded,
            aclosing(capture.steps(concluded)) as captured,
        ):
            if exchange.streams:
                await send_stream(exchange.stream(turn), turn, captured, send, request_id)
            else:
                await _send_whole(exchange, turn, captured, send)

    async def _admitted(
        self, steps: AsyncGenerator[Step], turn: Turn, client: str, metrics: RequestMetrics
    ) -> AsyncGenerator[Step]:
        """`steps` as soon as the engine has a place. Raises `EngineBusy` if it has none in time, or the server ends."""
        draining = self._runner.draining
        places = self._runner.admission.admitted(client, len(turn.choices), turn.prompt_tokens)
        async with AsyncExitStack() as stack:
            draining.check()
            await draining.first(stack.enter_async_context(places))
            metrics.admitted()
            yield await draining.first(anext(steps))
            async for step in steps:
                yield step

    def _prepare(self, body: Body, metrics: RequestMetrics, account: Account | None) -> tuple[Exchange, Turn]:
        exchange = self._exchange(body.take(), metrics, account)
        return exchange, self._turn(exchange, metrics, account)

    def _exchange(self, body: bytes, metrics: RequestMetrics, account: Account | None) -> Exchange:
        exchange = self._decoded(body, account)
        metrics.requested(exchange.model, exchange.streams)
        if exchange.model != self._settings.served_model_name:
            raise unknown_model(exchange.model, self._settings.served_model_name)
        check_model(exchange.model, account)
        return exchange

    def _decoded(self, body: bytes, account: Account | None) -> Exchange:
        return self._read(body)

    def _turn(self, exchange: Exchange, metrics: RequestMetrics, account: Account | None) -> Turn:
        request = exchange.turn_request
        return self._runner.prepare(request if account is None else limited(request, account.limits), metrics.trace)


async def _concluded(
    exchange: Exchange, turn: Turn, steps: AsyncGenerator[Step], metrics: RequestMetrics
) -> AsyncGenerator[Step]:
    """`steps`, each counted, with the exchange concluded before the last one of them."""
    taken: list[Step] = []
    running = len(turn.choices)
    concludes = exchange.concludes
    async for step in steps:
        metrics.step(step)
        running -= step.finish is not None
        if concludes:
            taken.append(step)
            if not running:
                await asyncio.to_thread(exchange.conclude, turn, taken)
        yield step


async def _send_whole(exchange: Exchange, turn: Turn, steps: AsyncGenerator[Step], send: Send) -> None:
    body = exchange.whole(turn, [step async for step in steps])
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [*JSON_HEADERS, length, *turn_headers(turn)]})
    await send({"type": "http.response.body", "body": body})
