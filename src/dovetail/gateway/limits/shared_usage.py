"""What keys use of their limits, kept in memory that several workers share (`serve --workers`).

Each name has a slot with its two meters, and for each worker what that one has reserved and how many of its requests
run. A slot is locked while it is read and changed, for microseconds. The lock is one on a range of a file, which the
system releases when a process dies; what a dead worker had reserved is removed when its successor begins.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import tempfile
from contextlib import AbstractContextManager
from itertools import chain
from types import TracebackType

from dovetail.gateway.limits.usage import Usage

_DIGEST_BYTES = 16
#: Of both meters: what is spent, and when that was.
_METERS = struct.Struct("=4d")
#: Of one worker: tokens that are reserved, and running requests.
_OF_WORKER = struct.Struct("=2q")
_LEAST_SLOTS = 1024


class SharedUsage:
    """The usage of `workers` processes, which are forked when this has been made, for about `names` keys.

    Memory is taken by names that are used. A name that finds no free slot counts in each worker by itself.
    """

    def __init__(self, workers: int, names: int) -> None:
        self.workers = workers
        self.worker = 0
        self.slots = max(_LEAST_SLOTS, 4 * names)
        self.slot_bytes = _DIGEST_BYTES + _METERS.size + workers * _OF_WORKER.size
        self.memory = mmap.mmap(-1, self.slots * self.slot_bytes)
        self.file, path = tempfile.mkstemp(prefix="dovetail-usage-")
        os.unlink(path)

    def close(self) -> None:
        """Give the memory back. A server never does: its requests end with it."""
        self.memory.close()
        os.close(self.file)

    def begin(self, worker: int) -> None:
        """Be the worker of this number, of which nothing runs yet."""
        self.worker = worker
        for slot in range(self.slots):
            if any(self._digest(slot)):
                with _Locked(self, slot):
                    _OF_WORKER.pack_into(self.memory, self.offset_of_worker(slot, worker), 0, 0)

    def usage(self, name: str) -> AbstractContextManager[Usage]:
        slot = self._slot(hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest())
        return Usage() if slot is None else _SlotUsage(self, slot)

    def offset(self, slot: int) -> int:
        """Where the meters of a slot are."""
        return slot * self.slot_bytes + _DIGEST_BYTES

    def offset_of_worker(self, slot: int, worker: int) -> int:
        return self.offset(slot) + _METERS.size + worker * _OF_WORKER.size

    def _slot(self, digest: bytes) -> int | None:
        """The slot of a name: the first from its own place on that has it, or is free and gets it."""
        first = int.from_bytes(digest) % self.slots
        with _Locked(self, self.slots):
            for slot in chain(range(first, self.slots), range(first)):
                if not any(self._digest(slot)):
                    start = slot * self.slot_bytes
                    self.memory[start : start + _DIGEST_BYTES] = digest
                if self._digest(slot) == digest:
                    return slot
        return None

    def _digest(self, slot: int) -> bytes:
        start = slot * self.slot_bytes
        return self.memory[start : start + _DIGEST_BYTES]


class _Locked:
    """A slot that no other process changes; the slot behind the last one stands for which slots are taken."""

    def __init__(self, book: SharedUsage, slot: int) -> None:
        self._file = book.file
        self._slot = slot

    def __enter__(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self._slot)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._slot)


class _SlotUsage(Usage):
    """The usage in one slot: read when the context begins, and written when it ends."""

    def __init__(self, book: SharedUsage, slot: int) -> None:
        super().__init__()
        self._book = book
        self._slot = slot
        self._lock = _Locked(book, slot)
        #: What the other workers have reserved, and how many of their requests run.
        self._others = 0, 0

    def __enter__(self) -> Usage:
        self._lock.__enter__()
        book, slot, requests, tokens = self._book, self._slot, self.requests, self.tokens
        requests.spent, requests.at, tokens.spent, tokens.at = _METERS.unpack_from(book.memory, book.offset(slot))
        offsets = (book.offset_of_worker(slot, worker) for worker in range(book.workers))
        of_workers = [_OF_WORKER.unpack_from(book.memory, offset) for offset in offsets]
        tokens.reserved, self.running = map(sum, zip(*of_workers, strict=True))
        own_reserved, own_running = of_workers[book.worker]
        self._others = tokens.reserved - own_reserved, self.running - own_running
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        book, slot, requests, tokens = self._book, self._slot, self.requests, self.tokens
        _METERS.pack_into(book.memory, book.offset(slot), requests.spent, requests.at, tokens.spent, tokens.at)
        own = tokens.reserved - self._others[0], self.running - self._others[1]
        _OF_WORKER.pack_into(book.memory, book.offset_of_worker(slot, book.worker), *own)
        self._lock.__exit__(kind, error, at)
