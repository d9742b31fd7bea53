"""The paths of the Responses API."""

from __future__ import annotations

from starlette.routing import Route

from dovetail.gateway.apis.responses.endpoint import ResponsesEndpoint
from dovetail.gateway.apis.responses.stored import StoredResponses
from dovetail.gateway.http.serving import Serving
from dovetail.gateway.response_store import ResponseStore, owner_of


def responses_routes(serving: Serving) -> list[Route]:
    """The routes under `/v1/responses`. They share one store of responses, if the settings have one."""
    settings = serving.settings
    path = settings.response_store
    store = ResponseStore(path, owner_of(settings.api_key), settings.response_limits) if path is not None else None
    stored = StoredResponses(store)
    return [
        Route("/v1/responses", ResponsesEndpoint(store, serving), methods=["POST"]),
        Route("/v1/responses/{id}", stored.get, methods=["GET"]),
        Route("/v1/responses/{id}", stored.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", stored.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", stored.input_items, methods=["GET"]),
    ]
