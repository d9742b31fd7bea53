"""One HTTP request at the ASGI level: who sends it, and its client's disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from dovetail.gateway.keys.accounts import Account

T = TypeVar("T")

#: Headers of a response that is JSON.
JSON_HEADERS = [(b"content-type", b"application/json")]


def account_of(scope: Scope) -> Account | None:
    """The account of the named key that the request came with; None if it came with no such key."""
    account: Account | None = scope.get("account")
    return account


def client_of(scope: Scope) -> str:
    """Who sends the request, for fairness between clients: the name of its key, else the address of the other end."""
    if (account := account_of(scope)) is not None:
        return f"key {account.name}"
    return peer_of(scope)


def peer_of(scope: Scope) -> str:
    """The address of the other end; "" for a socket without addresses."""
    return scope["client"][0] if scope.get("client") else ""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. If the client disconnects first, cancel `work` and raise `ClientDisconnect`."""
    working = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        disconnect.cancel()
        await asyncio.gather(working, disconnect, return_exceptions=True)
        # The task has its exception, whose traceback has this frame: a cycle that would keep the request's body.
        del working, disconnect


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
