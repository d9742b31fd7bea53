"""An HTTP client for one server: whole pages, and streams of server-sent events.

A failure of the connection raises `ServerLost`. An answer with another status than 200 raises what `refusal` returns.
"""

from __future__ import annotations

import asyncio
import codecs
import io
import socket
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler

from dovetail import addresses
from dovetail.backends.remote.errors import ServerLost, refusal
from dovetail.errors import EngineError, PlanError

CONNECT_S = 5.0
#: Seconds between two tries to connect to a Unix socket whose queue is full.
_RETRY_S = 0.02
PAGE_S = 10.0
_PAGE_BYTES = 4 * 1024 * 1024
#: The most bytes of one event. SGLang may repeat all log probabilities of an answer in each.
_EVENT_BYTES = 16 * 1024 * 1024
_ANSWER_BYTES = 64 * 1024 * 1024
#: The most events at a time, so that one stream with many does not keep all others waiting.
SLICE = 64
#: Below uvicorn's 5 seconds, after which it closes an idle connection, perhaps while a request is being sent.
_KEEPALIVE_S = 4.0
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def split_address(address: str) -> tuple[str, str]:
    """The base of an engine's URL, without a final /v1, and its host and port.

    Raises `PlanError`, which does not quote the address, because it may contain a key.
    """
    if "@" in address:
        raise PlanError("an engine's URL must not contain a key, because URLs are logged: use --engine-api-key-file")
    parts = addresses.base_of(address)
    if parts is None:
        raise PlanError("engine must be a URL such as http://127.0.0.1:8000")
    return parts


