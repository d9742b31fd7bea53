"""ASGI middleware around every endpoint: request ids, errors as responses, and the API key."""

from __future__ import annotations

import hmac
import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.errors import DovetailError, EngineBusy, Unauthorized
from dovetail.gateway.errors import error_response, public_error
from dovetail.gateway.metrics import Metrics

_LOG = logging.getLogger("dovetail.gateway")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestMiddleware:
    """The outermost layer: gives each request an id, turns exceptions into error responses, and counts responses.

    The id is that of the client's `x-request-id` header, if it is well formed, else a new one. It is in
    `scope["request_id"]` and in the response's header.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get("x-request-id", "")
        request_id = client_id if _REQUEST_ID.fullmatch(client_id) else uuid.uuid4().hex
        scope["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
                self._metrics.response(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            _log(error, request_id)
            if not started:  # otherwise the endpoint has told the client what it could
                await error_response(public_error(error, request_id))(scope, receive, send_with_id)


def _log(error: Exception, request_id: str) -> None:
    if not isinstance(error, DovetailError):
        _LOG.error("request %s failed", request_id, exc_info=error)
    elif isinstance(error, EngineBusy):  # there are many at once, and the metrics count them
        _LOG.debug("request %s: %s", request_id, error.message)
    elif error.status >= 500:
        _LOG.error("request %s: %s error: %s", request_id, error.stage, error.message)


class ApiKeyMiddleware:
    """Raises `Unauthorized` for a request to a path under /v1 without `Authorization: Bearer KEY`.

    The key is never logged.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"] == "/v1" or scope["path"].startswith("/v1/")):
            header = Headers(scope=scope).get("authorization")
            if header is None:
                raise Unauthorized("an API key is required: send it as `Authorization: Bearer KEY`")
            scheme, _, key = header.partition(" ")
            # Compared in constant time, so that the delay of the response says nothing about the key.
            equal = hmac.compare_digest(key.encode("latin-1"), self._key)
            if scheme.lower() != "bearer" or not equal:
                raise Unauthorized("the API key is wrong")
        await self._app(scope, receive, send)
