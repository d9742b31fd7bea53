"""What takes long to make and is asked for again and again: made once, by one thread at a time for each, and kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """At most `count` values, those asked for last, of at most `size` in all as their keys say it.

    Who asks for what another thread is making waits for it. What could not be made is not kept.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count, self._size = count, size
        self._lock = threading.Lock()
        self._futures: OrderedDict[Hashable, tuple[int, Future[T]]] = OrderedDict()
        self._held = 0

    def get(self, key: Hashable, size: int, make: Callable[[], T]) -> T:
        """The value of `key`, from `make` if there is none yet. Raises what `make` raises."""
        with self._lock:
            found = self._futures.get(key)
            if found is None:
                future: Future[T] = Future()
                self._futures[key] = size, future
                self._held += size
                self._shrink()
            else:
                future = found[1]
                self._futures.move_to_end(key)
        if found is None:
            try:
                future.set_result(make())
            except BaseException as error:  # other threads wait for this future, whatever ends this one
                future.set_exception(error)
                self._forget(key, future)
                raise
        return future.result()

    def cache_clear(self) -> None:
        """Forget everything. What is being made still reaches those who wait for it."""
        with self._lock:
            self._futures.clear()
            self._held = 0

    def _forget(self, key: Hashable, future: Future[T]) -> None:
        with self._lock:
            if key in self._futures and self._futures[key][1] is future:
                self._held -= self._futures.pop(key)[0]

    def _shrink(self) -> None:
        """Drop the oldest, but never the last."""
        while len(self._futures) > 1 and (len(self._futures) > self._count or self._held > self._size):
            _, (size, _) = self._futures.popitem(last=False)
            self._held -= size
