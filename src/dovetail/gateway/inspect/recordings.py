"""Reads the folder of recordings for the page: a list that is searched piece by piece, and single recordings.

Several processes may write into the folder meanwhile. The work of one call is bounded, however large the folder is.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from dovetail.errors import InvalidRequest, UnknownRecording
from dovetail.gateway.inspect.search import Search
from dovetail.gateway.inspect.summary import Summary, summary_of
from dovetail.gateway.recordings.capture import MOST_BYTES
from dovetail.gateway.recordings.folder import SUFFIX
from dovetail.gateway.recordings.recording import NOTHING, Recording, decode
from dovetail.gateway.recordings.verdict import Finding, verdict

#: Names of recordings, without the suffix.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
#: Bytes of recordings that one search reads, in files that it has not read before. The rest of the list is another
#: search.
_MOST_READ = 16 * 1024 * 1024
#: Bytes that a file counts at least, for opening it.
_LEAST_READ = 4096
#: Lines of the list that are remembered.
_REMEMBERED = 10_000
#: The folder is listed once in this many seconds, and in this many times what listing it takes.
_LISTED_S, _LISTED_TIMES = 0.5, 10


class Listing(msgspec.Struct, frozen=True):
    """Recordings, newest first. `next`: `before` of the search that goes on from here; None: this was the last of the
    list."""

    recordings: list[Summary]
    next: str | None


class Shown(msgspec.Struct, frozen=True):
    """One recording for the page. `request`: its body, laid out; its numbers have all their digits, which a browser's
    would not. The `recording` itself is without it."""

    name: str
    verdict: list[Finding]
    request: str
    recording: Recording


class _File(NamedTuple):
    written: int
    name: str
    size: int

    @property
    def place(self) -> str:
        return f"{self.written}.{self.name}"


class Recordings:
    """The recordings in `folder`. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[_File] = []
        self._list_again = 0.0
        self._read = 0
        self._summary = functools.lru_cache(_REMEMBERED)(self._summarized)

    def search(self, search: Search) -> Listing:
        """The recordings that `search` asks for. Raises `InvalidRequest`, or `UnknownRecording` without the folder."""
        files = self._listed()
        shown: list[Summary] = []
        self._read = 0
        for file in self._from(files, search):
            if len(shown) == search.limit or self._read >= _MOST_READ:
                return Listing(shown, self._before(files, file))
            with suppress(UnknownRecording):  # it was deleted meanwhile
                summary = self._summary(file)
                if search.fits(summary) and (not search.text or self._has(search, file)):
                    shown.append(summary)
        return Listing(shown, None)

    def show(self, name: str) -> Shown:
        """The recording `name`. Raises `UnknownRecording`, or `InvalidRequest` for a file that is no recording."""
        recording = decode(self._content(name), name)
        request = msgspec.json.format(bytes(recording.request), indent=2).decode()
        rest = msgspec.structs.replace(recording, request=NOTHING)
        return Shown(name, verdict(recording), request, rest)

    def _listed(self) -> list[_File]:
        began = time.monotonic()
        if began >= self._list_again:
            self._files = sorted(self._found(), reverse=True)
            took = time.monotonic() - began
            self._list_again = began + max(_LISTED_S, _LISTED_TIMES * took)
        return self._files

    def _found(self) -> Iterator[_File]:
        try:
            entries = os.scandir(self._folder)
        except OSError as error:
            raise UnknownRecording(f"the folder of recordings cannot be read: {error.strerror}") from error
        with entries:
            for entry in entries:
                name = entry.name.removesuffix(SUFFIX)
                with suppress(FileNotFoundError):
                    if name != entry.name and _NAME.fullmatch(name) and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        yield _File(status.st_mtime_ns, name, status.st_size)

    @staticmethod
    def _from(files: list[_File], search: Search) -> Iterator[_File]:
        before = None if search.before is None else _place(search.before)
        for file in files:
            if before is None or file[:2] < before:
                yield file

    @staticmethod
    def _before(files: list[_File], file: _File) -> str:
        """The place of the file ahead of `file` in the list, so that the next search begins with `file`."""
        number = files.index(file)
        return files[number - 1].place if number else f"{file.written + 1}.{file.name}"

    def _summarized(self, file: _File) -> Summary:
        try:
            return summary_of(decode(self._content(file.name), file.name), file.name, file.written, file.size)
        except UnknownRecording:
            raise
        except InvalidRequest as error:
            return Summary(name=file.name, written=file.written, bytes=file.size, unreadable=error.message)

    def _has(self, search: Search, file: _File) -> bool:
        try:
            return search.occurs_in(self._content(file.name))
        except InvalidRequest:
            return False

    def _content(self, name: str) -> bytes:
        """The file of the recording `name`. Raises `UnknownRecording`, or `InvalidRequest` for too large a one."""
        if not _NAME.fullmatch(name):
            raise UnknownRecording(f"there is no recording {name!r:.80}")
        try:
            with open(self._folder / f"{name}{SUFFIX}", "rb", opener=_regular) as file:
                size = os.fstat(file.fileno()).st_size
                if size > MOST_BYTES:
                    raise InvalidRequest(f"{name} is no recording of `serve --record`: it has {size:,} bytes")
                self._read += max(size, _LEAST_READ)
                return file.read()
        except OSError as error:
            raise UnknownRecording(f"there is no recording {name}, or it was deleted since") from error


def _regular(path: str, flags: int) -> int:
    """Open a file, and neither a link nor a pipe, which could be anything. Raises `OSError`."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(path)
    return descriptor


def _place(text: str) -> tuple[int, str]:
    """The time and the name in a place of the list. Raises `InvalidRequest`."""
    written, _, name = text.partition(".")
    if not re.fullmatch(r"[0-9]{1,20}", written) or not _NAME.fullmatch(name):
        raise InvalidRequest("before is no place in the list: give the `next` of a reply", param="before")
    return int(written), name
