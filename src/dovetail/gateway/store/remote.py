"""A client of a store on another machine, which never makes anybody wait for longer than its timeout.

The client runs on an event loop in a thread of its own: requests wait for it from threads and from the gateway's loop.
A store that does not answer is asked once in a while. Until it answers, everything else fails at once.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Self, TypeVar

from dovetail.gateway.store.interface import Entries, StoreError, StoreLimits, Table, Value

T = TypeVar("T")

_LOG = logging.getLogger("dovetail.gateway")
#: Seconds after which a store that did not answer is asked again, by one request.
_PAUSE_S = 1.0
#: Seconds in which one failure of the store is in the log.
_QUIET_S = 60.0


class NewEntry(NamedTuple):
    """An entry that is to be stored. `fields`: its columns."""

    owner: str
    created: int
    size: int
    fields: Mapping[str, Value]


class Remote(ABC):
    """What the clients of all servers have in common: see `Store`.

    `address`: the server, without secrets. `timeout`: the seconds that a call takes at most. `errors`: what the client
    raises.
    """

    def __init__(self, url: str, timeout: float, errors: tuple[type[Exception], ...]) -> None:
        self.address = without_secrets(url)
        self.timeout = timeout
        self._errors: tuple[type[Exception], ...] = (OSError, *errors)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._failing = False
        self._next_try = 0.0
        self._quiet_until = 0.0

    @abstractmethod
    async def prepare(self) -> None:
        """Connect, and make or migrate the tables."""

    @abstractmethod
    async def swapped(self, key: str, old: bytes | None, new: bytes) -> bytes | None: ...

    @abstractmethod
    async def put(self, table: Table, limits: StoreLimits, entry: NewEntry) -> None: ...

    @abstractmethod
    async def find(
        self, table: Table, columns: Sequence[str], where: tuple[str, str, int], values: Sequence[Value]
    ) -> list[tuple[Any, ...]]:
        """`where`: the owner, the column, and until when entries are too old."""

    @abstractmethod
    async def known(self, table: Table, where: tuple[str, str, int], values: Sequence[Value]) -> set[Any]: ...

    @abstractmethod
    async def delete(self, table: Table, owner: str, key: str, value: Value) -> int: ...

    @abstractmethod
    async def disconnect(self) -> None: ...

    def is_lost(self, error: Exception) -> bool:
        """Whether `error` says that the server cannot be reached, and not that it refuses something."""
        return isinstance(error, OSError)

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """End what `task` waits for: it took too long."""
        task.cancel()

    def check(self) -> None:
        self.run(self.prepare)

    def entries(self, table: Table, limits: StoreLimits) -> Entries:
        return RemoteEntries(self, table, limits)

    async def swap(self, key: str, old: bytes | None, new: bytes) -> bytes | None:
        return await asyncio.wrap_future(self._submit(lambda: self.swapped(key, old, new)))

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, for a thread that may wait. Raises `StoreError`."""
        return self._submit(work).result()

    def close(self) -> None:
        with self._starting:
            loop, self._loop = self._loop, None
            self._closed = True
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(loop), loop)
            self._thread.join()
            loop.close()

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=self.timeout)
        try:
            async with asyncio.timeout(self.timeout):
                await self.disconnect()
        except self._errors:
            pass
        await asyncio.sleep(0)  # for what closing has put off
        await asyncio.sleep(0)
        loop.stop()

    def _submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._starting:
            if self._closed:
                raise StoreError(f"{self.address} is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="dovetail-store", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(self._bounded(work), self._loop)

    async def _bounded(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._failing:
            if time.monotonic() < self._next_try:
                raise StoreError(f"{self.address} does not answer")
            self._next_try = time.monotonic() + self.timeout + _PAUSE_S  # the others do not try meanwhile
        task = asyncio.ensure_future(work())
        task.add_done_callback(_ignored)
        try:
            if not (await asyncio.wait({task}, timeout=self.timeout))[0]:
                raise self._lost(f"no answer in {self.timeout:g} s")
        finally:
            if not task.done():
                self.abandon(task)
        try:
            result = task.result()
        except StoreError as error:
            self._warn(f"the store cannot be used: {error}")
            raise
        except self._errors as error:
            if self.is_lost(error):
                raise self._lost(_one_line(error)) from error
            self._warn(f"the store refuses something: {self.address}: {_one_line(error)}")
            raise StoreError(f"{self.address}: {_one_line(error)}") from error
        if self._failing:
            self._failing = False
            _LOG.warning("the store answers again: %s", self.address)
        return result

    def _lost(self, reason: str) -> StoreError:
        self._warn(f"the store does not answer: {self.address}: {reason}")
        self._failing, self._next_try = True, time.monotonic() + _PAUSE_S
        return StoreError(f"{self.address}: {reason}")

    def _warn(self, message: str) -> None:
        """Log `message`. Every request would fill the log, so the next ones are not shown for a minute."""
        quiet = time.monotonic() < self._quiet_until
        _LOG.log(logging.DEBUG if quiet else logging.WARNING, "%s", message)
        if not quiet:
            self._quiet_until = time.monotonic() + _QUIET_S


class RemoteEntries:
    """The entries of one owner on a server: see `Entries`."""

    def __init__(self, remote: Remote, table: Table, limits: StoreLimits) -> None:
        self._remote = remote
        self._table = table
        self._limits = limits
        self._owner = ""

    def of(self, owner: str) -> Self:
        other = copy.copy(self)
        other._owner = owner
        return other

    def put(self, entry: Mapping[str, Value], size: int) -> None:
        if size > self._limits.size:
            raise StoreError(f"it has {size} bytes, and the store holds {self._limits.size}")
        created = entry.get("created")
        when = created if isinstance(created, int) else int(time.time())
        new = NewEntry(self._owner, when, size, {name: entry[name] for name in self._table.columns})
        self._remote.run(lambda: self._remote.put(self._table, self._limits, new))

    def find(self, columns: Sequence[str], key: str, values: Collection[Value]) -> list[tuple[Any, ...]]:
        wanted = [*filter(_is_storable, values)]
        return (
            self._remote.run(lambda: self._remote.find(self._table, columns, self._where(key), wanted))
            if wanted
            else []
        )

    def known(self, key: str, values: Collection[Value]) -> set[Any]:
        wanted = [*filter(_is_storable, values)]
        return self._remote.run(lambda: self._remote.known(self._table, self._where(key), wanted)) if wanted else set()

    def delete(self, key: str, value: Value) -> int:
        if not _is_storable(value):
            return 0
        return self._remote.run(lambda: self._remote.delete(self._table, self._owner, key, value))

    def close(self) -> None:
        self._remote.close()

    def _where(self, key: str) -> tuple[str, str, int]:
        return self._owner, key, int(time.time()) - self._limits.age


def without_secrets(url: str) -> str:
    """`url` without a password, and without what is behind a question mark.

    A password may have the marks that end it elsewhere, so all up to the last @ goes.
    """
    scheme, _, rest = url.partition("://")
    shown = "…" if "@" in rest.partition("?")[2] else rest.rpartition("@")[2].partition("?")[0]
    return f"{scheme}://{shown}"


def _is_storable(value: Value) -> bool:
    """Whether a server could have `value` at all: PostgreSQL's text has no NUL."""
    return not isinstance(value, str) or ("\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value))


def _one_line(error: Exception) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__


def _ignored(task: asyncio.Future[Any]) -> None:
    """Take the result of a task that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
