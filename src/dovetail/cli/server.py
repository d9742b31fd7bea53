"""The HTTP server around an app: its socket, its start, and its end on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

import uvicorn
from rich.console import Console
from starlette.applications import Starlette

from dovetail.completion import Engine
from dovetail.errors import EngineError, PlanError

GRACE_S = 10.0  # how long running answers may take to end after a signal
_LAST_EVENT_S = 3  # how long clients may then take to receive the error that ends their answers
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `PlanError`.

    It is made before the engine loads, so that a port in use is reported at once and early clients wait in line.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise PlanError(f"host {host!r} cannot be resolved: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PlanError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port or --host"
        ) from error
    return listener


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


async def serve_app(
    app: Starlette,
    engine: Engine,
    listener: socket.socket,
    console: Console,
    loading: contextlib.AbstractContextManager[object],
    check: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Start the engine and answer requests until a signal.

    `loading` is entered while the engine starts. `check` runs when it has started, before the server is ready. Raises
    the engine's error if the engine gives up for good.
    """
    started = time.perf_counter()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(_remove_signal_handlers)
        with loading:
            # Entered here and not by uvicorn, which would report an engine that cannot start as a traceback.
            await stack.enter_async_context(app.router.lifespan_context(app))
        if check is not None:
            await check()
        console.print(f"ready in {time.perf_counter() - started:.1f} s; Ctrl-C stops", style="dim")
        server = GracefulServer(app, engine)
        # An engine in another process may die for good; the future then has the error.
        gave_up: asyncio.Future[EngineError] | None = getattr(engine, "gave_up", None)
        if gave_up is not None:
            gave_up.add_done_callback(lambda _: server.handle_exit(signal.SIGTERM, None))
        await server.serve(sockets=[listener])
        if gave_up is not None and gave_up.done():
            raise gave_up.result()


class GracefulServer(uvicorn.Server):
    """uvicorn's server, except that it does not raise a signal again when it has stopped, which would kill the engine.

    Answers that take longer than `grace_s` after the signal end with the engine's error, which clients can read, and
    not in the middle of a line.
    """

    def __init__(self, app: Any, engine: Engine, *, grace_s: float = GRACE_S) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=int(grace_s) + _LAST_EVENT_S,
        )
        super().__init__(config)
        self._engine = engine
        self._grace_s = grace_s

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        stopping: list[asyncio.Task[None]] = []  # keeps a reference to the task

        def stop(number: int) -> None:
            self.handle_exit(number, None)
            loop.call_later(self._grace_s, lambda: stopping.append(loop.create_task(self._engine.stop())))

        for number in _SIGNALS:
            loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            # The engine still has to end in order, so further signals are ignored.
            for number in _SIGNALS:
                loop.add_signal_handler(number, lambda: None)
