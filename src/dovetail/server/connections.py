"""The server's connections: how many there may be, and how long each may take to send a request and to read an answer.

uvicorn has no such deadlines, so a client that sends half a request, or stops reading, would hold its connection for
ever. The deadlines are nginx's: `client_header_timeout`, `client_body_timeout`, `send_timeout`,
`keepalive_timeout`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from dovetail.errors import InvalidRequest
from dovetail.gateway.http.errors import error_json

_LOG = logging.getLogger("dovetail.server")

#: The most bytes of a request's target, headers and trailers together, as in h11 and nginx (4 buffers of 16 KiB).
_HEADER_BYTES = 64 * 1024
#: The most bytes of framing for a byte of a chunked body. A chunk of one byte has 6: `1`, CRLF, the byte, CRLF.
_FRAMING = 8
#: Requests that a connection may send while another is answered; each takes some 10 KB.
_PIPELINED = 100
#: How many times the deadline between two reads a body may take in all.
_WHOLE_BODY = 10
#: How long, and for how many bytes, a closed connection is read on. A client that still sends would otherwise get a
#: reset, and might lose the answer that says why.
_LINGER_S = 2.0
_LINGER_BYTES = 16 * 1024 * 1024
#: Files, besides connections, that the process may have open.
_OTHER_FILES = 64


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the server's connections. Times are in seconds.

    `connections`: the most connections at a time.
    `header_s`: how long the headers of a request may take, from their first byte or the start of the connection.
    `body_s`: how long may pass between two reads of a body; the whole body may take 10 times as long.
    `send_s`: how long a client may leave no room for more of its answer.
    `keep_alive_s`: how long a connection may wait for its next request.
    """

    connections: int = 4096
    header_s: float = 60.0
    body_s: float = 60.0
    send_s: float = 60.0
    keep_alive_s: float = 75.0


class Connections:
    """The open connections of one server.

    A new connection beyond the limit takes the place of the one that has waited longest for a request; if all others
    are being answered, the new one is closed. So half-sent requests cannot lock anybody out.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._most = _affordable(limits.connections)
        self._open = 0
        #: Those without a whole request, the oldest first.
        self._waiting: dict[LimitedProtocol, None] = {}
        #: What has happened since the last line in the log.
        self._events: Counter[str] = Counter()

    def protocol(self) -> Callable[..., LimitedProtocol]:
        """The class of uvicorn's connections, for `Config.http`."""
        return functools.partial(LimitedProtocol, connections=self)

    def opened(self, connection: LimitedProtocol) -> bool:
        """Count `connection`. False if there is no room for it."""
        self._open += 1
        self._waiting[connection] = None
        if self._open <= self._most:
            return True
        self._report(f"closed, because there may be {self._most} at a time")
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]  # it ends in the next turn of the loop; until then another one has to go
        oldest.abort()
        return oldest is not connection

    def closed(self, connection: LimitedProtocol) -> None:
        """Forget `connection`."""
        self._open -= 1
        self._waiting.pop(connection, None)

    def waits(self, connection: LimitedProtocol) -> None:
        """`connection` waits for a request, or the rest of one."""
        self._waiting.setdefault(connection)

    def answers(self, connection: LimitedProtocol) -> None:
        """`connection` has a whole request."""
        self._waiting.pop(connection, None)

    def refused(self) -> None:
        """A connection has sent what is no request."""
        self._report("refused, because what they sent is no request")

    def timed_out(self, connection: LimitedProtocol) -> None:
        """Close `connection`, which has missed a deadline."""
        self._report("closed, because they sent or took nothing for too long")
        connection.abort()

    def _report(self, what: str) -> None:
        """Log what happens to connections, at most once a second."""
        if not self._events:
            asyncio.get_running_loop().call_later(1.0, self._log)
        self._events[what] += 1

    def _log(self) -> None:
        _LOG.warning("connections: %s", "; ".join(f"{count} {what}" for what, count in self._events.items()))
        self._events.clear()


