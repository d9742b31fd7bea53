"""The queue in front of the engine: bounded, fair between clients, with a deadline, until the server begins to end.

An engine serves its own queue in the order of arrival, so one client with many requests would keep all others waiting.
Here as many answers run as the engine works on at a time, and the next place goes to the client that has the fewest.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from dovetail.errors import EngineBusy

T = TypeVar("T")

_MOST_CLIENTS = 10_000


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the queue.

    `running`: answers that the engine works on at a time (None: any number, and nobody waits). A request for `n`
    answers takes `n` places, but may begin when one is free.
    `waiting`, `waiting_tokens`: requests that wait, and the tokens of their prompts.
    `seconds`: how long a request waits at most.
    """

    running: int | None = None
    waiting: int = 1_024
    waiting_tokens: int = 8_000_000
    seconds: float = 600.0


class Admission:
    """Admits requests to the engine. Used on one event loop."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._running: Counter[str] = Counter()
        self._waiting: dict[int, _Waiter] = {}
        #: The tokens of the prompts of the requests that wait.
        self.waiting_tokens = 0
        self._numbers = itertools.count()
        #: When each client was last admitted; forgotten now and then, so that it stays small.
        self._admitted: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @asynccontextmanager
    async def admitted(self, client: str, answers: int, tokens: int) -> AsyncIterator[None]:
        """Hold places for `answers` to a prompt of `tokens`, after waiting for them.

        Raises `EngineBusy` if too many requests wait already, or this one has waited for too long. Where many wait, the
        client with most of them is refused, also for a request that waits already.
        """
        if not self._is_free or self._waiting:
            await self._wait(_Waiter(client, answers, tokens, asyncio.get_running_loop().create_future()))
        else:
            self._admit(client, answers)
        try:
            yield
        finally:
            self._release(client, answers)

    @property
    def _is_free(self) -> bool:
        return self._limits.running is None or self._running.total() < self._limits.running

    def _admit(self, client: str, answers: int) -> None:
        self._running[client] += answers
        if len(self._admitted) >= _MOST_CLIENTS:
            self._admitted.clear()
        self._admitted[client] = next(self._numbers)

    def _precedence(self, number: int) -> tuple[int, int]:
        """The client with the fewest answers comes first; of equals the one whose last turn is longest ago."""
        client = self._waiting[number].client
        return self._running[client], self._admitted.get(client, -1)

    async def _wait(self, waiter: _Waiter) -> None:
        limits, number = self._limits, next(self._numbers)
        while len(self._waiting) >= limits.waiting:
            reason = f"{len(self._waiting)} requests are waiting already"
            self._make_room(waiter, Counter(each.client for each in (*self._waiting.values(), waiter)), reason)
        while self.waiting_tokens + waiter.tokens > limits.waiting_tokens and self._waiting:
            tokens: Counter[str] = Counter()
            for each in (*self._waiting.values(), waiter):
                tokens[each.client] += each.tokens
            self._make_room(waiter, tokens, f"requests with {self.waiting_tokens} tokens are waiting already")
        self._waiting[number] = waiter
        self.waiting_tokens += waiter.tokens
        try:
            async with asyncio.timeout(limits.seconds):
                await waiter.turn
        except BaseException as error:
            if waiter.is_admitted:  # in the same moment
                self._release(waiter.client, waiter.answers)
            if isinstance(error, TimeoutError):
                raise EngineBusy(f"the request has waited for {limits.seconds:.0f} seconds; try again later") from None
            raise
        finally:
            if self._waiting.pop(number, None) is not None:
                self.waiting_tokens -= waiter.tokens

    def _make_room(self, newcomer: _Waiter, load: Counter[str], reason: str) -> None:
        """Refuse the last request of the client that has most waiting, by `load`, which counts `newcomer` too.

        Otherwise one client could fill the queue and keep all others out of it. Raises `EngineBusy` if `newcomer` is
        that client.
        """
        busiest = max(load.values())
        if load[newcomer.client] == busiest:
            raise EngineBusy(f"{reason}; try again later")
        number = next(n for n, each in reversed(self._waiting.items()) if load[each.client] == busiest)
        last = self._waiting.pop(number)
        self.waiting_tokens -= last.tokens
        if not last.turn.done():  # else it has just given up
            last.turn.set_exception(EngineBusy(f"{reason}, most of them of one client; try again later"))

    def _release(self, client: str, answers: int) -> None:
        self._running[client] -= answers
        if not self._running[client]:
            del self._running[client]
        while self._waiting and self._is_free:
            number = min(self._waiting, key=self._precedence)  # of one client, the request that came first
            waiter = self._waiting.pop(number)
            self.waiting_tokens -= waiter.tokens
            if not waiter.turn.done():  # else it has just given up
                self._admit(waiter.client, waiter.answers)
                waiter.turn.set_result(None)


class _Waiter(msgspec.Struct, eq=False):
    client: str
    answers: int
    tokens: int
    turn: asyncio.Future[None]

    @property
    def is_admitted(self) -> bool:
        return self.turn.done() and not self.turn.cancelled() and self.turn.exception() is None


class Draining:
    """The end of a server after a signal: what has begun may end. `start` turns it on, for good."""

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
