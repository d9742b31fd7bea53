"""A cache for values that take long to compute: bounded by number and by size, and safe to share between threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    """The most recently used values: at most `max_count` of them, and at most `max_size` for the sum of their sizes.

    Several threads that need the same value compute it once: one computes, the others wait. A computation that raises
    is not cached.
    """

    def __init__(self, max_count: int, max_size: int) -> None:
        self._max_count, self._max_size = max_count, max_size
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[int, Future[T]]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable, size: int, compute: Callable[[], T]) -> T:
        """The value of `key`. If it is not cached, `compute` is called, and what `compute` raises is raised."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                future: Future[T] = Future()
                self._entries[key] = size, future
                self._size += size
                self._shrink()
            else:
                future = entry[1]
                self._entries.move_to_end(key)
        if entry is None:
            try:
                future.set_result(compute())
            except BaseException as error:  # the waiting threads get it too
                future.set_exception(error)
                self._remove(key, future)
                raise
        return future.result()

    def clear(self) -> None:
        """Remove all values. Threads that wait for a value still get it."""
        with self._lock:
            self._entries.clear()
            self._size = 0

    def _remove(self, key: Hashable, future: Future[T]) -> None:
        with self._lock:
            if key in self._entries and self._entries[key][1] is future:
                self._size -= self._entries.pop(key)[0]

    def _shrink(self) -> None:
        """Remove the least recently used values, but never the newest."""
        while len(self._entries) > 1 and (len(self._entries) > self._max_count or self._size > self._max_size):
            _, (size, _) = self._entries.popitem(last=False)
            self._size -= size
