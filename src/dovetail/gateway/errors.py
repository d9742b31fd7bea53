"""The outermost layer: every request gets an id, and whatever goes wrong leaves in OpenAI's error shape."""

from __future__ import annotations

import logging
import re
import uuid

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.errors import DovetailError, EngineBusy, EngineError
from dovetail.gateway.metrics import Metrics

_LOG = logging.getLogger("dovetail.gateway")
#: What goes with a refusal, by its status.
_HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct, frozen=True):
    error: ErrorBody


def error_json(error: DovetailError) -> bytes:
    """`error` as OpenAI's clients read it."""
    return msgspec.json.encode(ErrorResponse(ErrorBody(error.message, error.type, error.param, error.code)))


def told(error: Exception, request_id: str) -> DovetailError:
    """What the client is told of `error`: if it is private, or not raised on purpose, only where to look."""
    if isinstance(error, DovetailError) and not error.private:
        return error
    if isinstance(error, EngineBusy):
        return EngineBusy("the engine takes no more requests now; try again later")
    where = f"the server's log has it under request id {request_id}"
    if isinstance(error, EngineError):
        return EngineError(f"the engine failed; {where}")
    return DovetailError(f"internal error; {where}")


async def http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such path, wrong method) in the same shape."""
    assert isinstance(error, HTTPException)
    body = ErrorBody(f"{request.method} {request.url.path}: {error.detail}", "invalid_request_error", None, None)
    return _json(msgspec.json.encode(ErrorResponse(body)), error.status_code, dict(error.headers or {}))


def _json(body: bytes, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


class Boundary:
    """ASGI middleware: x-request-id in and out (`scope["request_id"]`), errors rendered, responses counted."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
        scope["request_id"] = request_id
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
                self._metrics.response(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception as error:
            if not isinstance(error, DovetailError):
                _LOG.exception("request %s failed", request_id)
            elif isinstance(error, EngineBusy):  # of which there are many at once; the counters have them
                _LOG.debug("request %s: %s", request_id, error.message)
            elif error.status >= 500:
                _LOG.error("request %s: %s error: %s", request_id, error.stage, error.message)
            if started:
                return  # The endpoint has told the client what it could.
            refusal = told(error, request_id)
            response = _json(error_json(refusal), refusal.status, _HEADERS.get(refusal.status))
            await response(scope, receive, send_named)
