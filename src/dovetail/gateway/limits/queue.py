"""The queues: for the threads that prepare requests, and for the engine. Both are fair between clients.

An engine serves its own queue in the order of arrival, so one client with many requests would keep all others waiting.
Here as many answers run as the engine works on at a time, and the next place goes to the client that has the fewest.
The queue for the engine is bounded, with a deadline, until the server begins to end.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec

from dovetail.errors import EngineBusy

T = TypeVar("T")

_MOST_CLIENTS = 10_000
#: Seconds in which half of the CPU time that a client has used is forgotten.
_HALF_LIFE_S = 10.0


class FairThreads:
    """Threads for what requests need before the engine. Clients take turns. Used on one event loop.

    One client has all but one of them at a time, so another one's work always begins at once. Of the clients that wait,
    the next has the fewest threads; of equals the one whose work has taken the least CPU time of late.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(threads, name)
        self._threads = threads
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Work]] = {}
        #: The CPU time of each client, and when it was that much.
        self._used: dict[str, tuple[float, float]] = {}

    async def run(self, client: str, work: Callable[[], T], took: Callable[[float], None] = lambda _: None) -> T:
        """The result of `work`, in a thread. `took` gets its CPU time in seconds, whether it succeeds or not.

        Work that has begun goes on when nobody waits for it any more, and counts to its end.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(_Work(client, work, took, result))
        self._begin()
        try:
            return await result
        finally:
            del result  # an error in it refers to this frame, and both would keep the request

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        while self._running.total() < self._threads:
            clients = [client for client in self._waiting if self._running[client] < max(1, self._threads - 1)]
            if not clients:
                return
            client = min(clients, key=lambda each: (self._running[each], self._used_now(each)))
            works = self._waiting[client]
            work = works.popleft()
            if not works:
                del self._waiting[client]
            if not work.result.done():  # else nobody waits for it
                self._running[client] += 1
                done = self._executor.submit(_timed, work.run, work.times)
                done.add_done_callback(_handed_to(loop, self._ended, work))

    def _ended(self, work: _Work, done: Future[Any]) -> None:
        client, error, seconds = work.client, done.exception(), sum(work.times)
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        if len(self._used) >= _MOST_CLIENTS:
            self._used.clear()
        self._used[client] = self._used_now(client) + seconds, time.monotonic()
        work.took(seconds)
        if not work.result.done():
            work.result.set_result(done.result()) if error is None else work.result.set_exception(error)
        self._begin()

    def _used_now(self, client: str) -> float:
        used, at = self._used.get(client, (0.0, 0.0))
        return used * math.exp2((at - time.monotonic()) / _HALF_LIFE_S)


class _Work(msgspec.Struct, eq=False):
    """`times` gets the CPU time of `run`, which cannot have the rest of this: an error would then keep itself alive."""

    client: str
    run: Callable[[], Any]
    took: Callable[[float], None]
    result: asyncio.Future[Any]
    times: list[float] = msgspec.field(default_factory=list)


def _timed(run: Callable[[], Any], times: list[float]) -> Any:
    began = time.thread_time()
    try:
        return run()
    finally:
        times.append(time.thread_time() - began)


def _handed_to(
    loop: asyncio.AbstractEventLoop, function: Callable[[_Work, Future[Any]], None], work: _Work
) -> Callable[[Future[Any]], None]:
    """A callback of a thread that calls `function` on the event loop, unless that is closed by then."""

    def hand(done: Future[Any]) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(function, work, done)

    return hand


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
