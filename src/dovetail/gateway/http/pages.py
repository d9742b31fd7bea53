"""The pages about the server itself: what it serves, its model, its health and its metrics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

import dovetail
from dovetail.gateway.http.endpoint import account_of
from dovetail.gateway.http.errors import described
from dovetail.gateway.limits.queue import Draining
from dovetail.gateway.models import Models, Served
from dovetail.gateway.observe.metrics import Metrics
from dovetail.gateway.settings import Settings


class Pages:
    """Handlers of the pages, and their routes."""

    def __init__(self, models: Models, metrics: Metrics, settings: Settings, draining: Draining) -> None:
        self._models = models
        self._metrics = metrics
        self._settings = settings
        self._draining = draining
        metrics.gauge("ready", "Whether the server may get traffic, as /ready has it", self._is_ready)

    @property
    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/models", self._all_models),
            Route("/v1/models/{id:path}", self._one_model),
            Route("/", self._root),
            Route("/version", self._version),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/ready/{id:path}", self._one_ready),
            Route("/ping", self._health, methods=["GET", "POST"]),
            *([] if self._settings.metrics_apart else self.metrics_routes),
        ]

    @property
    def metrics_routes(self) -> list[BaseRoute]:
        """The route of the metrics alone."""
        return [Route("/metrics", self._show_metrics)]

    def _model(self, name: str, served: Served) -> dict[str, Any]:
        """The model under a name, with the fields of OpenAI's API, of vLLM's (`max_model_len`), and of Anthropic's."""
        context = served.context
        return {
            "id": name,
            "object": "model",
            "created": served.created,
            "owned_by": "dovetail",
            "max_model_len": context,
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(served.created, UTC).isoformat(),
            "max_input_tokens": context,
            "lifecycle": "active",
        }

    async def _all_models(self, request: Request) -> Response:
        data = [self._model(name, served) for name, served in self._models.listed(account_of(request.scope))]
        ids = [model["id"] for model in data] or [None]
        ends = {"first_id": ids[0], "last_id": ids[-1], "has_more": False}  # Anthropic's
        return JSONResponse({"object": "list", "data": data, **ends})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["id"]
        return JSONResponse(self._model(name, self._models.find(name, account_of(request.scope))))

    async def _root(self, request: Request) -> Response:
        return JSONResponse(
            {"server": "dovetail", "version": dovetail.__version__, "paths": described(request.app.routes)}
        )

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": dovetail.__version__})

    async def _health(self, request: Request) -> Response:
        up, names = self._models.up, ", ".join(self._models.names)
        return JSONResponse({"status": "ok" if up else "the engine is down", "model": names}, 200 if up else 503)

    def _is_ready(self) -> bool:
        return self._models.up and not self._draining.started

    async def _ready(self, request: Request) -> Response:
        models = {served.names.name: served.status for served in self._models}
        ready = self._is_ready()
        return JSONResponse({"status": "ready" if ready else "not ready", "models": models}, 200 if ready else 503)

    async def _one_ready(self, request: Request) -> Response:
        status = self._models.find(request.path_params["id"], None).status
        ready = status == "ready" and not self._draining.started
        return JSONResponse({"status": status}, 200 if ready else 503)

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
