"""The gateway as a Starlette app: its paths, and the engine's start and stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from dovetail.completion import Engine
from dovetail.formats.base import Format
from dovetail.gateway.apis.chat import ChatCompletion
from dovetail.gateway.apis.completion import RawCompletion
from dovetail.gateway.apis.messages import CountTokens, Messages
from dovetail.gateway.apis.passed import passed_routes
from dovetail.gateway.apis.responses.endpoint import responses_routes
from dovetail.gateway.apis.tokens import ChatRender, Detokenize, Tokenize
from dovetail.gateway.http.endpoint import Endpoint, QueryEndpoint, Serving, plain, seeing
from dovetail.gateway.http.errors import http_error
from dovetail.gateway.http.middleware import (
    MESSAGES_PATH,
    ApiKeyMiddleware,
    HostMiddleware,
    RequestMiddleware,
    Telemetry,
    cors,
)
from dovetail.gateway.http.pages import Pages
from dovetail.gateway.http.picture_fetch import PictureFetcher
from dovetail.gateway.limits.bodies import Bodies
from dovetail.gateway.limits.keys import KeyMetrics, Keyring
from dovetail.gateway.limits.queue import Draining, FairThreads
from dovetail.gateway.models import Model, Models, Names
from dovetail.gateway.observe.capture import Captures
from dovetail.gateway.observe.metrics import Metrics
from dovetail.gateway.records.memory import Memory
from dovetail.gateway.settings import Settings
from dovetail.tokens import Tokenizer

_SILENT = Telemetry()
#: Threads that prepare turns, and that answer queries. The work is Python code, so more of them would only take the
#: event loop's time. One client may have all but one, which is more than one for turns because compiling a grammar
#: releases the interpreter lock.
_PREPARING, _QUERYING = 3, 2


class MoreRoutes(NamedTuple):
    """Routes beside the gateway's own. Those at `open_paths` need no key."""

    routes: Sequence[Route] = ()
    open_paths: frozenset[str] = frozenset()


_NO_MORE = MoreRoutes()


def create_app(
    engine: Engine,
    fmt: Format,
    tokenizer: Tokenizer,
    settings: Settings,
    telemetry: Telemetry = _SILENT,
    more: MoreRoutes = _NO_MORE,
) -> Starlette:
    """The ASGI app in front of `engine`, with one model. Its lifespan starts the engine and stops it.

    `telemetry` gets a report of each request.
    """
    models, memory = Models(Metrics(tool_names=settings.metrics_tools)), memory_of(settings)
    models.only = models.new(Names(settings.served_model_name, settings.aliases))
    models.only.ready(Model(engine, fmt, tokenizer, settings, memory))
    models.put(models.only)
    return app_of(models, settings, memory, telemetry, more)


def memory_of(settings: Settings) -> Memory | None:
    """What keeps the answers of all models."""
    return None if settings.memory is None else Memory(settings.memory, settings.record_key, settings.memory_limits)


def app_of(
    models: Models,
    settings: Settings,
    memory: Memory | None,
    telemetry: Telemetry = _SILENT,
    more: MoreRoutes = _NO_MORE,
) -> Starlette:
    """The ASGI app of `models`, of which more may come and go. Its lifespan starts those that are there, and stops all.

    `memory`: what keeps the answers of all models.
    """
    metrics = models.counters
    bodies = Bodies(
        settings.max_body_bytes,
        settings.body_memory_bytes,
        with_pictures=partial(models.if_some_see, settings.picture_body_bytes),
    )
    captures = None if settings.recordings is None else Captures(settings.recordings)
    fetcher = PictureFetcher(settings.image_hosts, settings.picture_body_bytes)
    preparing, querying = FairThreads(_PREPARING, "dovetail-prepare"), FairThreads(_QUERYING, "dovetail-query")
    remembering = ThreadPoolExecutor(1, "dovetail-memory")
    serving = Serving(models, settings, bodies, Draining(), preparing, querying, captures, fetcher, remembering, memory)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await models.start()
        try:
            yield
        finally:
            await models.stop()
            if captures is not None:
                await asyncio.to_thread(captures.close)
            await telemetry.close()

    middleware = [Middleware(RequestMiddleware, metrics=metrics, telemetry=telemetry)]
    if settings.allow_origins:
        # Outermost, so that a page can read errors too, and that its preflight requests need no key.
        middleware.insert(0, cors(settings.allow_origins))
    if settings.hosts is not None:
        middleware.append(Middleware(HostMiddleware, hosts=settings.hosts))
    if settings.api_key is not None or settings.keys is not None:
        keyring = settings.keys or Keyring(())
        middleware.append(
            Middleware(ApiKeyMiddleware, key=settings.api_key, keyring=keyring, open_paths=more.open_paths)
        )
        if settings.keys is not None:
            metrics.register(KeyMetrics(keyring))

    pages = Pages(models, metrics, settings, serving.draining)
    new_app = partial(Starlette, middleware=middleware, exception_handlers={HTTPException: http_error})
    app = new_app(
        routes=[
            Route("/v1/chat/completions", Endpoint(seeing(ChatCompletion), serving, "chat"), methods=["POST"]),
            Route("/v1/completions", Endpoint(plain(RawCompletion), serving, "completions"), methods=["POST"]),
            Route("/v1/chat/completions/render", QueryEndpoint(plain(ChatRender), serving), methods=["POST"]),
            Route(MESSAGES_PATH, Endpoint(seeing(Messages), serving, "messages"), methods=["POST"]),
            Route(f"{MESSAGES_PATH}/count_tokens", QueryEndpoint(seeing(CountTokens), serving), methods=["POST"]),
            *responses_routes(serving),
            *([] if models.only is not None else passed_routes(serving)),
            Route("/tokenize", QueryEndpoint(seeing(Tokenize), serving), methods=["POST"]),
            Route("/detokenize", QueryEndpoint(plain(Detokenize), serving), methods=["POST"]),
            *more.routes,
            *pages.routes,
        ],
        lifespan=lifespan,
    )
    app.state.draining = serving.draining
    if settings.metrics_apart:
        apart = new_app(routes=pages.metrics_routes)
        apart.state, app.state.metrics_app = app.state, apart
    return app