def _affordable(most: int) -> int:
    """`most` connections, or as many as the process may have files for. Raises the soft limit of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # An engine behind HTTP has another connection for each request.
    needed = 2 * most + _OTHER_FILES
    if hard == resource.RLIM_INFINITY or hard > soft:
        soft = needed if hard == resource.RLIM_INFINITY else min(hard, max(soft, needed))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(most, (soft - _OTHER_FILES) // 2))


class LimitedProtocol(HttpToolsProtocol):
    """One connection under `ConnectionLimits`, with the strictness that llhttp leaves to its user (RFC 9112).

    A request must have one Host (3.2), no transfer coding other than chunked (6.1) and version 1.0 or 1.1.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._limits = connections.limits
        self._deadline: asyncio.TimerHandle | None = None
        self._send_deadline: asyncio.TimerHandle | None = None
        self._body_end = 0.0
        self._receiving = False
        self._lingering = False
        self._bytes = self._header_bytes = self._body_bytes = 0

    # A connection begins and ends.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = _Transport(transport, self)
        super().connection_made(self._transport)  # type: ignore[arg-type]
        if self._connections.opened(self):
            self._wait(self._limits.header_s)
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.closed(self)
        self._wait(None)
        self._stop_send_deadline()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    # It receives requests.

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._lingering:
            if self._bytes > _LINGER_BYTES:
                self.abort()
            return
        if self._receiving:
            self._wait(min(self._limits.body_s, self._body_end - self.loop.time()))
        elif self._idle:  # the first byte of another request
            self._wait(self._limits.header_s)
        super().data_received(data)
        if self._bytes > _HEADER_BYTES + (1 + _FRAMING) * self._body_bytes and not self.transport.is_closing():
            self.send_400_response("the headers or the framing of the request are too long")

    def send_400_response(self, msg: str) -> None:
        self._connections.refused()
        body = error_json(InvalidRequest(f"this is no HTTP/1.1 request that can be served: {msg}"))
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: "
        self.transport.write(b"%s%d\r\n\r\n%s" % (head, len(body), body))
        self._receiving = True  # whatever comes next is not read
        self.transport.close()

    @property
    def _idle(self) -> bool:
        """Whether the connection waits for a request after an answer."""
        return self.cycle is not None and self.cycle.response_complete and not self._receiving

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value) + 4)
        super().on_header(name, value)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > _HEADER_BYTES:
            raise _Refused

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _PIPELINED:
            raise _Refused
        names = [name for name, _ in self.headers]
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1") or names.count(b"host") != (1 if version == "1.1" else names.count(b"host")):
            raise _Refused
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            raise _Refused
        self._receiving = True
        self._body_end = self.loop.time() + _WHOLE_BODY * self._limits.body_s
        self._wait(self._limits.body_s)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._receiving = False
        self._bytes = 0
        self._wait(None)
        self._connections.answers(self)
        super().on_message_complete()

    # It answers them.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        async def closing(scope: Any, receive: Any, send: Any) -> None:
            async def send_closing(message: Any) -> None:
                starts = message["type"] == "http.response.start"
                # Whatever follows on the connection belongs to a body that nobody reads.
                if starts and self._receiving and cycle is self.cycle:
                    cycle.keep_alive = False
                self._transport.holds = starts
                await send(message)
                if not starts:
                    self._transport.release()

            await app(scope, receive, send_closing)

        super()._start_asgi_task(cycle, closing)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._lingering and not self.pipeline:
            self._connections.waits(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_deadline = self.loop.call_later(self._limits.send_s, self._connections.timed_out, self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_deadline()

    def _stop_send_deadline(self) -> None:
        if self._send_deadline is not None:
            self._send_deadline.cancel()
            self._send_deadline = None

    # It has to send something by a deadline.

    def _wait(self, seconds: float | None) -> None:
        """Close the connection after `seconds`, or never; the last call counts."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None:
            self._deadline = self.loop.call_later(max(0.0, seconds), self._connections.timed_out, self)

    def linger(self) -> bool:
        """Begin to close: read on for a while if a request is being received. False if the connection may close."""
        if not self._receiving or self._lingering:
            return self._lingering
        self._lingering = True
        self._bytes = 0
        self.flow.resume_reading()  # a large body that nobody took has paused it
        self._wait(_LINGER_S)
        return True


class _Refused(Exception):
    """A request that breaks a rule. llhttp turns it into an error of the parser, which is answered with 400."""


class _Transport:
    """A transport that lingers when it is closed while a request arrives, and that writes headers with what follows.

    `holds`: keep what is written until the next write, which endpoints make at once; a write is a third of what an
    answer of one token costs.
    """

    def __init__(self, transport: Any, connection: LimitedProtocol) -> None:
        self._transport = transport
        self._connection = connection
        self._closing = False
        self._buffered = b""
        self.holds = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self.holds:
            self._buffered += data
        elif self._buffered:
            buffered, self._buffered = self._buffered, b""
            self._transport.write(buffered + data)
        else:
            self._transport.write(data)

    def release(self) -> None:
        """Write what is buffered, if nothing has been written after it: an answer to HEAD has no body."""
        self.holds = False
        if self._buffered:
            self.write(b"")

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        self.release()
        self._closing = True
        if not self._connection.linger():
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()
