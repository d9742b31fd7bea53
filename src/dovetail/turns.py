"""Takes turns between tasks, so that the event loop is free again soon, however many of them have something to do.

Reading a slice of a stream takes up to a millisecond. A thousand tasks that do so in the
same iteration of the event loop would keep everybody else waiting for a second: new requests, /health, other streams.
"""

from __future__ import annotations

import asyncio
from collections import deque

#: Slices in one iteration of the event loop.
_SLICES = 8


class Turns:
    """Lets so many callers of `take` go on in each iteration of the event loop, in the order in which they came."""

    def __init__(self, slices: int = _SLICES) -> None:
        self._slices = self._left = slices
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._counting = False

    async def take(self) -> None:
        """Wait for a turn, which is there at once as long as few ask for one."""
        loop = asyncio.get_running_loop()
        if not self._counting:
            self._counting = True
            loop.call_soon(self._next_iteration)
        if self._left and not self._waiting:
            self._left -= 1
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter  # one that is cancelled stays in the line until its turn

    def _next_iteration(self) -> None:
        self._left = self._slices
        while self._left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._left -= 1
                waiter.set_result(None)
        self._counting = bool(self._waiting)
        if self._counting:
            asyncio.get_running_loop().call_soon(self._next_iteration)
