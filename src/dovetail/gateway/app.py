"""The gateway as a Starlette app: its paths, and the engine's start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dovetail.completion import Engine
from dovetail.formats.base import Format
from dovetail.gateway.apis.chat import ChatCompletion
from dovetail.gateway.endpoint import Endpoint
from dovetail.gateway.errors import http_error, unknown_model
from dovetail.gateway.metrics import Metrics
from dovetail.gateway.middleware import ApiKeyMiddleware, RequestMiddleware
from dovetail.gateway.settings import Settings
from dovetail.gateway.turn import TurnRunner
from dovetail.tokens import Tokenizer


def create_app(engine: Engine, fmt: Format, tokenizer: Tokenizer, settings: Settings) -> Starlette:
    """The ASGI app in front of `engine`. Its lifespan starts the engine and stops it."""
    metrics = Metrics(engine.gauges)
    runner = TurnRunner(engine, fmt, tokenizer, settings)
    created = int(time.time())

    def model() -> dict[str, Any]:
        return {
            "id": settings.served_model_name,
            "object": "model",
            "created": created,
            "owned_by": "dovetail",
            "max_model_len": engine.info.context,
        }

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model()]})

    async def one_model(request: Request) -> Response:
        name = request.path_params["id"]
        if name != settings.served_model_name:
            raise unknown_model(name, settings.served_model_name)
        return JSONResponse(model())

    async def health(request: Request) -> Response:
        # An engine in another process may be down, and come back.
        up = engine.gauges().get("up", 1) > 0
        status = "ok" if up else "the engine is down"
        return JSONResponse({"status": status, "model": settings.served_model_name}, 200 if up else 503)

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await engine.start()
        try:
            await asyncio.to_thread(runner.warm_up)
            yield
        finally:
            await engine.stop()

    middleware = [Middleware(RequestMiddleware, metrics=metrics)]
    if settings.api_key is not None:
        middleware.append(Middleware(ApiKeyMiddleware, key=settings.api_key))
    return Starlette(
        routes=[
            Route("/v1/chat/completions", Endpoint(ChatCompletion, runner, metrics, settings), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{id:path}", one_model),
            Route("/health", health),
            Route("/metrics", show_metrics),
        ],
        middleware=middleware,
        exception_handlers={HTTPException: http_error},
        lifespan=lifespan,
    )
