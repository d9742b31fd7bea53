"""SIGHUP: what a server reads again while it runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

#: Reads something again. What cannot be read changes nothing, and is one line in the log.
Reload = Callable[[], Awaitable[None]]


@asynccontextmanager
async def reloaded_on_hangup(reloads: Sequence[Reload]) -> AsyncIterator[None]:
    """Call `reloads`, one after the other, at each SIGHUP. Without any, SIGHUP does what it did."""
    if not reloads:
        yield
        return
    hangup = asyncio.Event()
    loop = asyncio.get_running_loop()
    earlier = signal.getsignal(signal.SIGHUP)  # under nohup it is ignored
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    task = asyncio.create_task(_reload(reloads, hangup))
    try:
        yield
    finally:
        task.cancel()
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, earlier)


async def _reload(reloads: Sequence[Reload], hangup: asyncio.Event) -> None:
    while await hangup.wait():
        hangup.clear()
        for reload in reloads:
            await reload()
