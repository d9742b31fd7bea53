"""An API's endpoint: reads the body, runs the turn, sends the response, and stops when the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from dovetail.gateway.http.connection import JSON_HEADERS, account_of, client_of, while_connected
from dovetail.gateway.http.errors import unknown_model
from dovetail.gateway.http.event_stream import ResponseStream, SendStep, streamed
from dovetail.gateway.http.report_headers import repair_counts, turn_headers
from dovetail.gateway.http.serving import Serving
from dovetail.gateway.limits.accounts import Account
from dovetail.gateway.limits.bodies import Body
from dovetail.gateway.limits.key_limits import check_model, limited, metered
from dovetail.gateway.observe.capture import wanted
from dovetail.gateway.observe.request_report import Api, RequestReport
from dovetail.gateway.turn.observer import Observer
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn import Turn
from dovetail.gateway.turn.turn_request import TurnRequest

#: Threads that prepare turns. The work is Python code, so more threads would only take the event loop's time. There is
#: a second one because compiling a grammar releases the interpreter lock and should not delay other requests.
_PREPARE_THREADS = 2

#: A response on its way. What it yields sends a step; the end of the context sends the rest, or reports an error.
Response = AbstractAsyncContextManager[SendStep]

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

    def __init__(self, read: Callable[[bytes], Exchange], serving: Serving, api: Api) -> None:
        self._read = read
        self._api: Api = api
        self._serving = serving
        self._threads = ThreadPoolExecutor(_PREPARE_THREADS, "dovetail-prepare")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, report = self._serving, scope["report"]
        observers: list[Observer] = [serving.metrics.request(self._api, report)]
        try:
            serving.draining.check()
            async with serving.bodies.read(Request(scope, receive)) as body:
                if serving.captures is not None and (capture := serving.captures.begin(body.data, report)) is not None:
                    observers.append(capture)
                await while_connected(receive, self._answer(body, send, observers, scope))
        except BaseException as error:
            _end(observers, error)
            if not isinstance(error, ClientDisconnect):
                raise
        else:
            _end(observers, None)

    async def _answer(self, body: Body, send: Send, observers: Sequence[Observer], scope: Scope) -> None:
        report, loop = scope["report"], asyncio.get_running_loop()
        exchange, turn = await loop.run_in_executor(self._threads, self._prepare, body, report, account_of(scope))
        body.release()
        for observer in observers:
            observer.prepared(turn)
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("request %s: repairs: %s", report.id, repair_counts(turn.repairs) or "none")
        if exchange.streams:
            response = streamed(exchange.stream(turn), turn, send, report.id)
        else:
            response = _whole(exchange, turn, send)
        await self._run(exchange, turn, response, observers, scope)

    async def _run(
        self, exchange: Exchange, turn: Turn, response: Response, observers: Sequence[Observer], scope: Scope
    ) -> None:
        """Run the turn: the one loop over its steps."""
        steps_taken: list[Step] = []
        running = len(turn.choices)
        async with AsyncExitStack() as stack:
            send_step = await stack.enter_async_context(response)
            if (account := account_of(scope)) is not None:
                observers = [*observers, stack.enter_context(metered(turn, account))]
            await stack.enter_async_context(self._admitted(turn, client_of(scope)))
            for observer in observers:
                observer.admitted()
            steps = await stack.enter_async_context(aclosing(self._serving.runner.steps(turn)))
            step = await self._serving.draining.first(anext(steps))
            while True:
                for observer in observers:
                    observer.step(step)
                running -= step.finish is not None
                if exchange.concludes:
                    steps_taken.append(step)
                    if not running:
                        await asyncio.to_thread(exchange.conclude, turn, steps_taken)
                await send_step(step)
                if not running:
                    return
                step = await anext(steps)

    @asynccontextmanager
    async def _admitted(self, turn: Turn, client: str) -> AsyncIterator[None]:
        """A place in the engine. Raises `EngineBusy` if there is none in time, or the server ends."""
        draining = self._serving.draining
        draining.check()
        places = self._serving.admission.admitted(client, len(turn.choices), turn.prompt_tokens)
        async with AsyncExitStack() as stack:
            await draining.first(stack.enter_async_context(places))
            yield

    def _prepare(self, body: Body, report: RequestReport, account: Account | None) -> tuple[Exchange, Turn]:
        exchange = self._exchange(body.take(), report, account)
        return exchange, self._turn(exchange, report, account)

    def _exchange(self, body: bytes, report: RequestReport, account: Account | None) -> Exchange:
        exchange, served = self._decoded(body, account), self._serving.settings.served_model_name
        report.model, report.streams = exchange.model, exchange.streams
        if exchange.model != served:
            raise unknown_model(exchange.model, served)
        check_model(exchange.model, account)
        return exchange

    def _decoded(self, body: bytes, account: Account | None) -> Exchange:
        return self._read(body)

    def _turn(self, exchange: Exchange, report: RequestReport, account: Account | None) -> Turn:
        request = exchange.turn_request
        recorded = wanted(self._serving.captures, request.extension.recording)
        request = request if account is None else limited(request, account.limits)
        return self._serving.runner.prepare(request, report.trace, recorded=recorded)


def _end(observers: Sequence[Observer], error: BaseException | None) -> None:
    for observer in reversed(observers):
        observer.ended(error)


@asynccontextmanager
async def _whole(exchange: Exchange, turn: Turn, send: Send) -> AsyncIterator[SendStep]:
    """A response that is not streamed: it is sent when the context ends."""
    steps: list[Step] = []

    async def take(step: Step) -> None:
        steps.append(step)

    yield take
    body = exchange.whole(turn, steps)
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [*JSON_HEADERS, length, *turn_headers(turn)]})
    await send({"type": "http.response.body", "body": body})