class Http:
    """A pool of connections to one server. Create it on the event loop that uses it.

    `silence_s`: seconds without a byte after which the server's /health is asked; an unhealthy server is lost.
    How long a healthy one may be silent is left to the caller. `path`: the Unix socket to connect to, if any; then the
    host in `base` is only a name. `keeps`: whether connections are used again.
    """

    def __init__(self, base: str, name: str, key: str | None, silence_s: float, path: str | None = None) -> None:
        self._base, self._name, self._silence_s = base, name, silence_s
        self.keeps = True
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # No limit on connections, because the gateway limits requests; and no proxies from the environment.
        options: Any = {"limit": 0, "keepalive_timeout": _KEEPALIVE_S}
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
        """End every stream with a `ServerLost`, and close the connections."""
        # Closing the session alone would not wake the readers.
        for request in self._requests:
            if not request.cancel() and not request.cancelled() and request.exception() is None:
                request.result().content.set_exception(aiohttp.ClientConnectionError("closed by Dovetail"))
        await self._session.close()

    async def healthy(self) -> bool:
        """Whether /health answers with status 200."""
        try:
            return (await self.page("/health"))[0] == 200
        except EngineError:
            return False

    async def page(self, path: str, body: object = None) -> tuple[int, bytes]:
        """GET, or POST if there is a `body`. Returns the status and at most 4 MiB. Raises `ServerLost`."""
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
        self,
        path: str,
        body: Mapping[str, object],
        healthy: Callable[[], Awaitable[bool]],
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> AsyncGenerator[list[bytes]]:
        """POST `body` with `headers` and yield the data of events, as many at a time as have arrived, up to `SLICE`.

        An answer that is not a stream is one event. Closing the generator closes the connection at once. Raises
        `ServerLost`, or what `refusal` returns for a status.
        """
        self._check_open()
        try:
            async with self._post(path, msgspec.json.encode(body), healthy, headers) as response:
                if response.status != 200:
                    async with asyncio.timeout(PAGE_S):
                        whole = await self._whole(response)
                    raise refusal(self._name, response.status, whole, response.headers.get("Retry-After"))
                streams = response.content_type == "text/event-stream"
                most = _EVENT_BYTES if streams else _ANSWER_BYTES
                rest, size, mark = bytearray(), 0, codecs.BOM_UTF8
                while chunk := await self._chunk(response.content, healthy):
                    rest += chunk
                    size += len(chunk)  # comments count too, because a server may send them for ever
                    if streams and b"\n" in chunk:
                        *lines, unread = bytes(rest).removeprefix(mark).split(b"\n")
                        mark = b""
                        rest = bytearray(unread)
                        events = [line[5:].strip() for line in lines if line.startswith(b"data:")]
                        for start in range(0, len(events), SLICE):
                            yield events[start : start + SLICE]
                        if events:
                            size = len(rest)
                    if size > most:
                        raise EngineError(f"{self._name} sent {size} bytes without an event")
                if not streams:
                    yield [bytes(rest).removeprefix(mark)]
        except (aiohttp.ClientError, OSError) as error:
            raise _lost(self._name, error) from error

    async def pass_on(
        self, path: str, data: bytes, content_type: str, healthy: Callable[[], Awaitable[bool]]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """POST `data` as it is. Returns the status, the headers and the whole answer. Raises `ServerLost`."""
        self._check_open()
        try:
            # A large body is sent in parts, between which the event loop does other things.
            async with self._post(path, io.BytesIO(data), healthy, {"Content-Type": content_type}) as response:
                return response.status, response.headers, await self._whole(response, _ANSWER_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            raise _lost(self._name, error) from error

    @asynccontextmanager
    async def _post(
        self,
        path: str,
        data: bytes | io.BytesIO,
        healthy: Callable[[], Awaitable[bool]],
        headers: Mapping[str, str],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        # Some servers send the status with the first token only, so this may wait for a whole prompt.
        request = asyncio.ensure_future(
            self._session.post(
                self._base + path, data=data, allow_redirects=False, headers={**self._headers, **headers}
            )
        )
        self._requests.add(request)
        try:
            silences = 0
            while not (await asyncio.wait({request}, timeout=self._silence_s))[0]:
                silences += 1
                await self._check_silence(silences, healthy)
            if request.cancelled():
                raise ServerLost(f"the connections to {self._name} are closed")
            yield request.result()
        finally:
            self._requests.discard(request)
            if not request.done():
                request.cancel()
                await asyncio.wait({request})
            if not request.cancelled() and request.exception() is None:
                # Does nothing to an answer that was read to its end; any other connection cannot be used again.
                request.result().close()

    async def _chunk(self, content: aiohttp.StreamReader, healthy: Callable[[], Awaitable[bool]]) -> bytes:
        """The next bytes, b"" at the end."""
        if here := content.read_nowait():
            return here
        silences = 0
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    return await content.readany()
            except TimeoutError:
                silences += 1
                await self._check_silence(silences, healthy)

    @property
    def _headers(self) -> Mapping[str, str]:
        return {} if self.keeps else {"Connection": "close"}

    async def _whole(self, response: aiohttp.ClientResponse, most: int = _PAGE_BYTES) -> bytes:
        read = bytearray()
        async for chunk in response.content.iter_any():
            read += chunk
            if len(read) > most:
                raise EngineError(f"{self._name}{response.url.path} is larger than {most} bytes")
        return bytes(read)

    def _check_open(self) -> None:
        if self._session.closed:
            raise ServerLost(f"the connections to {self._name} are closed", sent=False)

    async def _check_silence(self, silences: int, healthy: Callable[[], Awaitable[bool]]) -> None:
        """Raise `ServerLost` if the silent server is unhealthy."""
        if not await healthy():
            raise ServerLost(f"{self._name} sent nothing for {round(silences * self._silence_s)} seconds")


class _UnixConnector(aiohttp.UnixConnector):
    """Connects to a Unix socket, and waits while the socket's queue is full.

    Linux then returns EAGAIN (connect(2)) and gives no notice when there is room. asyncio would take EAGAIN for a
    connection in progress, and use a socket that is not connected.
    """

    async def _create_connection(self, req: aiohttp.ClientRequest, traces: Any, timeout: Any) -> ResponseHandler:
        connecting = socket.socket(socket.AF_UNIX)
        connecting.setblocking(False)
        with ExitStack() as undo:
            undo.callback(connecting.close)
            async with asyncio.timeout(timeout.sock_connect):
                while not self._connected(connecting, req):
                    await asyncio.sleep(_RETRY_S)
            _, protocol = await self._loop.create_connection(self._factory, sock=connecting)
            undo.pop_all()
        return protocol

    def _connected(self, connecting: socket.socket, req: aiohttp.ClientRequest) -> bool:
        try:
            connecting.connect(self.path)
        except BlockingIOError:
            return False
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return True


def _lost(name: str, error: Exception) -> ServerLost:
    if isinstance(error, aiohttp.ClientConnectorError):
        return ServerLost(f"{name} cannot be reached: {error.os_error.strerror or error}", sent=False)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ServerLost(f"{name} cannot be reached: it accepts no connection", sent=False)
    if isinstance(error, aiohttp.ClientPayloadError):
        return ServerLost(f"{name} closed the connection within an answer")
    return ServerLost(f"{name} closed the connection: {str(error) or type(error).__name__}")


#: Slices in one iteration of the event loop.
_SLICES = 8


class Turns:
    """Lets `slices` callers of `take` go on in each iteration of the event loop, in the order in which they came."""

    def __init__(self, slices: int = _SLICES) -> None:
        self._slices = self._left = slices
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._counting = False

    async def take(self) -> None:
        """Wait for a turn, which is there at once as long as few ask for one."""
        loop = asyncio.get_running_loop()
        if not self._counting:
            self._counting = True
            loop.call_soon(self._next_iteration)
        if self._left and not self._waiting:
            self._left -= 1
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter  # one that is cancelled stays in the line until its turn

    def _next_iteration(self) -> None:
        self._left = self._slices
        while self._left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._left -= 1
                waiter.set_result(None)
        self._counting = bool(self._waiting)
        if self._counting:
            asyncio.get_running_loop().call_soon(self._next_iteration)
