"""Endpoints of the APIs: read the body, run the turn, send the response, and stop when the client disconnects."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from dovetail.completion import Picture
from dovetail.errors import ContextExceeded, InvalidRequest
from dovetail.gateway.http.picture_fetch import PictureFetcher
from dovetail.gateway.http.response import (
    ResponseStream,
    SendStep,
    rendered_headers,
    repair_counts,
    send_json,
    streamed,
    whole,
)
from dovetail.gateway.limits.bodies import Bodies, Body, check_count, salt_and_session
from dovetail.gateway.limits.keys import Account, limited, metered, salted
from dovetail.gateway.limits.queue import Admission, Draining, FairThreads
from dovetail.gateway.models import Model, Models, Served
from dovetail.gateway.observe.capture import Captures
from dovetail.gateway.observe.request_report import Api, RequestReport
from dovetail.gateway.records.memory import Memory, Tenant, owner_named, owner_of
from dovetail.gateway.settings import Settings
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.picture_files import undecodable
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import Observer, PreparedTurn, Rendered
from dovetail.gateway.turn.turn_request import TurnRequest

_LOG = logging.getLogger("dovetail.gateway")

#: The size of a body that is searched for the name of its model on the event loop: 0.1 ms.
_QUICK_BYTES = 1 << 17

T = TypeVar("T")


class Serving(NamedTuple):
    """What the endpoints of one server share. `captures` is None where no request is recorded.

    `preparing`: the threads that prepare turns. `querying`: those for queries, so that a long text to tokenize delays
    no turn. `remembering` has the thread that keeps answers, which may have to wait for the disk.
    """

    models: Models
    settings: Settings
    bodies: Bodies
    draining: Draining
    preparing: FairThreads
    querying: FairThreads
    captures: Captures | None
    pictures: PictureFetcher
    remembering: Executor
    memory: Memory | None = None


class Exchange(Protocol):
    """One request of an API and its response: the translation that a file of `apis/` makes."""

    model: str
    streams: bool
    turn_request: TurnRequest

    def whole(self, turn: PreparedTurn, steps: Sequence[Step]) -> bytes:
        """The body of a response that is not streamed."""

    def stream(self, turn: PreparedTurn) -> ResponseStream: ...

    @property
    def concludes(self) -> bool:
        """Whether there is work at the end of the answer that takes long, such as its record or a store."""

    def conclude(self, turn: PreparedTurn, steps: Sequence[Step]) -> None:
        """Do that work. Runs in a thread, when all `steps` are there and before the last of them is translated."""


#: Makes something of a request's body, given the account of its key and the model.
Read = Callable[[bytes, Account | None, TurnRunner], T]


def plain(read: Callable[[bytes, Account | None], T]) -> Read[T]:
    """`read`, which needs to know nothing of the model."""
    return lambda body, account, _: read(body, account)


def seeing(read: Callable[..., T]) -> Read[T]:
    """`read`, which learns at the first picture whether the model sees any."""
    return lambda body, account, runner: read(body, account, sees=lambda: runner.sees)


class Endpoint:
    """The endpoint of one API, as an ASGI app.

    An ASGI app and not a Starlette handler, because it watches `receive` for the client's disconnect while it works.
    `read` makes an exchange of a request's body, given the account of its key and the model, or raises
    `InvalidRequest`. Metrics count it under the name `api`.
    """

    def __init__(self, read: Read[Exchange], serving: Serving, api: Api) -> None:
        self._read = read
        self._api: Api = api
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, report = self._serving, scope["report"]
        counted = serving.models.metrics.request(self._api, report)
        observers: list[Observer] = [counted]
        try:
            serving.draining.check()
            async with serving.bodies.read(Request(scope, receive)) as body:
                captures = serving.captures
                if captures is not None and (capture := await captures.begin(body.data, report)) is not None:
                    observers.append(capture)
                served = await named_model(serving, body, account_of(scope))
                counted.count_in(served.metrics)
                with served.in_use():
                    await while_connected(receive, self._answer(served, body, send, observers, scope))
        except BaseException as error:
            _end(observers, error)
            if not isinstance(error, ClientDisconnect):
                raise
        else:
            _end(observers, None)

    async def _answer(
        self, served: Served, body: Body, send: Send, observers: Sequence[Observer], scope: Scope
    ) -> None:
        report, account, model = scope["report"], account_of(scope), served.model
        prepare = functools.partial(self._prepare, served, model, body, report, account)
        try:
            exchange, turn = await _in_turn(self._serving.preparing, scope, prepare)
            if turn is None:
                exchange.turn_request = await self._serving.pictures.fetched(exchange.turn_request)
                prepare_turn = functools.partial(self._turn, model, exchange, report, account)
                turn = await _in_turn(self._serving.preparing, scope, prepare_turn)
        except ContextExceeded as error:
            if account is not None:
                account.use(min(error.prompt, model.runner.context))
            raise
        pictures = turn.request.picture_bytes
        body.release(body.size + pictures if pictures else 0)  # the engine and the exchange have them until the end
        for observer in observers:
            observer.prepared(turn)
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("request %s: repairs: %s", report.id, repair_counts(turn.repairs) or "none")
        response = (
            streamed(exchange.stream(turn), turn, send, report.id)
            if exchange.streams
            else whole(exchange.whole, turn, send)
        )
        await self._run(model, exchange, turn, response, observers, scope)

    async def _run(
        self,
        model: Model,
        exchange: Exchange,
        turn: PreparedTurn,
        response: AbstractAsyncContextManager[SendStep],
        observers: Sequence[Observer],
        scope: Scope,
    ) -> None:
        """Run the turn: the one loop over its steps."""
        steps_taken: list[Step] = []
        running = len(turn.choices)
        remembers = turn.request.place is not None or turn.sent is not None
        concludes = exchange.concludes or remembers
        async with AsyncExitStack() as stack:
            send_step = await stack.enter_async_context(response)
            if (account := account_of(scope)) is not None:
                observers = [*observers, await stack.enter_async_context(metered(turn, account))]
            await stack.enter_async_context(self._admitted(model.admission, turn, client_of(scope)))
            for observer in observers:
                observer.admitted()
            steps = await stack.enter_async_context(aclosing(model.runner.steps(turn)))
            step = await self._first(turn, steps)
            while True:
                for observer in observers:
                    observer.step(step)
                running -= step.finish is not None
                if concludes:
                    steps_taken.append(step)
                    if not running:
                        await self._conclude(model.runner, exchange, turn, steps_taken)
                await send_step(step)
                if not running:
                    return
                step = await anext(steps)

    async def _first(self, turn: PreparedTurn, steps: AsyncGenerator[Step]) -> Step:
        """The first step. If the engine refuses a request with a damaged picture, the error names that."""
        try:
            return await self._serving.draining.first(anext(steps))
        except InvalidRequest as error:
            pictures = [picture for picture in turn.request.pictures if isinstance(picture, Picture)]
            if not pictures or isinstance(error, ContextExceeded):
                raise
            damaged = await asyncio.to_thread(undecodable, pictures)
            if damaged is None:
                raise
            raise damaged from error

    async def _conclude(
        self, runner: TurnRunner, exchange: Exchange, turn: PreparedTurn, steps: Sequence[Step]
    ) -> None:
        """Do what takes long at the end of an answer: the exchange's own work, and what the server remembers."""
        if turn.request.place is not None or turn.sent is not None:
            remember = functools.partial(runner.remember, turn, steps)
            await asyncio.get_running_loop().run_in_executor(self._serving.remembering, remember)
        if exchange.concludes:
            await asyncio.to_thread(exchange.conclude, turn, steps)

    @asynccontextmanager
    async def _admitted(self, admission: Admission, turn: PreparedTurn, client: str) -> AsyncIterator[None]:
        """A place in the engine. Raises `EngineBusy` if there is none in time, or the server ends."""
        draining = self._serving.draining
        draining.check()
        places = admission.admitted(client, len(turn.choices), turn.prompt_tokens)
        async with AsyncExitStack() as stack:
            await draining.first(stack.enter_async_context(places))
            yield

    def _prepare(
        self, served: Served, model: Model, body: Body, report: RequestReport, account: Account | None
    ) -> tuple[Exchange, PreparedTurn | None]:
        """The exchange and its turn; no turn yet if pictures have to be fetched first."""
        exchange = self._exchange(served, model.runner, body.take(), report, account)
        if exchange.turn_request.has_remote_pictures:
            return exchange, None
        return exchange, self._turn(model, exchange, report, account)

    def _exchange(
        self, served: Served, runner: TurnRunner, body: bytes, report: RequestReport, account: Account | None
    ) -> Exchange:
        check_count(body, self._serving.settings.max_messages)
        exchange = self._read(body, account, runner)
        name = report.model = exchange.model
        report.streams = exchange.streams
        self._serving.models.check(served, name, account)
        salt, session = salt_and_session(body)
        settings = self._serving.settings
        tenant = None if settings.memory is None else tenant_of(settings, account, salt)
        adapter = name if name in served.names.adapters else ""
        request = replace(exchange.turn_request, session=report.session or session, tenant=tenant, adapter=adapter)
        exchange.turn_request = self._salted(runner, request, salt, account)
        return exchange

    def _salted(
        self, runner: TurnRunner, request: TurnRequest, salt: str | None, account: Account | None
    ) -> TurnRequest:
        """`request` with the salt for the prompts that the engine caches, as far as the engine has such salts."""
        if not runner.salts_cache:
            return request if salt is None else replace(request, omitted=(*request.omitted, "cache_salt"))
        name = account.name if account is not None and self._serving.settings.salt_cache else None
        return request if name is salt is None else replace(request, cache_salt=salted(name, salt))

    def _turn(self, model: Model, exchange: Exchange, report: RequestReport, account: Account | None) -> PreparedTurn:
        request, captures = exchange.turn_request, self._serving.captures
        if captures is None and request.extension.recording:
            message = "dovetail.recording is true, but this server records nothing: it needs `serve --record DIR`"
            raise InvalidRequest(message, param="dovetail.recording")
        recorded = captures is not None and captures.wants(request.extension.recording)
        request = request if account is None else limited(request, account.limits)
        return model.runner.prepare(request, report.trace, recorded=recorded)


