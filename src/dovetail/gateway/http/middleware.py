"""ASGI middleware around every endpoint: request ids, errors as responses, and API keys."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.errors import DovetailError, EngineBusy, Forbidden, ForeignHost, RateLimited, Unauthorized
from dovetail.gateway.http.endpoint import account_of
from dovetail.gateway.http.errors import error_response, public_error
from dovetail.gateway.limits.keys import Account, Keyring, limit_headers
from dovetail.gateway.observe.metrics import Metrics
from dovetail.gateway.observe.request_report import RequestReport, Tracer, access_line
from dovetail.gateway.turn.trace import Trace, incoming_context

_LOG = logging.getLogger("dovetail.gateway")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
#: The path of Anthropic's Messages API. Errors at it and below it have Anthropic's shape.
MESSAGES_PATH = "/v1/messages"
#: The page for which a file of keys may have keys of its own.
METRICS_PATH = "/metrics"
#: The pages that need no API key: they show no prompt and no answer.
_OPEN_PATHS = frozenset(("/", "/health", METRICS_PATH, "/ping", "/ready", "/version"))
#: Keys of one request that are looked at. A client sends one, in up to three headers.
_MOST_KEYS = 8


class Telemetry(msgspec.Struct, frozen=True):
    """`write_line` takes each request's access line (None: there are none), `tracer` traces requests (None: nobody)."""

    write_line: Callable[[bytes], None] | None = None
    tracer: Tracer | None = None

    def begin(self, headers: Mapping[str, str], *, traced: bool) -> Trace:
        """The trace of a request. One that is not `traced` here has the context that it came with, for the engine."""
        if self.tracer is None or not traced:
            return Trace(incoming_context(headers))
        return self.tracer.begin(headers)

    async def close(self) -> None:
        """Send what waits to be sent."""
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)

    def end(self, report: RequestReport, *, traced: bool) -> None:
        """Report a request that has ended. `traced`: as for `begin`."""
        if self.tracer is not None and traced:
            self.tracer.end(report)
        if self.write_line is not None:
            self.write_line(access_line(report))


class RequestMiddleware:
    """The outermost layer: gives each request an id, turns exceptions into error responses, and reports requests.

    The id is the client's `x-request-id`, if that header is well formed, else a new one. It is in
    `scope["request_id"]` and in the response's header. `scope["report"]` is the request's `RequestReport`,
    and `scope["anthropic"]` whether it is one of Anthropic's Messages API.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, telemetry: Telemetry) -> None:
        self._app = app
        self._metrics = metrics
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # A slash at the end changes nothing. Starlette would redirect, to HTTP behind a proxy that speaks HTTPS.
        scope["path"] = scope["path"].rstrip("/") or "/"
        scope["anthropic"] = anthropic = in_messages_api(scope["path"])
        # Pages that probes and scrapers read all day are not traced.
        traced = not is_open(scope["path"])
        report = self._report(scope, traced=traced)
        scope["report"], scope["request_id"] = report, report.id
        request_id = report.id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                report.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                if anthropic:
                    headers["request-id"] = request_id  # Anthropic's name for it
                if report.trace.traceresponse is not None:
                    headers["traceresponse"] = report.trace.traceresponse
                self._metrics.response(message["status"])
                if (account := account_of(scope)) is not None:
                    account.responses[message["status"]] += 1
                    headers.update(limit_headers(account, anthropic=anthropic))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            _log(error, request_id, account_of(scope))
            report.error = type(error).__name__
            if report.status is None:  # otherwise the endpoint has told the client what it could
                response = error_response(public_error(error, request_id), request_id, anthropic=anthropic)
                await response(scope, receive, send_with_id)
        finally:
            report.ended = time.perf_counter()
            self._telemetry.end(report, traced=traced)

    def _report(self, scope: Scope, *, traced: bool) -> RequestReport:
        headers = Headers(scope=scope)
        client_id = headers.get("x-request-id", "")
        request_id = client_id if _REQUEST_ID.fullmatch(client_id) else uuid.uuid4().hex
        return RequestReport(
            method=scope["method"],
            path=scope["path"],
            id=request_id,
            peer=scope["client"][0] if scope.get("client") else "",
            scheme=scope["scheme"],
            session=headers.get("x-session-id", ""),
            trace=self._telemetry.begin(headers, traced=traced),
        )


def is_open(path: str) -> bool:
    """Whether the page needs no API key."""
    return path in _OPEN_PATHS or path.startswith("/ready/")


def in_messages_api(path: str) -> bool:
    """Whether `path` belongs to Anthropic's Messages API."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def _log(error: Exception, request_id: str, account: Account | None) -> None:
    request = request_id if account is None else f"{request_id} of the key {account.name}"
    if not isinstance(error, DovetailError):
        _LOG.error("request %s failed", request, exc_info=error)
    elif isinstance(error, EngineBusy | RateLimited):  # there are many at once, and the metrics count them
        _LOG.debug("request %s: %s", request, error.message)
    elif error.status >= 500 and error.stage != "request":
        _LOG.error("request %s: %s error: %s", request, error.stage, error.message)


