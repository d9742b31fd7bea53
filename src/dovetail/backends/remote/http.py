"""HTTP to one server: pages, and streams of server-sent events.

Every failure of the connection is a `ServerLost`; every answer but 200 is what `refusal` makes of it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler

from dovetail.backends.remote.errors import ServerLost, refusal
from dovetail.errors import EngineBusy, EngineError, PlanError

CONNECT_S = 5.0
#: Between tries to be let into the queue of a Unix socket.
_TURN_S = 0.02
PAGE_S = 10.0
_PAGE_BYTES = 4 * 1024 * 1024
#: What may come before an event is whole. SGLang may repeat all log probabilities of an answer in one.
_EVENT_BYTES = 16 * 1024 * 1024
_ANSWER_BYTES = 64 * 1024 * 1024
#: How often a server that says nothing is asked for its health, and how long it may say nothing in all.
_SILENCES = 20
#: Less than the 5 seconds after which uvicorn closes a connection that is not used, perhaps under a request.
_KEPT_S = 4.0


def split_address(address: str) -> tuple[str, str]:
    """The base of an engine's URL, without the /v1 that others write at its end, and its host and port.

    Raises `PlanError`, which does not repeat the address: what is wrong with it may be that it holds a key.
    """
    if "@" in address:
        raise PlanError("a key does not belong into an engine's URL, where it would be logged: --engine-api-key-file")
    wrong = PlanError("what engine names is no URL such as http://127.0.0.1:8000")
    try:
        parts = urlsplit(address.strip())
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise wrong
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{where}{path}", where + path


class Http:
    """A pool of connections to one server. Made on the event loop that uses it.

    A server from which no byte came for `silence_s` seconds is asked for its health; one that is healthy may send no
    event for 20 times as long, and has too much to do then. Unless `keeps`, each request has a connection of its own.
    With `path` it listens on the Unix socket there, and the host in `base` is no more than a name.
    """

    def __init__(self, base: str, name: str, key: str | None, silence_s: float, path: str | None = None) -> None:
        self._base, self._name, self._silence_s = base, name, silence_s
        self.keeps = True
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # No proxies of the environment, and no bound on connections: who is let in is decided elsewhere.
        options: Any = {"limit": 0, "keepalive_timeout": _KEPT_S}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(**options) if path is None else _UnixConnector(path, **options),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            headers={**headers, "Content-Type": "application/json"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding",),
        )
        self._requests: set[asyncio.Future[aiohttp.ClientResponse]] = set()

    async def close(self) -> None:
        """Ends every stream, each with a `ServerLost`."""
        # Closing the session does not wake those that read.
        for request in self._requests:
            if not request.cancel() and not request.cancelled() and request.exception() is None:
                request.result().content.set_exception(aiohttp.ClientConnectionError("closed from here"))
        await self._session.close()

    async def healthy(self) -> bool:
        """Whether /health answers with status 200."""
        try:
            return (await self.page("/health"))[0] == 200
        except EngineError:
            return False

    async def page(self, path: str, body: object = None) -> tuple[int, bytes]:
        """GET, or POST where there is a body: the status and at most 4 MiB. Raises `ServerLost`."""
        method, data = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        self._check_open()
        try:
            async with (
                asyncio.timeout(PAGE_S),
                self._session.request(
                    method, self._base + path, data=data, allow_redirects=False, headers=self._headers
                ) as response,
            ):
                return response.status, await self._whole(response)
        except (aiohttp.ClientError, OSError) as error:
            raise _lost(self._name, error) from error

    async def events(
        self, path: str, body: Mapping[str, object], healthy: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes]:
        """POST `body`, and the data of each event that comes back; an answer that is no stream is one event.

        Closing the generator closes the connection at once. Raises `ServerLost`, what `refusal` makes of a status, or
        `EngineBusy` where a healthy server sends no event for too long.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        try:
            async with self._post(path, msgspec.json.encode(body), healthy) as response:
                if response.status != 200:
                    async with asyncio.timeout(PAGE_S):
                        raise refusal(self._name, response.status, await self._whole(response))
                streams = response.content_type == "text/event-stream"
                most = _EVENT_BYTES if streams else _ANSWER_BYTES
                rest, size, last = bytearray(), 0, loop.time()
                while chunk := await self._chunk(response.content, healthy):
                    rest += chunk
                    size += len(chunk)  # comments count too, which may come for ever
                    if streams and b"\n" in chunk:
                        *lines, rest = rest.split(b"\n")
                        for line in lines:
                            if line.startswith(b"data:"):
                                yield bytes(line[5:].strip())
                                size, last = len(rest), loop.time()
                    if size > most:
                        raise EngineError(f"{self._name} sent {size} bytes without an event")
                    if loop.time() - last > _SILENCES * self._silence_s:
                        raise self._overloaded()
                if not streams:
                    yield bytes(rest)
        except (aiohttp.ClientError, OSError) as error:
            raise _lost(self._name, error) from error

    @asynccontextmanager
    async def _post(
        self, path: str, data: bytes, healthy: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        # Some send their status with the first token only, so that waiting for it is waiting for a prompt.
        request = asyncio.ensure_future(
            self._session.post(self._base + path, data=data, allow_redirects=False, headers=self._headers)
        )
        self._requests.add(request)
        try:
            silences = 0
            while not (await asyncio.wait({request}, timeout=self._silence_s))[0]:
                silences += 1
                await self._ask(silences, healthy)
            if request.cancelled():
                raise ServerLost(f"the connections to {self._name} are closed")
            yield request.result()
        finally:
            self._requests.discard(request)
            if not request.done():
                request.cancel()
                await asyncio.wait({request})
            if not request.cancelled() and request.exception() is None:
                # One that was read to its end has given its connection back already; any other is of no more use.
                request.result().close()

    async def _chunk(self, content: aiohttp.StreamReader, healthy: Callable[[], Awaitable[bool]]) -> bytes:
        """What came, b"" at the end."""
        silences = 0
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    return await content.readany()
            except TimeoutError:
                silences += 1
                await self._ask(silences, healthy)

    @property
    def _headers(self) -> Mapping[str, str]:
        return {} if self.keeps else {"Connection": "close"}

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        read = bytearray()
        async for chunk in response.content.iter_any():
            read += chunk
            if len(read) > _PAGE_BYTES:
                raise EngineError(f"{self._name}{response.url.path} is larger than {_PAGE_BYTES} bytes")
        return bytes(read)

    def _check_open(self) -> None:
        if self._session.closed:
            raise ServerLost(f"the connections to {self._name} are closed", sent=False)

    async def _ask(self, silences: int, healthy: Callable[[], Awaitable[bool]]) -> None:
        """Raise `ServerLost` for a server that is silent and not well, `EngineBusy` for one that is too long."""
        if not await healthy():
            raise ServerLost(f"{self._name} sent nothing for {round(silences * self._silence_s)} seconds")
        if silences >= _SILENCES:
            raise self._overloaded()

    def _overloaded(self) -> EngineBusy:
        return EngineBusy(
            f"{self._name} is well, and did not come to this in {_SILENCES * self._silence_s:.0f} seconds"
        )


class _UnixConnector(aiohttp.UnixConnector):
    """Waits for its turn where the socket's queue is full.

    Linux says EAGAIN then (connect(2)), and does not tell when there is room; asyncio takes it for a connection that is
    being made, and then for one that was.
    """

    async def _create_connection(self, req: aiohttp.ClientRequest, traces: Any, timeout: Any) -> ResponseHandler:
        entering = socket.socket(socket.AF_UNIX)
        entering.setblocking(False)
        with ExitStack() as undo:
            undo.callback(entering.close)
            async with asyncio.timeout(timeout.sock_connect):
                while not self._in(entering, req):
                    await asyncio.sleep(_TURN_S)
            _, protocol = await self._loop.create_connection(self._factory, sock=entering)
            undo.pop_all()
        return protocol

    def _in(self, entering: socket.socket, req: aiohttp.ClientRequest) -> bool:
        try:
            entering.connect(self.path)
        except BlockingIOError:
            return False
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return True


def _lost(name: str, error: Exception) -> ServerLost:
    if isinstance(error, aiohttp.ClientConnectorError):
        return ServerLost(f"{name} cannot be reached: {error.os_error.strerror or error}", sent=False)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ServerLost(f"{name} cannot be reached: it takes no connection", sent=False)
    if isinstance(error, aiohttp.ClientPayloadError):
        return ServerLost(f"{name} broke off within an answer")
    return ServerLost(f"{name} broke off: {str(error) or type(error).__name__}")
