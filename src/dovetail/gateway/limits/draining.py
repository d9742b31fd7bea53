"""The end of a server after a signal: what has begun may end, and everything else is refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from dovetail.errors import EngineBusy

T = TypeVar("T")


class Draining:
    """Whether the server takes no more requests. `start` turns it on, for good."""

    def __init__(self) -> None:
        self.started = False
        #: Of the requests that have no token yet.
        self._waiting: set[asyncio.Timeout] = set()

    def start(self) -> None:
        """Refuse every request that has no token yet, and all that come."""
        self.started = True
        now = asyncio.get_running_loop().time()
        for scope in self._waiting:
            scope.reschedule(now)

    def check(self) -> None:
        """Raise `EngineBusy` if the server takes no more requests."""
        if self.started:
            raise EngineBusy("the server is shutting down and takes no more requests; try again later")

    async def first(self, step: Awaitable[T]) -> T:
        """Wait for the first `step` of an answer. Raises `EngineBusy` if the server begins to drain before it."""
        scope = asyncio.timeout(None)
        self._waiting.add(scope)
        try:
            async with scope:
                return await step
        except TimeoutError:
            if scope.expired():
                self.check()
            raise
        finally:
            self._waiting.discard(scope)