def _end(observers: Sequence[Observer], error: BaseException | None) -> None:
    for observer in reversed(observers):
        observer.ended(error)


class Reply(NamedTuple):
    """The body of a response, and the prompt that it is about, if the request's messages were rendered."""

    body: bytes
    rendered: Rendered | None = None


class Query(Protocol):
    """One query of an API. `model` is None if the request names no model."""

    @property
    def model(self) -> str | None: ...

    def reply(self, runner: TurnRunner, tenant: Tenant) -> Reply:
        """The response, with the answers of `tenant`. Runs in a thread; raises `InvalidRequest` or `RenderError`."""


class QueryEndpoint:
    """An endpoint for one kind of query, as an ASGI app.

    `read` makes a query of a request's body, given the account of its key and the model, or raises `InvalidRequest`.
    """

    def __init__(self, read: Read[Query], serving: Serving) -> None:
        self._read = read
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            async with self._serving.bodies.read(Request(scope, receive)) as body:
                served = await named_model(self._serving, body, account_of(scope))
                with served.in_use():
                    await while_connected(receive, self._answer(served, body, send, scope))

    async def _answer(self, served: Served, body: Body, send: Send, scope: Scope) -> None:
        answer = functools.partial(self._reply, served, served.model.runner, body, account_of(scope))
        reply = await _in_turn(self._serving.querying, scope, answer)
        body.release()
        report = rendered_headers(reply.rendered) if reply.rendered else []
        await send_json(reply.body, report, send)

    def _reply(self, served: Served, runner: TurnRunner, body: Body, account: Account | None) -> Reply:
        data, settings = body.take(), self._serving.settings
        check_count(data, settings.max_messages)
        query = self._read(data, account, runner)
        self._serving.models.check(served, query.model or served.names.name, account)
        return query.reply(runner, tenant_of(settings, account, salt_and_session(data)[0]))


