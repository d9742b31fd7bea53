"""The endpoint of responses: like those of the other APIs, but a stream reports a prompt that is too long itself."""

from __future__ import annotations

from starlette.types import Scope, Send

from dovetail.errors import ContextExceeded
from dovetail.gateway.apis.responses.exchange import ResponsesExchange, refused
from dovetail.gateway.apis.responses.stored import store_of
from dovetail.gateway.http.bodies import Body
from dovetail.gateway.http.endpoint import Endpoint, Exchange
from dovetail.gateway.http.event_stream import EVENT_STREAM_HEADERS
from dovetail.gateway.keys.accounts import Account
from dovetail.gateway.response_store import ResponseStore
from dovetail.gateway.settings import Settings
from dovetail.gateway.telemetry.metrics import Metrics, RequestMetrics
from dovetail.gateway.turn.runner import TurnRunner
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

    def __init__(self, store: ResponseStore | None, runner: TurnRunner, metrics: Metrics, settings: Settings) -> None:
        super().__init__(lambda body: self._decoded(body, None), runner, metrics, settings, "responses")
        self._store = store

    def _decoded(self, body: bytes, account: Account | None) -> ResponsesExchange:
        return ResponsesExchange(body, store_of(self._store, account), self._settings.max_body_bytes)

    def _prepare(self, body: Body, metrics: RequestMetrics, account: Account | None) -> tuple[Exchange, Turn]:
        exchange = self._exchange(body.take(), metrics, account)
        try:
            return exchange, self._turn(exchange, metrics, account)
        except ContextExceeded as error:
            if isinstance(exchange, ResponsesExchange) and exchange.streams:
                raise _RefusedInStream(exchange, error) from error
            raise

    async def _answer(self, body: Body, send: Send, metrics: RequestMetrics, scope: Scope) -> None:
        try:
            await super()._answer(body, send, metrics, scope)
        except _RefusedInStream as refusal:
            await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS})
            await send({"type": "http.response.body", "body": refused(refusal.exchange, refusal.error)})
            raise refusal.error from None