class HostMiddleware:
    """Raises `ForeignHost` for a request that calls the server by a name other than `hosts`."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            name = _host_name(Headers(scope=scope).get("host", ""))
            if name not in self._hosts:
                raise ForeignHost(
                    f"this server is not {name!r:.80}: call it by {' or '.join(sorted(self._hosts))}, "
                    "or start it with --allow-host or with a key"
                )
        await self._app(scope, receive, send)


def _host_name(header: str) -> str:
    """The name in a Host header, without the port; "" for what is no host."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


class ApiKeyMiddleware:
    """Raises `Unauthorized` for a request without a key, except to `open_paths` and open pages. Limits named keys.

    Clients send the key as `Authorization: Bearer KEY` (OpenAI's), `x-api-key: KEY` (Anthropic's) or `api-key: KEY`
    (Azure's). It is never logged. `key` opens everything but /metrics where that has keys of its own. With a key of
    `keyring`, `scope["account"]` is its account. Every POST counts as a request.
    """

    def __init__(self, app: ASGIApp, key: str | None, keyring: Keyring, open_paths: frozenset[str]) -> None:
        self._app = app
        self._key = None if key is None else key.encode()
        self._keyring = keyring
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        account = self._account(scope) if scope["type"] == "http" and self._is_closed(scope["path"]) else None
        if account is not None:
            scope["account"] = account
            scope["report"].key = account.name
        async with account.request() if account is not None and scope["method"] == "POST" else nullcontext():
            await self._app(scope, receive, send)

    def _is_closed(self, path: str) -> bool:
        closed = not is_open(path) and path not in self._open_paths
        return closed or (path == METRICS_PATH and self._keyring.guards_metrics)

    def _account(self, scope: Scope) -> Account | None:
        """The account of the request's key; None for the key without a name. Raises `Unauthorized` and `Forbidden`."""
        keys = _keys(Headers(scope=scope))[:_MOST_KEYS]
        if not any(keys):
            raise Unauthorized("an API key is required: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")
        account = self._keyring.find(keys)
        # Compared in constant time, so that the delay of the response says nothing about the key.
        equal = [self._key is not None and hmac.compare_digest(key.encode("latin-1"), self._key) for key in keys]
        if account is None and not any(equal):
            raise Unauthorized("the API key is wrong")
        if (scope["path"] == METRICS_PATH) != (account is not None and account.key.scope == "metrics"):
            needed = "needs a key with `scope: metrics`" if scope["path"] == METRICS_PATH else "needs another key"
            raise Forbidden(f"{scope['path']:.80} {needed}")
        return account


def _keys(headers: Headers) -> list[str]:
    """The keys that a request's headers have."""
    keys = [*headers.getlist("x-api-key"), *headers.getlist("api-key")]
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer":
            keys.append(key)
    return keys


def cors(origins: Sequence[str]) -> Middleware:
    """Lets pages of `origins` call the API and read its responses with their headers; "*" lets every page."""
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("*",),
    )
