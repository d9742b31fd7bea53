"""The endpoint of a query: a request that is answered from the prompt alone, without the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from dovetail.gateway.http.connection import JSON_HEADERS, account_of, while_connected
from dovetail.gateway.http.errors import unknown_model
from dovetail.gateway.http.report_headers import rendered_headers
from dovetail.gateway.http.serving import Serving
from dovetail.gateway.limits.accounts import Account
from dovetail.gateway.limits.bodies import Body
from dovetail.gateway.limits.key_limits import check_model
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import Rendered


class Reply(NamedTuple):
    """The body of a response, and the prompt that it is about, if the request's messages were rendered."""

    body: bytes
    rendered: Rendered | None = None


class Query(Protocol):
    """One query of an API. `model` is None if the request names no model."""

    @property
    def model(self) -> str | None: ...

    def reply(self, runner: TurnRunner) -> Reply:
        """The response. Runs in a thread; raises `InvalidRequest` or `RenderError`."""


class QueryEndpoint:
    """An endpoint for one kind of query, as an ASGI app.

    `read` makes a query of a request's body, or raises `InvalidRequest`. Each endpoint has one thread of its own, so
    that a long text to tokenize delays no turn.
    """

    def __init__(self, read: Callable[[bytes], Query], serving: Serving) -> None:
        self._read = read
        self._serving = serving
        self._thread = ThreadPoolExecutor(1, "dovetail-query")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            async with self._serving.bodies.read(Request(scope, receive)) as body:
                await while_connected(receive, self._answer(body, send, account_of(scope)))

    async def _answer(self, body: Body, send: Send, account: Account | None) -> None:
        reply = await asyncio.get_running_loop().run_in_executor(self._thread, self._reply, body, account)
        body.release()
        report = rendered_headers(reply.rendered) if reply.rendered else []
        length = (b"content-length", str(len(reply.body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [*JSON_HEADERS, length, *report]})
        await send({"type": "http.response.body", "body": reply.body})

    def _reply(self, body: Body, account: Account | None) -> Reply:
        query, served = self._read(body.take()), self._serving.settings.served_model_name
        if query.model is not None and query.model != served:
            raise unknown_model(query.model, served)
        check_model(query.model or served, account)
        return query.reply(self._serving.runner)
