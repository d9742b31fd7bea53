"""HTTP to one endpoint: a whole reply to each request. The key is known here and nowhere else."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from dovetail import addresses
from dovetail.client.not_tested import NotTested
from dovetail.errors import InvalidRequest

CONNECT_S = 10.0
#: A connection that was idle for longer is not used again. Servers close idle ones (uvicorn after 5 s), and a request
#: that is written at that moment is lost.
IDLE_S = 2.0
#: The most bytes of one reply.
REPLY_BYTES = 64 * 1024 * 1024
#: Characters of a key that is looked for in replies. A shorter one may be a word of an answer.
_LEAST_KEY = 12


class Reply(msgspec.Struct, frozen=True):
    """A whole reply. The names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait, given as seconds or as a date (RFC 9110, 10.2.3); None without such a header."""
        header = self.headers.get("retry-after", "").strip()
        if header.isdecimal():
            return float(header)
        try:
            return max(parsedate_to_datetime(header).timestamp() - time(), 0.0)
        except ValueError:
            return None


class Arrival(msgspec.Struct, frozen=True):
    """A reply with its times, in seconds of the event loop's clock.

    `sent`: when it was written to a connection. `pieces`: for each piece of the body, when it came and where in the
    body it ends.
    """

    reply: Reply
    sent: float
    pieces: tuple[tuple[float, int], ...]


class Transport(Protocol):
    """Sends one request and returns the whole reply. Raises `NotTested` if there is none."""

    async def send(self, method: str, path: str, body: bytes | None) -> Reply: ...

    async def close(self) -> None: ...


class TimedTransport(Transport, Protocol):
    """A transport that also tells when each piece of a reply came."""

    async def timed(self, method: str, path: str, body: bytes | None) -> Arrival: ...


def base_of(url: str) -> str:
    """The URL of an endpoint without a final /v1.

    Raises `InvalidRequest`, which does not quote a URL that may contain a key.
    """
    if "@" in url:
        raise InvalidRequest("a URL must not contain a key, because reports show it: use --api-key-file")
    base = addresses.base_of(url)
    if base is None:
        raise InvalidRequest("URL must be one such as http://127.0.0.1:8000 or https://api.example.com/v1")
    return base[0]


class HttpTransport:
    """Requests over the network.

    `base`: the URL without /v1. `key`: sent as a Bearer token. `timeout_s`: for one whole reply.
    """

    def __init__(self, base: str, key: str | None, timeout_s: float) -> None:
        self._base, self._timeout_s = base, timeout_s
        self._key = key.encode() if key is not None and len(key) >= _LEAST_KEY else None
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    @functools.cached_property
    def _session(self) -> aiohttp.ClientSession:
        """Made with the first request, because it belongs to the event loop that runs then."""
        return aiohttp.ClientSession(
            connector=_Connector(limit=0),  # a request that waits here would look like a slow endpoint
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_S),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[_times_of_sending()],
            response_class=_Response,
        )

    async def send(self, method: str, path: str, body: bytes | None) -> Reply:
        reply = (await self._received(method, path, body)).reply
        return msgspec.structs.replace(reply, body=self._without_key(reply.body, b"[key]"))

    async def timed(self, method: str, path: str, body: bytes | None) -> Arrival:
        arrival = await self._received(method, path, body)
        # The body keeps its length, because the times of its pieces are by their places.
        same_length = b"[key]".ljust(len(self._key or b""))
        reply = msgspec.structs.replace(arrival.reply, body=self._without_key(arrival.reply.body, same_length))
        return msgspec.structs.replace(arrival, reply=reply)

    async def _received(self, method: str, path: str, body: bytes | None) -> Arrival:
        sent: list[float] = []
        try:
            # A redirect would carry the key to another host.
            async with self._session.request(
                method, self._base + path, data=body, allow_redirects=False, trace_request_ctx=sent
            ) as response:
                read = bytearray()
                async for chunk in response.content.iter_any():
                    read += chunk
                    if len(read) > REPLY_BYTES:
                        raise NotTested(f"a reply is larger than {REPLY_BYTES} bytes")
                headers = {name.lower(): value for name, value in response.headers.items()}
                assert isinstance(response, _Response)
                return Arrival(Reply(response.status, headers, bytes(read)), sent[0], tuple(response.pieces))
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            reason = os.strerror(number) if number is not None and number > 0 else type(error.os_error).__name__
            raise NotTested(f"it cannot be reached: {reason}") from None
        except TimeoutError:
            raise NotTested(f"it did not finish an answer within {self._timeout_s:g} seconds") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NotTested(f"it closed the connection: {type(error).__name__}") from None

    def _without_key(self, body: bytes, instead: bytes) -> bytes:
        """A body in which the endpoint does not repeat the key, as some do in errors: bodies are in reports."""
        return body if self._key is None else body.replace(self._key, instead)

    async def close(self) -> None:
        if "_session" in self.__dict__:
            await self._session.close()


class _Connection(ResponseHandler):
    """Writes down when bytes came: before the event loop wakes the task that waits for them.

    `pieces`: for each piece of the body that comes now, its time and where in the body it ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.pieces: list[tuple[float, int]] = []

    def data_received(self, data: bytes) -> None:
        time = self._loop.time()
        super().data_received(data)
        until = 0 if self._payload is None else self._payload.total_bytes
        if until > (self.pieces[-1][1] if self.pieces else 0):
            self.pieces.append((time, until))


class _Response(aiohttp.ClientResponse):
    """`pieces`: as its connection has them."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        assert isinstance(connection.protocol, _Connection)
        self.pieces = connection.protocol.pieces = []
        return await super().start(connection)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, *, limit: int) -> None:
        super().__init__(limit=limit, keepalive_timeout=IDLE_S)
        factory: Any = functools.partial(_Connection, loop=self._loop)
        self._factory = factory


def _times_of_sending() -> aiohttp.TraceConfig:
    """Puts the time at which a request is written into the list `trace_request_ctx`.

    Before that it may wait for its turn in the event loop and for its connection, which is not the server's time.
    aiohttp writes the head together with the body, if there is one.
    """

    async def written(session: Any, context: Any, part: Any) -> None:
        context.trace_request_ctx[:] = [asyncio.get_running_loop().time()]

    config = aiohttp.TraceConfig()
    config.on_request_headers_sent.append(written)
    config.on_request_chunk_sent.append(written)
    return config
