"""The routes of the page `/inspect` and of its data.

The data is what every client wrote and read, so it needs the operator's key: the one without a name, or one with
`scope: inspect`. Pages of other origins do not get it, whatever `--allow-origin` says.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import dovetail
from dovetail.errors import EngineBusy, Forbidden, InvalidRequest
from dovetail.gateway import MoreRoutes, Settings
from dovetail.gateway.http.endpoint import account_of
from dovetail.gateway.observe.recording import RecordedTokenizer
from dovetail.gateway.records.record import model_digest
from dovetail.inspect.listing import Recordings
from dovetail.tokens import Tokenizer

T = TypeVar("T")

PATH = "/inspect"

_FOLDER = Path(__file__).parent / "page"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: Nothing is loaded from elsewhere, nothing runs but the modules, no other page shows this one in a frame, and no text
#: becomes HTML. The pictures of a recording are data: URLs.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_PAGE_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}

#: Requests for recordings that may wait for the thread that reads them.
_MOST_WAITING = 32
#: Recordings of a list: if the request names no limit, and at most.
_LISTED, _MOST_LISTED = 50, 1000
_HEADERS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def inspect_routes(settings: Settings, tokenizer: Tokenizer | None) -> MoreRoutes:
    """The routes of the page, if requests are recorded; else none. `tokenizer`: of the one model that is served."""
    if settings.recordings is None:
        return MoreRoutes()
    data = _Data(settings.recordings.folder, settings.served_model_name, tokenizer)
    page = page_routes()
    routes = [
        *page,
        Route(f"{PATH}/server", data.server),
        Route(f"{PATH}/recordings", data.listing),
        Route(f"{PATH}/recordings/{{name}}", data.recording),
    ]
    return MoreRoutes(routes, frozenset(route.path for route in page))


class _Data:
    """Handlers of the page's data. `model` is the name of the served model."""

    def __init__(self, folder: Path, model: str, tokenizer: Tokenizer | None) -> None:
        self._recordings = Recordings(folder)
        recorded = None
        if tokenizer is not None:
            recorded = RecordedTokenizer(model_digest("", tokenizer).hex(), tokenizer.vocab_size)
        self._server = {"model": model, "tokenizer": recorded, "version": dovetail.__version__}
        self._thread = ThreadPoolExecutor(1, "dovetail-inspect")
        self._waiting = 0

    async def server(self, request: Request) -> Response:
        check_may_inspect(request)
        return _reply(msgspec.json.encode(self._server))

    async def listing(self, request: Request) -> Response:
        check_may_inspect(request)
        limit = _limit(request.query_params)
        return _reply(await self._in_thread(lambda: msgspec.json.encode(self._recordings.newest(limit))))

    async def recording(self, request: Request) -> Response:
        check_may_inspect(request)
        name = request.path_params["name"]
        return _reply(await self._in_thread(lambda: msgspec.json.encode(self._recordings.show(name))))

    async def _in_thread(self, read: Callable[[], T]) -> T:
        """What `read` returns. Raises `EngineBusy` if too many wait."""
        if self._waiting >= _MOST_WAITING:
            raise EngineBusy(f"{self._waiting} requests for recordings wait already; try again later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, read)
        finally:
            self._waiting -= 1


def _limit(query: Mapping[str, str]) -> int:
    """The `limit` of a URL's query. Raises `InvalidRequest`."""
    for name in query:
        if name != "limit":
            raise InvalidRequest(f"{name:.80} is no parameter of the list; limit is", param=name)
    limit = query.get("limit", str(_LISTED))
    if not re.fullmatch("[0-9]{1,4}", limit) or not 1 <= int(limit) <= _MOST_LISTED:
        raise InvalidRequest(f"limit is {limit:.20}, and has to be 1 to {_MOST_LISTED}", param="limit")
    return int(limit)


def check_may_inspect(request: Request) -> None:
    """Raise `Forbidden` for a named key without `scope: inspect`, and for a page of another origin."""
    account = account_of(request.scope)
    if account is not None and account.key.scope != "inspect":
        raise Forbidden(f"the key {account.name!r} may not see recordings: it needs `scope: inspect`")
    # A browser sends the origin of a page with each GET to another origin, and with none to its own.
    if "origin" in request.headers:
        raise Forbidden("recordings are for this server's own page, and not for other origins")


def _reply(body: bytes) -> Response:
    return Response(body, headers=_HEADERS, media_type="application/json")


def page_routes() -> list[Route]:
    """The routes of the page's files: the HTML file at `/inspect`, the others below it.

    They hold no data, so they need no key.
    """
    return [_route(file) for file in sorted(_FOLDER.iterdir()) if file.suffix in _MEDIA_TYPES]


def _route(file: Path) -> Route:
    response = Response(file.read_bytes(), headers=_PAGE_HEADERS, media_type=_MEDIA_TYPES[file.suffix])

    async def send(request: Request) -> Response:
        return response

    if file.name == "index.html":
        return Route(PATH, send)
    return Route(f"{PATH}/{file.name}", send, include_in_schema=False)
