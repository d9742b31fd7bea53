"""The HTTP server around an app: its socket, its start, and its end on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from types import FrameType
from typing import Any, Protocol

import msgspec
import uvicorn
from rich.console import Console
from starlette.applications import Starlette
from starlette.types import ASGIApp

from dovetail.errors import EngineError, PlanError
from dovetail.gateway.limits.queue import Draining
from dovetail.plan import Plan
from dovetail.server import unix_socket
from dovetail.server.connections import ConnectionLimits, Connections
from dovetail.server.hangup import Reload, reloaded_on_hangup

#: Connections that wait to be accepted, as in nginx.
_BACKLOG = 511
#: Connections that are accepted before closed ones are really closed. asyncio accepts as many as its backlog at a time,
#: and logs each for which there is no file left.
_ACCEPTS = 16
#: Connections to the port that /metrics has to itself.
_METRICS_CONNECTIONS = 64
_LAST_EVENT_S = 3  # how long clients may then take to receive the error that ends their answers
_LOOK_S = 0.05  # between two looks whether all requests are answered
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """A listening socket. Raises `PlanError`.

    It is made before the engine loads, so that a port in use is reported at once and early clients wait in line.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise PlanError(f"host {host!r} cannot be resolved: {error.strerror}") from error
    family, kind, protocol, _, address = addresses[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if port and any(_answers(family, address) for family, *_, address in addresses):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise PlanError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with {option} or --host"
        ) from error
    return listener


def listening(plan: Plan) -> contextlib.AbstractContextManager[socket.socket]:
    """The plan's listening socket, until the context ends. Raises `PlanError`."""
    path, mode = plan.value("uds"), plan.value("uds_mode")
    if path is not None:
        return unix_socket.listening(path, unix_socket.DEFAULT_MODE if mode is None else int(mode, 8), _BACKLOG)
    if mode is not None:
        raise PlanError("uds_mode is set without a Unix socket: set --uds too")
    return listen(plan.value("host"), plan.value("port"))


def listening_for_metrics(plan: Plan) -> contextlib.AbstractContextManager[socket.socket | None]:
    """The listening socket of the plan's own port for metrics, if it has one. Raises `PlanError`."""
    port = plan.value("metrics_port")
    return contextlib.nullcontext() if port is None else listen(plan.value("host"), port, "--metrics-port")


