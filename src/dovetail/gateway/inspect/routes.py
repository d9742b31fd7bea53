"""The routes of the page `/inspect` and of its data.

The data is what every client wrote and read, so it needs the operator's key: the one without a name, or one with
`scope: inspect`. Pages of other origins do not get it, whatever `--allow-origin` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import dovetail
from dovetail.errors import EngineBusy, Forbidden
from dovetail.formats.base import Format
from dovetail.gateway.http.connection import account_of
from dovetail.gateway.http.query_endpoint import QueryEndpoint
from dovetail.gateway.inspect.page_files import PATH, page_routes
from dovetail.gateway.inspect.recordings import Recordings
from dovetail.gateway.inspect.rendering import FormatRender, native_formats
from dovetail.gateway.inspect.search import Search
from dovetail.gateway.recordings.capture import Captures
from dovetail.gateway.settings import Settings
from dovetail.gateway.turn.runner import TurnRunner

#: Requests for recordings that may wait. A page that watches the list sends one every two seconds.
_MOST_WAITING = 32
_HEADERS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def inspect_routes(runner: TurnRunner, settings: Settings, fmt: Format) -> list[Route]:
    """The routes of the page, if requests are recorded; else none."""
    captures = runner.captures
    if not isinstance(captures, Captures):
        return []
    data = _Data(captures, settings.served_model_name, fmt.name)
    return [
        *page_routes(),
        Route(f"{PATH}/server", data.server),
        Route(f"{PATH}/recordings", data.listing),
        Route(f"{PATH}/recordings/{{name}}", data.recording),
        Route(f"{PATH}/render", QueryEndpoint(FormatRender, runner, settings), methods=["POST"]),
    ]


class _Data:
    """Handlers of the page's data. `model` and `fmt` are the names of what is served."""

    def __init__(self, captures: Captures, model: str, fmt: str) -> None:
        self._recordings = Recordings(captures.folder)
        self._server = {
            "model": model,
            "format": fmt,
            "formats": [*native_formats()],
            "tokenizer": captures.recorded_tokenizer,
            "version": dovetail.__version__,
        }
        self._thread = ThreadPoolExecutor(1, "dovetail-inspect")
        self._waiting = 0

    async def server(self, request: Request) -> Response:
        check_may_inspect(request)
        return _json(self._server)

    async def listing(self, request: Request) -> Response:
        check_may_inspect(request)
        search = Search.of(request.query_params)
        return await self._in_thread(lambda: self._recordings.search(search))

    async def recording(self, request: Request) -> Response:
        check_may_inspect(request)
        name = request.path_params["name"]
        return await self._in_thread(lambda: self._recordings.show(name))

    async def _in_thread(self, read: Callable[[], Any]) -> Response:
        """What `read` returns, as JSON. Raises `EngineBusy` if too many wait."""
        if self._waiting >= _MOST_WAITING:
            raise EngineBusy(f"{self._waiting} requests for recordings wait already; try again later")
        self._waiting += 1
        try:
            body = await asyncio.get_running_loop().run_in_executor(self._thread, lambda: msgspec.json.encode(read()))
        finally:
            self._waiting -= 1
        return Response(body, headers=_HEADERS, media_type="application/json")


def check_may_inspect(request: Request) -> None:
    """Raise `Forbidden` for a named key without `scope: inspect`, and for a page of another origin."""
    account = account_of(request.scope)
    if account is not None and account.key.scope != "inspect":
        raise Forbidden(f"the key {account.name!r} may not see recordings: it needs `scope: inspect`")
    # A browser sends the origin of a page with each GET to another origin, and with none to its own.
    if "origin" in request.headers:
        raise Forbidden("recordings are for this server's own page, and not for other origins")


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), headers=_HEADERS, media_type="application/json")
