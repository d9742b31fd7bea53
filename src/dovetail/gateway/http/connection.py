"""One HTTP request at the ASGI level: who sends it, and its client's disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from dovetail.gateway.limits.accounts import Account

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
    scope = asyncio.timeout(None)
    watching = asyncio.ensure_future(_ended_by_disconnect(scope, receive))
    try:
        async with scope:
            result = await work
        return result
    except Exception as error:
        if scope.expired():  # whatever the end of `work` raises, nobody is there to see it
            raise ClientDisconnect from error
        raise
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _ended_by_disconnect(scope: asyncio.Timeout, receive: Receive) -> None:
    """End `scope` when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.reschedule(asyncio.get_running_loop().time())
