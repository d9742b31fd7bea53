"""How uvicorn is configured, for every server of this process."""

from __future__ import annotations

import ssl

import uvicorn
from starlette.types import ASGIApp

from dovetail.cli.connections import ConnectionLimits, Connections

#: Connections that wait to be accepted, as in nginx.
BACKLOG = 511
#: Connections that are accepted before closed ones are really closed. asyncio accepts as many as its backlog at a time,
#: and logs each for which there is no file left.
ACCEPTS = 16


def uvicorn_config(app: ASGIApp, limits: ConnectionLimits, tls: ssl.SSLContext | None) -> uvicorn.Config:
    """`app` behind connections with `limits`. `tls`: what they speak, None for plain HTTP."""
    config = uvicorn.Config(
        app,
        http=Connections(limits).protocol(),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,  # nothing here looks at the client's address
        log_config=None,  # its records go where all others go (`cli.logs`)
        log_level="error",  # `Connections` logs the warnings, in one line a second
        backlog=ACCEPTS,  # `GracefulServer.startup` sets that of the socket
        timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=1,
    )
    config.load()
    config.ssl = tls
    return config
