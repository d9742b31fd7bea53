"""The paths of the Responses API: `POST /v1/responses`, and stored responses, which are read and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope, Send

from dovetail.errors import ContextExceeded, InvalidRequest, StoreUnavailable, UnknownResponse
from dovetail.gateway.apis.pictures import Sees
from dovetail.gateway.apis.responses import history
from dovetail.gateway.apis.responses.exchange import CompactExchange, ResponsesExchange, refused
from dovetail.gateway.apis.responses.request import InputTokensRequest
from dovetail.gateway.apis.responses.store import ResponseStore, StoredResponse
from dovetail.gateway.http.endpoint import (
    Endpoint,
    Exchange,
    QueryEndpoint,
    Read,
    Reply,
    Serving,
    account_of,
    tenant_of,
)
from dovetail.gateway.http.response import EVENT_STREAM_HEADERS
from dovetail.gateway.limits.bodies import Body
from dovetail.gateway.limits.keys import Account
from dovetail.gateway.models import Model, Served
from dovetail.gateway.observe.request_report import RequestReport
from dovetail.gateway.records.memory import Tenant, owner_named, owner_of
from dovetail.gateway.records.sealed_text import SealedText
from dovetail.gateway.store.interface import StoreError
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import Observer, PreparedTurn

_MAX_ITEMS = 100

T = TypeVar("T")


def responses_routes(serving: Serving) -> list[Route]:
    """The routes under `/v1/responses`. They share one store of responses, if the settings have one."""
    settings = serving.settings
    place = settings.response_store
    store = ResponseStore(place, owner_of(settings.api_key), settings.response_limits) if place is not None else None
    # A thread of its own, because it may have to wait for the disk. Nothing else then waits with it.
    writing = ThreadPoolExecutor(1, "dovetail-store")
    stored = StoredResponses(store, writing, serving)

    def made(
        exchange: Callable[..., T],
    ) -> Read[T]:
        def make(body: bytes, account: Account | None, runner: TurnRunner) -> T:
            summaries = SealedText(settings.record_key, tenant_of(settings, account).owner)
            size = max(settings.max_body_bytes, settings.picture_body_bytes if runner.sees else 0)
            return exchange(body, store_of(store, account), size, summaries, sees=lambda: runner.sees)

        return make

    return [
        Route("/v1/responses", ResponsesEndpoint(made(ResponsesExchange), writing, serving), methods=["POST"]),
        Route("/v1/responses/compact", ResponsesEndpoint(made(CompactExchange), writing, serving), methods=["POST"]),
        Route("/v1/responses/input_tokens", QueryEndpoint(made(InputTokens), serving), methods=["POST"]),
        Route("/v1/responses/{id}", stored.get, methods=["GET"]),
        Route("/v1/responses/{id}", stored.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", stored.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", stored.input_items, methods=["GET"]),
    ]


class _RefusedInStream(Exception):
    def __init__(self, exchange: ResponsesExchange, error: ContextExceeded) -> None:
        super().__init__()
        self.exchange = exchange
        self.error = error


class ResponsesEndpoint(Endpoint):
    """`POST /v1/responses`, and its compactions.

    Where a stream was asked for, a prompt that is longer than the context is a stream with `response.failed`: from that
    event, and not from a status, clients learn to shorten the history. `writing` has the thread that writes to the
    store.
    """

    def __init__(
        self,
        read: Read[ResponsesExchange],
        writing: Executor,
        serving: Serving,
    ) -> None:
        self._writing = writing
        super().__init__(read, serving, "responses")

    def _turn(self, model: Model, exchange: Exchange, report: RequestReport, account: Account | None) -> PreparedTurn:
        try:
            return super()._turn(model, exchange, report, account)
        except ContextExceeded as error:
            if isinstance(exchange, ResponsesExchange) and exchange.streams:
                raise _RefusedInStream(exchange, error) from error
            raise

    async def _conclude(
        self, runner: TurnRunner, exchange: Exchange, turn: PreparedTurn, steps: Sequence[Step]
    ) -> None:
        await super()._conclude(runner, exchange, turn, steps)
        if isinstance(exchange, ResponsesExchange) and exchange.stores:
            await asyncio.get_running_loop().run_in_executor(self._writing, exchange.store, turn, steps)

    async def _answer(
        self, served: Served, body: Body, send: Send, observers: Sequence[Observer], scope: Scope
    ) -> None:
        try:
            await super()._answer(served, body, send, observers, scope)
        except _RefusedInStream as refusal:
            await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS})
            await send({"type": "http.response.body", "body": refused(refusal.exchange, refusal.error)})
            raise refusal.error from None


class InputTokens:
    """The number of tokens that the prompt of a response would have."""

    def __init__(
        self, body: bytes, store: ResponseStore | None, max_history: int, summaries: SealedText, sees: Sees
    ) -> None:
        exchange = ResponsesExchange(body, store, max_history, summaries, InputTokensRequest, sees)
        self.model = exchange.model or None
        self._turn_request = exchange.turn_request

    def reply(self, runner: TurnRunner, tenant: Tenant) -> Reply:
        rendered = runner.render(replace(self._turn_request, tenant=tenant))
        return Reply(msgspec.json.encode(InputTokenCount(len(rendered.ids))), rendered)


class InputTokenCount(msgspec.Struct, frozen=True):
    input_tokens: int
    object: str = "response.input_tokens"


def store_of(store: ResponseStore | None, account: Account | None) -> ResponseStore | None:
    """The responses in `store` that a request with the key of `account` sees: the responses to the same key."""
    return store if store is None or account is None else store.of(owner_named(account.name))


class StoredResponses:
    """The handlers of one server. `store` is None if it stores no responses; `writing` has the thread that writes."""

    def __init__(self, store: ResponseStore | None, writing: Executor, serving: Serving) -> None:
        self._store = store
        self._writing = writing
        self._serving = serving

    async def get(self, request: Request) -> Response:
        """The response object."""
        if request.query_params.get("stream") in ("true", "1"):
            raise InvalidRequest("stream: only background responses can be streamed again", param="stream")
        return Response((await self._load(request)).body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """Deletes the response, and what is remembered of it."""
        name, loop = request.path_params["id"], asyncio.get_running_loop()
        try:
            store = store_of(self._store, account_of(request.scope))
            deleted = store is not None and await loop.run_in_executor(self._writing, store.delete, name)
            if deleted and (memory := self._serving.memory) is not None:
                tenant = tenant_of(self._serving.settings, account_of(request.scope))
                await loop.run_in_executor(self._serving.remembering, memory.forget, name, tenant)
        except StoreError as error:
            raise StoreUnavailable("the response cannot be deleted now; try again later") from error
        if not deleted:
            raise self._unknown(name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        """Refuses: a response that is stored is finished."""
        await self._load(request)
        raise InvalidRequest("only background responses can be cancelled: close the connection of the others")

    async def input_items(self, request: Request) -> Response:
        """A page of the items that the request had as input, the last ones first."""
        limit, order, after = _page(request)
        items: list[dict[str, Any]] = msgspec.json.decode((await self._load(request)).input)
        if order == "desc":
            items.reverse()
        if after is not None:
            places = [i for i, item in enumerate(items) if item["id"] == after]
            if not places:
                raise InvalidRequest(f"after: the response has no input item {after!r:.80}", param="after")
            items = items[places[0] + 1 :]
        page = items[:limit]
        return JSONResponse(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else "",
                "last_id": page[-1]["id"] if page else "",
                "has_more": len(items) > limit,
            }
        )

    async def _load(self, request: Request) -> StoredResponse:
        name = request.path_params["id"]
        stored = await asyncio.to_thread(history.read, store_of(self._store, account_of(request.scope)), name)
        if stored is None:
            raise self._unknown(name)
        return stored

    def _unknown(self, name: str) -> UnknownResponse:
        reason = "" if self._store is not None else ": this server stores no responses"
        return UnknownResponse(f"there is no stored response {name!r:.80}{reason}", param="response_id")


def _page(request: Request) -> tuple[int, str, str | None]:
    """The query parameters `limit`, `order` and `after`. Raises `InvalidRequest`."""
    limit, order = request.query_params.get("limit", "20"), request.query_params.get("order", "desc")
    if not limit.isdecimal() or not 1 <= len(limit) <= 3 or not 1 <= int(limit) <= _MAX_ITEMS:
        raise InvalidRequest(f"limit must be 1 to {_MAX_ITEMS}", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", param="order")
    return int(limit), order, request.query_params.get("after")
