"""The endpoint of responses: like those of the other APIs, but a stream reports a prompt that is too long itself."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Scope, Send

from dovetail.errors import ContextExceeded
from dovetail.gateway.apis.responses.exchange import ResponsesExchange, refused
from dovetail.gateway.apis.responses.stored import store_of
from dovetail.gateway.http.endpoint import Endpoint, Exchange
from dovetail.gateway.http.event_stream import EVENT_STREAM_HEADERS
from dovetail.gateway.http.serving import Serving
from dovetail.gateway.limits.accounts import Account
from dovetail.gateway.limits.bodies import Body
from dovetail.gateway.observe.request_report import RequestReport
from dovetail.gateway.response_store import ResponseStore
from dovetail.gateway.turn.observer import Observer
from dovetail.gateway.turn.turn import Turn


class _RefusedInStream(Exception):
    def __init__(self, exchange: ResponsesExchange, error: ContextExceeded) -> None:
        super().__init__()
        self.exchange = exchange
        self.error = error


class ResponsesEndpoint(Endpoint):
    """`POST /v1/responses`.

    Where a stream was asked for, a prompt that is longer than the context is a stream with `response.failed`: from that
    event, and not from a status, clients learn to shorten the history. `store` is None if the server stores no
    responses.
    """

    def __init__(self, store: ResponseStore | None, serving: Serving) -> None:
        super().__init__(lambda body: self._decoded(body, None), serving, "responses")
        self._store = store

    def _decoded(self, body: bytes, account: Account | None) -> ResponsesExchange:
        return ResponsesExchange(body, store_of(self._store, account), self._serving.settings.max_body_bytes)

    def _prepare(self, body: Body, report: RequestReport, account: Account | None) -> tuple[Exchange, Turn]:
        exchange = self._exchange(body.take(), report, account)
        try:
            return exchange, self._turn(exchange, report, account)
        except ContextExceeded as error:
            if isinstance(exchange, ResponsesExchange) and exchange.streams:
                raise _RefusedInStream(exchange, error) from error
            raise

    async def _answer(self, body: Body, send: Send, observers: Sequence[Observer], scope: Scope) -> None:
        try:
            await super()._answer(body, send, observers, scope)
        except _RefusedInStream as refusal:
            await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS})
            await send({"type": "http.response.body", "body": refused(refusal.exchange, refusal.error)})
            raise refusal.error from None