def _answers(family: int, address: Any) -> bool:
    """Whether a server accepts connections at `address`.

    `bind` alone does not tell: macOS lets 127.0.0.1 be bound beside a server on 0.0.0.0, and a name such as localhost
    has two addresses, of which one may be free.
    """
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        # A connection from a free port of this machine to the same port reaches itself.
        return probe.connect_ex(address) == 0 and probe.getsockname() != probe.getpeername()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the process at once, until the server handles it: a thread that loads weights cannot be stopped."""
    earlier = signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)


def _interrupted(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError, ValueError):
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # shows the cursor, which a progress bar hides
    os._exit(128 + number)


async def cancelled_by_signals(serving: Coroutine[Any, Any, None]) -> None:
    """Run `serving`. Until it handles signals itself, a signal cancels it, so that everything it has started ends."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(serving)
    received: list[int] = []

    def cancel(number: int) -> None:
        if not received:  # a second cancel would interrupt the cleanup
            task.cancel()
        received.append(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, cancel, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
        raise SystemExit(128 + received[0]) from None
    finally:
        _remove_signal_handlers()


def _remove_signal_handlers() -> None:
    for number in _SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


class Stopped(Protocol):
    """An engine, or several."""

    async def stop(self) -> None:
        """End what runs, each with an error."""


async def serve_app(
    app: Starlette,
    engine: Stopped,
    listener: socket.socket,
    console: Console,
    loading: contextlib.AbstractContextManager[object],
    check: Callable[[], Awaitable[None]] | None = None,
    *,
    reloads: Sequence[Reload],
    options: ServerOptions,
    began: float,
) -> None:
    """Start the engine and answer requests until a signal. SIGHUP calls `reloads`.

    `began`: when the command did, by `time.perf_counter`.

    `loading` is entered while the engine starts. `check` runs when it has started, before the server is ready. Raises
    the engine's error if the engine gives up for good.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(_remove_signal_handlers)
        await stack.enter_async_context(reloaded_on_hangup(reloads))
        with loading:
            # Entered here and not by uvicorn, which would report an engine that cannot start as a traceback.
            await stack.enter_async_context(app.router.lifespan_context(app))
        if check is not None:
            await check()
        if options.metrics is not None:
            served = _metrics_served(app.state.metrics_app, options.metrics, options.connections, options.tls)
            await stack.enter_async_context(served)
        console.print(f"ready in {time.perf_counter() - began:.1f} s; Ctrl-C stops", style="dim")
        server = GracefulServer(app, engine, app.state.draining, options)
        # An engine in another process may die for good; the future then has the error.
        gave_up: asyncio.Future[EngineError] | None = getattr(engine, "gave_up", None)
        if gave_up is not None:
            gave_up.add_done_callback(lambda _: server.stop())
        await server.serve(sockets=[listener])
        if gave_up is not None and gave_up.done():
            raise gave_up.result()


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the server treats its connections, and its end.

    `grace_s`: how many seconds running answers have to end after a signal. `tls`: what connections speak, None for
    plain HTTP. `metrics`: the listener of the port that /metrics has to itself.
    """

    connections: ConnectionLimits = ConnectionLimits()
    grace_s: float = 30.0
    tls: ssl.SSLContext | None = None
    metrics: socket.socket | None = None


class GracefulServer(uvicorn.Server):
    """uvicorn's server with limits on connections, and with an end in order.

    After a signal, `draining` starts: requests without a token yet are refused with 503, and so are new ones. Running
    answers have `options.grace_s` to end. Then, or after a second signal, the engine stops, and they end with its
    error, which clients can read, and not in the middle of a line. uvicorn would raise the signal again in the end, and
    kill the engine.
    """

    def __init__(self, app: ASGIApp, engine: Stopped, draining: Draining, options: ServerOptions) -> None:
        super().__init__(_uvicorn_config(app, options.connections, options.tls))
        self._engine = engine
        self._draining = draining
        self._grace_s = options.grace_s
        self._stopping: asyncio.Task[None] | None = None
        self._at_once = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            # The engine still has to end in order, so further signals are ignored.
            for number in _SIGNALS:
                loop.add_signal_handler(number, lambda: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)

    def stop(self) -> None:
        """Begin to stop; the second call does not wait for running answers."""
        if self._stopping is None:
            self._draining.start()
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        else:
            self._at_once.set()

    async def _stop(self) -> None:
        # The listener stays open meanwhile: clients that come get 503 and Retry-After, and /ready says no.
        if not await self._answered(self._grace_s):
            await self._engine.stop()
            if not await self._answered(_LAST_EVENT_S):
                for connection in [*self.server_state.connections]:
                    connection.transport.abort()
        self.should_exit = True

    async def _answered(self, seconds: float) -> bool:
        """Wait until all requests are answered, for so long or until the next signal. Whether they are."""
        deadline = time.monotonic() + seconds
        while self.server_state.tasks and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._at_once.wait()
                break
        self._at_once.clear()
        return not self.server_state.tasks


@contextlib.asynccontextmanager
async def _metrics_served(
    app: ASGIApp, listener: socket.socket, limits: ConnectionLimits, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    """`--metrics-port`: answer with `app` what comes to `listener`, with the deadlines of `limits`."""
    few = msgspec.structs.replace(limits, connections=_METRICS_CONNECTIONS)
    server = _MetricsServer(_uvicorn_config(app, few, tls))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class _MetricsServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none: they are for the server of the API."""
        yield


def _uvicorn_config(app: ASGIApp, limits: ConnectionLimits, tls: ssl.SSLContext | None) -> uvicorn.Config:
    """uvicorn's configuration: `app` behind connections with `limits`. `tls`: what they speak, None for plain HTTP."""
    config = uvicorn.Config(
        app,
        http=Connections(limits).protocol(),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,  # nothing here looks at the client's address
        log_config=None,  # its records go where all others go (`server.logs`)
        log_level="error",  # `Connections` logs the warnings, in one line a second
        backlog=_ACCEPTS,  # `GracefulServer.startup` sets the socket's
        timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=1,
    )
    config.load()
    config.ssl = tls
    return config
