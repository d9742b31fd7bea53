"""The folder of recordings: one file for each request, bounded in number, bytes and age.

Files are written by a thread of their own. Several processes may share the folder. Only files with the names of
recordings are ever deleted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

_LOG = logging.getLogger("dovetail.gateway")

SUFFIX = ".recording.json"
#: Recordings that may wait to be written, each with the steps of one answer.
_MOST_WAITING = 64
#: Seconds after which the folder is looked through for old recordings again.
_LOOK_S = 60.0
#: A deletion leaves this share of the limits, so that not every recording makes one necessary.
_LEAVES = 15 / 16
#: Seconds after which a file that was never finished is deleted.
_UNFINISHED_S = 3600


class RecordingLimits(msgspec.Struct, frozen=True):
    """What a folder has at most: `recordings`, together of `size` bytes, each for `age` seconds."""

    recordings: int = 1000
    size: int = 1024**3
    age: float = 7 * 24 * 3600


#: Which requests are recorded: all that do not say otherwise, or those that ask for it.
When = Literal["always", "requested"]


class RecordingOptions(msgspec.Struct, frozen=True):
    """Where requests are recorded, within which limits, whether without texts, which, and whether with the files of
    their pictures."""

    folder: Path
    limits: RecordingLimits = RecordingLimits()
    redact: bool = False
    when: When = "always"
    pictures: bool = False


class _File(NamedTuple):
    modified: float
    size: int
    path: str


class RecordingFolder:
    """Writes recordings to `path`, which it makes. Raises `OSError` if that cannot be.

    `put` never blocks and never raises. Recordings that come faster than they are written are dropped, and logged.
    When a file cannot be written, as on a full disk, recording stops until the server starts again; one line in the
    log says so.
    """

    def __init__(self, path: Path, limits: RecordingLimits) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, "dovetail-recordings")
        self._lock = threading.Lock()
        self._waiting = 0
        self._dropped = 0
        self._closed = False
        self._files = self._bytes = 0
        self._looked = -_LOOK_S
        #: Whether recording has stopped.
        self.stopped = False

    @property
    def most_bytes(self) -> int:
        """The most bytes of one recording that the limits allow."""
        return self._limits.size

    def put(self, name: str, make: Callable[[], bytes | None]) -> bool:
        """Write what `make` returns (None: nothing), as the recording `name`. False if it is dropped; else the thread
        calls `make`, even when recording has stopped meanwhile."""
        if self.stopped:
            return False
        with self._lock:
            if self._closed:  # of a request that ends after the server
                return False
            if self._waiting >= _MOST_WAITING:
                self._dropped += 1
                return False
            self._waiting += 1
            self._thread.submit(self._write, name, make)
            return True

    def close(self) -> None:
        """Write what waits, and nothing after that."""
        with self._lock:
            self._closed = True
        self._thread.shutdown()

    def _write(self, name: str, make: Callable[[], bytes | None]) -> None:
        try:
            data = make()
            if data is not None and not self.stopped:
                self._store(name, data)
        except OSError as error:
            self.stopped = True
            _LOG.error("recording stops until the next start: %s cannot be written: %s", self._path, error.strerror)
        except Exception:
            _LOG.exception("the recording %s could not be made", name)
        finally:
            self._count()

    def _count(self) -> None:
        with self._lock:
            self._waiting -= 1
            dropped = 0 if self._waiting else self._dropped
            self._dropped -= dropped
        if dropped:
            _LOG.warning("%d recordings were dropped, because they came faster than they are written", dropped)

    def _store(self, name: str, data: bytes) -> None:
        self._make_room(len(data))
        whole, part = self._path / f"{name}{SUFFIX}", self._path / f".{name}{SUFFIX}.part"
        try:
            # Only the operator may read what clients write.
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(part, whole)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
        self._files, self._bytes = self._files + 1, self._bytes + len(data)

    def _make_room(self, size: int) -> None:
        """Delete the oldest recordings if one more of `size` bytes would exceed a limit."""
        limits, now = self._limits, time.monotonic()
        full = self._files + 1 > limits.recordings or self._bytes + size > limits.size
        if not full and now - self._looked < _LOOK_S:
            return
        self._looked = now
        files = sorted(self._recordings())
        self._files, self._bytes = len(files), sum(file.size for file in files)
        full = self._files + 1 > limits.recordings or self._bytes + size > limits.size
        share = _LEAVES if full else 1.0
        for file in files:
            over = self._files + 1 > limits.recordings * share or self._bytes + size > limits.size * share
            if self._files and (over or file.modified < time.time() - limits.age):
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    os.unlink(file.path)
                self._files, self._bytes = self._files - 1, self._bytes - file.size

    def _recordings(self) -> Iterator[_File]:
        with os.scandir(self._path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.name.endswith(SUFFIX):
                        status = entry.stat(follow_symlinks=False)
                        yield _File(status.st_mtime, status.st_size, entry.path)
                    elif entry.name.endswith(f"{SUFFIX}.part"):
                        self._delete_unfinished(entry)

    @staticmethod
    def _delete_unfinished(entry: os.DirEntry[str]) -> None:
        if entry.stat(follow_symlinks=False).st_mtime < time.time() - _UNFINISHED_S:
            os.unlink(entry.path)
