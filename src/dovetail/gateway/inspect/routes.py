"""The routes of the page `/inspect` and of its data.

The data is what every client wrote and read, so it needs the operator's key: the one without a name, or one with
`scope: inspect`. Pages of other origins do not get it, whatever `--allow-origin` says.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

import dovetail
from dovetail.errors import EngineBusy, Forbidden
from dovetail.gateway.http.connection import account_of, while_connected
from dovetail.gateway.http.draining import Draining
from dovetail.gateway.inspect.page_files import PATH, page_routes
from dovetail.gateway.inspect.recordings import Recordings
from dovetail.gateway.inspect.search import Search
from dovetail.gateway.recordings.capture import Captures
from dovetail.gateway.settings import Settings
from dovetail.gateway.turn.runner import TurnRunner

T = TypeVar("T")

#: Requests for recordings that may wait for the thread that reads them.
_MOST_WAITING = 32
#: Requests that may wait for new recordings. Further ones are answered at once, and their pages ask again.
_MOST_WATCHING = 32
#: Seconds after which such a request looks for what other processes have written.
_LOOK_S = 2.0
#: Names of new recordings that are kept until somebody asks. Older ones are found when the folder is listed.
_MOST_NEWS = 200
_HEADERS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def inspect_routes(runner: TurnRunner, settings: Settings) -> list[Route]:
    """The routes of the page, if requests are recorded; else none."""
    captures = runner.captures
    if not isinstance(captures, Captures):
        return []
    data = _Data(captures, settings.served_model_name, runner.draining)
    return [
        *page_routes(),
        Route(f"{PATH}/server", data.server),
        Route(f"{PATH}/recordings", data.listing),
        Route(f"{PATH}/recordings/{{name}}", data.recording),
    ]


class _Data:
    """Handlers of the page's data. `model` is the name of the served model."""

    def __init__(self, captures: Captures, model: str, draining: Draining) -> None:
        self._recordings = Recordings(captures.folder)
        self._news = _News(captures)
        self._draining = draining
        self._server = {"model": model, "tokenizer": captures.recorded_tokenizer, "version": dovetail.__version__}
        self._thread = ThreadPoolExecutor(1, "dovetail-inspect")
        self._waiting = 0

    async def server(self, request: Request) -> Response:
        check_may_inspect(request)
        return _reply(msgspec.json.encode(self._server))

    async def listing(self, request: Request) -> Response:
        check_may_inspect(request)
        search = Search.of(request.query_params)
        if search.since is None or not search.wait or self._draining.started or self._news.watchers >= _MOST_WATCHING:
            return _reply((await self._in_thread(lambda: self._found(search)))[1])
        try:
            newer = self._draining.first(self._newer(search, search.since))
            return _reply(await while_connected(request.receive, newer))
        except ClientDisconnect:
            return Response()

    async def _newer(self, search: Search, since: int) -> bytes:
        """The list as soon as it has a recording that is newer than `since`, or as it is when the wait is over."""
        end = time.monotonic() + search.wait
        with self._news.watched() as event:
            while True:
                event.clear()
                written = self._news.taken()
                newest, body = await self._in_thread(functools.partial(self._found, search, written))
                left = end - time.monotonic()
                if newest > since or written or left <= 0:  # two files may have the same time
                    return body
                await _set_within(event, min(left, _LOOK_S))

    def _found(self, search: Search, written: Sequence[str] = ()) -> tuple[int, bytes]:
        listing = self._recordings.search(search, written)
        return listing.newest, msgspec.json.encode(listing)

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


class _News:
    """Tells watchers that this process has written a recording."""

    def __init__(self, captures: Captures) -> None:
        self._captures = captures
        self._events: set[asyncio.Event] = set()
        self._news: deque[str] = deque(maxlen=_MOST_NEWS)

    @property
    def watchers(self) -> int:
        return len(self._events)

    def taken(self) -> Sequence[str]:
        """The names of the latest recordings that were written since this was last asked."""
        news = [*self._news]
        self._news.clear()
        return news

    @contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """An event that is set when a recording is written."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()

        def written(name: str) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._tell, name)

        self._captures.tell(written)
        self._events.add(event)
        try:
            yield event
        finally:
            self._events.remove(event)

    def _tell(self, name: str) -> None:
        self._news.append(name)
        for event in self._events:
            event.set()


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until `event` is set, for at most `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


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