async def named_model(serving: Serving, body: Body, account: Account | None) -> Served:
    """The model that a request names. Raises `UnknownModel` and `InvalidRequest`."""
    if body.size < _QUICK_BYTES:
        return serving.models.of_json(body.data, account)
    return await asyncio.to_thread(serving.models.of_json, body.data, account)


def account_of(scope: Scope) -> Account | None:
    """The account of the named key that the request came with; None if it came with no such key."""
    account: Account | None = scope.get("account")
    return account


def tenant_of(settings: Settings, account: Account | None, salt: str | None = None) -> Tenant:
    """Whose answers are stored: the named key's, or the single one's, apart by the `salt` of a request."""
    owner = owner_of(settings.api_key) if account is None else owner_named(account.name)
    return Tenant(owner, salt or "")


def client_of(scope: Scope) -> str:
    """Who shares the queues with others: the holder of a named key, wherever that is, or else an address."""
    account, peer = account_of(scope), scope["report"].peer
    return str(peer) if account is None else f"key {account.name}"


def _in_turn(threads: FairThreads, scope: Scope, work: Callable[[], T]) -> Coroutine[Any, Any, T]:
    """The result of `work` in a thread, whose time counts as the client's."""
    account = account_of(scope)
    took = () if account is None else (account.prepared,)
    return threads.run(client_of(scope), work, *took)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. If the client disconnects first, cancel `work` and raise `ClientDisconnect`."""
    scope = asyncio.timeout(None)
    watching = asyncio.ensure_future(_ended_by_disconnect(scope, receive))
    try:
        async with scope:
            result = await work
        return result
    except Exception as error:
        if scope.expired():  # whatever the end of `work` raises, nobody is there to see it
            raise ClientDisconnect from error
        raise
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _ended_by_disconnect(scope: asyncio.Timeout, receive: Receive) -> None:
    """End `scope` when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.reschedule(asyncio.get_running_loop().time())
