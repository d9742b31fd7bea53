"""The pages about the server itself: what it serves, its model, its health and its metrics."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

import dovetail
from dovetail.completion import Engine
from dovetail.gateway.http.endpoint import account_of, check_model
from dovetail.gateway.http.errors import described
from dovetail.gateway.limits.queue import Draining
from dovetail.gateway.observe.metrics import Metrics
from dovetail.gateway.settings import Settings

#: The pages that need no API key: they show no prompt and no answer.
OPEN_PATHS = frozenset(("/", "/health", "/metrics", "/ping", "/ready", "/version"))


class Pages:
    """Handlers of the pages, and their routes."""

    def __init__(self, engine: Engine, metrics: Metrics, settings: Settings, draining: Draining) -> None:
        self._engine = engine
        self._metrics = metrics
        self._settings = settings
        self._draining = draining
        self._created = int(time.time())
        metrics.gauge("ready", "Whether the server may get traffic, as /ready has it", self._is_ready)

    @property
    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/models", self._models),
            Route("/v1/models/{id:path}", self._one_model),
            Route("/", self._root),
            Route("/version", self._version),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/ping", self._health, methods=["GET", "POST"]),
            *([] if self._settings.metrics_apart else self.metrics_routes),
        ]

    @property
    def metrics_routes(self) -> list[BaseRoute]:
        """The route of the metrics alone."""
        return [Route("/metrics", self._show_metrics)]

    def _model(self, name: str) -> dict[str, Any]:
        """The model under a name, with the fields of OpenAI's API, of vLLM's (`max_model_len`), and of Anthropic's."""
        context = self._engine.info.context
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "dovetail",
            "max_model_len": context,
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(self._created, UTC).isoformat(),
            "max_input_tokens": context,
            "lifecycle": "active",
        }

    async def _models(self, request: Request) -> Response:
        served, account = self._settings.served_model_name, account_of(request.scope)
        names = [served, *(alias for alias in self._settings.aliases if "*" not in alias)]
        if account is not None and not account.allows(served):
            names = [name for name in names if account.allows(name)]
        ends = dict.fromkeys(("first_id", "last_id"), next(iter(names), None))  # Anthropic's, and so is the next
        data = [self._model(name) for name in names]
        return JSONResponse({"object": "list", "data": data, **ends, "has_more": False})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["id"]
        check_model(name, self._settings, account_of(request.scope))
        return JSONResponse(self._model(name))

    async def _root(self, request: Request) -> Response:
        return JSONResponse(
            {"server": "dovetail", "version": dovetail.__version__, "paths": described(request.app.routes)}
        )

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": dovetail.__version__})

    @property
    def _up(self) -> bool:
        # An engine in another process may be down, and come back.
        return all(sample.value > 0 for sample in self._engine.gauges() if sample.name == "up")

    async def _health(self, request: Request) -> Response:
        status = "ok" if self._up else "the engine is down"
        return JSONResponse({"status": status, "model": self._settings.served_model_name}, 200 if self._up else 503)

    def _is_ready(self) -> bool:
        return self._up and not self._draining.started

    async def _ready(self, request: Request) -> Response:
        ready = self._is_ready()
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
