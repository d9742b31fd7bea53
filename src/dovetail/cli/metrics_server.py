"""`--metrics-port`: /metrics on a port of its own, which clients need not reach."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator

import msgspec
import uvicorn
from starlette.types import ASGIApp

from dovetail.cli.connections import ConnectionLimits
from dovetail.cli.uvicorn_config import uvicorn_config

_CONNECTIONS = 64


@contextlib.asynccontextmanager
async def metrics_served(
    app: ASGIApp, listener: socket.socket, limits: ConnectionLimits, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    """Answer with `app` what comes to `listener`, with the deadlines of `limits`."""
    few = msgspec.structs.replace(limits, connections=_CONNECTIONS)
    server = _Server(uvicorn_config(app, few, tls))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none: they are for the server of the API."""
        yield
