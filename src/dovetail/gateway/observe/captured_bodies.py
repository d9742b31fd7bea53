"""The bodies of requests that are captured for recordings: they stay in memory until the file is written."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

#: The most bytes of a body in a recording.
MOST_BODY = 1024 * 1024
#: The most bytes of all bodies that wait for their recordings. They are beyond the memory that `--body-memory` bounds,
#: which a body leaves before the engine begins.
MOST_BODIES = 64 * 1024 * 1024


class CapturedBody:
    """The bytes of one body, until `release`. None if the body is too large, or if there is no room."""

    def __init__(self, data: bytes | None, release: Callable[[int], None]) -> None:
        self.data = data
        self._release = release

    def release(self) -> None:
        """Drop the bytes. A second call does nothing."""
        data, self.data = self.data, None
        if data is not None:
            self._release(len(data))

    @property
    def asks_for_recording(self) -> bool:
        """Whether the body sets ``dovetail.recording``, for a request that was refused before anything else read it."""
        try:
            marked = msgspec.json.decode(self.data or b"{}", type=_Marked)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return marked.dovetail is not None and marked.dovetail.recording is True


class _Mark(msgspec.Struct):
    recording: bool | None = None


class _Marked(msgspec.Struct):
    dovetail: _Mark | None = None


class CapturedBodies:
    """Room for `most_bytes` of bodies, which threads share."""

    def __init__(self, most_bytes: int = MOST_BODIES) -> None:
        self._room = most_bytes
        self._lock = threading.Lock()

    def capture(self, data: bytes) -> CapturedBody:
        """The body `data`."""
        with self._lock:
            fits = len(data) <= min(MOST_BODY, self._room)
            self._room -= len(data) * fits
        return CapturedBody(data if fits else None, self._release)

    def _release(self, size: int) -> None:
        with self._lock:
            self._room += size
