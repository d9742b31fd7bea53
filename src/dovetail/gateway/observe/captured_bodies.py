"""What clients sent, until their recordings are written: bodies without pictures, and the files of pictures."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from dovetail.gateway.observe.recording import RecordedPicture

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
    """Room for `most_bytes` of bodies and of the files of pictures, which threads share."""

    def __init__(self, most_bytes: int = MOST_BODIES) -> None:
        self._room = most_bytes
        self._lock = threading.Lock()

    def capture(self, data: bytes, most: int) -> CapturedBody:
        """The body `data`, of at most `most` bytes."""
        with self._lock:
            fits = len(data) <= min(most, self._room)
            self._room -= len(data) * fits
        return CapturedBody(data if fits else None, self._release)

    def _release(self, size: int) -> None:
        with self._lock:
            self._room += size


class CapturedPicture(NamedTuple):
    """A picture of a request. `file` has its bytes if files are recorded."""

    picture: RecordedPicture
    file: CapturedBody

    @property
    def recorded(self) -> RecordedPicture:
        return msgspec.structs.replace(self.picture, data=self.file.data)


NO_FILE = CapturedBody(None, lambda size: None)
#: A picture in a body: base64 after its media type, or the data of a block in Anthropic's API. JSON may write a
#: backslash before a slash.
_PICTURE = re.compile(rb"""(base64,|"data"\s{0,9}:\s{0,9}")([A-Za-z0-9+/=\\]{64,})""")


def without_pictures(body: bytes) -> bytes:
    """`body` with the digest of its file in place of each picture."""
    return _PICTURE.sub(lambda match: match[1] + b"sha256:" + _digest(match[2]), body)


def _digest(data: bytes) -> bytes:
    """The digest of the file that `data` is in base64, or of `data` if it is not base64."""
    try:
        file = base64.b64decode(data.replace(b"\\", b""), validate=True)
    except ValueError:
        file = data
    return hashlib.sha256(file).hexdigest().encode()
