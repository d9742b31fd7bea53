"""Reads the folder of recordings for the page: the newest ones as a list of summaries, and single recordings.

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
from dovetail.events import CallStart, Defect
from dovetail.gateway.observe.recording import MOST_BYTES, NOTHING, Recording, decode
from dovetail.gateway.observe.recording_folder import SUFFIX
from dovetail.inspect.verdict import Finding, drafts_of, verdict

#: Names of recordings, without the suffix.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
#: Bytes of recordings that one call reads, in files that it has not read before. The next call goes on.
_MOST_READ = 16 * 1024 * 1024
#: Bytes that a file counts at least, for opening it.
_LEAST_READ = 4096
#: Lines of the list that are remembered.
_REMEMBERED = 10_000
#: The folder is listed once in this many seconds, and in this many times what listing it takes.
_LISTED_S, _LISTED_TIMES = 0.5, 10

#: Names of calls, and kinds of defects, that a line has at most, and the characters of a text.
_MOST_NAMES = 8
_LONGEST = 200


class Summary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One recording in the list. `name` and `written` (nanoseconds since the epoch) are the file's; `seconds`: until
    the end of the request.

    `finish` has the reason of each choice, or the type of the error. `defects` has the kinds of defects, and the faults
    of calls. `drafted` and `accepted` are None if no step reports drafts. `unreadable`: why the file is no recording;
    then there is nothing else.
    """

    name: str
    written: int
    bytes: int
    id: str = ""
    api: str = ""
    model: str = ""
    began: str = ""
    seconds: float | None = None
    prompt_tokens: int | None = None
    tokens: int = 0
    drafted: int | None = None
    accepted: int | None = None
    finish: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    defects: tuple[str, ...] = ()
    redacted: bool = False
    unreadable: str | None = None


class Listing(msgspec.Struct, frozen=True):
    """Recordings, newest first. `more`: the folder has older ones."""

    recordings: list[Summary]
    more: bool


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


class Recordings:
    """The recordings in `folder`. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[_File] = []
        self._list_again = 0.0
        self._read = 0
        self._summary = functools.lru_cache(_REMEMBERED)(self._summarized)

    def newest(self, limit: int) -> Listing:
        """The newest `limit` recordings, or fewer if many of them have not been read before.

        Raises `UnknownRecording` without the folder.
        """
        shown: list[Summary] = []
        self._read = 0
        for file in self._listed():
            if len(shown) == limit or self._read >= _MOST_READ:
                return Listing(shown, True)
            with suppress(UnknownRecording):  # it was deleted meanwhile
                shown.append(self._summary(file))
        return Listing(shown, False)

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

    def _summarized(self, file: _File) -> Summary:
        try:
            return summary_of(decode(self._content(file.name), file.name), file.name, file.written, file.size)
        except UnknownRecording:
            raise
        except InvalidRequest as error:
            return Summary(name=file.name, written=file.written, bytes=file.size, unreadable=error.message)

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


def summary_of(recording: Recording, name: str, written: int, size: int) -> Summary:
    """The line of `recording`, which the file `name` of `size` bytes has."""
    drafts = drafts_of(recording)
    return Summary(
        name=name,
        written=written,
        bytes=size,
        id=recording.id[:_LONGEST],
        api=recording.api[:_LONGEST],
        model=(recording.model or "")[:_LONGEST],
        began=recording.began[:_LONGEST],
        seconds=recording.times.get("ended"),
        prompt_tokens=None if recording.prompt is None else recording.prompt.tokens,
        tokens=sum(len(step.tokens) for step in recording.steps),
        drafted=None if drafts is None else drafts.drafted,
        accepted=None if drafts is None else drafts.accepted,
        finish=_few(_finish(recording)),
        calls=_few(_calls(recording)),
        defects=_few(_defects(recording)),
        redacted=recording.redacted,
    )


def _few(names: Iterator[str]) -> tuple[str, ...]:
    return tuple(name[:_LONGEST] for name in dict.fromkeys(names))[:_MOST_NAMES]


def _finish(recording: Recording) -> Iterator[str]:
    if recording.error is not None:
        yield recording.error.type
    yield from (step.finish for step in recording.steps if step.finish is not None)


def _calls(recording: Recording) -> Iterator[str]:
    for step in recording.steps:
        yield from (event.name for event in step.events if isinstance(event, CallStart))


def _defects(recording: Recording) -> Iterator[str]:
    for step in recording.steps:
        yield from (event.kind for event in step.events if isinstance(event, Defect))
        yield from (check.fault for check in step.checks if check.fault is not None)
