"""The API key: every path under /v1 asks for it, and it is written nowhere."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dovetail.errors import Unauthorized


class RequireKey:
    """ASGI middleware that raises `Unauthorized` for a request to /v1 without `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"] == "/v1" or scope["path"].startswith("/v1/")):
            given = Headers(scope=scope).get("authorization")
            if given is None:
                raise Unauthorized("an API key is required: send it as `Authorization: Bearer KEY`")
            scheme, _, key = given.partition(" ")
            # Compared in constant time, so that an answer's delay says nothing about the key.
            right = hmac.compare_digest(key.encode("latin-1"), self._expected)
            if scheme.lower() != "bearer" or not right:
                raise Unauthorized("the API key is wrong")
        await self._app(scope, receive, send)
