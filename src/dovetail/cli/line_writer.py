"""Writes lines to a file descriptor from a thread of its own, so that a reader that stalls or leaves stops nobody."""

from __future__ import annotations

import os
import queue
import select
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

#: Lines that may wait for the reader; an access line has some 500 bytes.
_MOST_LINES = 10_000
#: Lines that are written at once.
_BATCH = 256
#: Bytes of a portion. A line that reports dropped ones may come before it.
_PORTION_BYTES = select.PIPE_BUF - 128
_WRITERS: weakref.WeakSet[LineWriter] = weakref.WeakSet()


def json_report(lines: int) -> bytes:
    """The JSON line that stands for `lines` that were dropped."""
    return b'{"kind":"dropped","lines":%d}' % lines


class LineWriter:
    """Call it with a line, without its line break, or with any bytes if `end` is empty. Never blocks and never raises.

    Lines that cannot be written are dropped: when too many wait, or when the file is closed or its disk full. The next
    line that can be written comes after the `report` of how many they were.
    """

    def __init__(
        self,
        descriptor: int,
        most_lines: int = _MOST_LINES,
        *,
        end: bytes = b"\n",
        report: Callable[[int], bytes] = json_report,
    ) -> None:
        self._descriptor = descriptor
        self._most = most_lines
        self._end = end
        self._report = report
        #: How many lines were ever dropped.
        self.dropped_total = 0
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._dropped = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        _WRITERS.add(self)

    @property
    def dropped(self) -> int:
        """How many lines were dropped and not reported yet."""
        return self._dropped

    def __call__(self, line: bytes) -> None:
        if self._thread is None:
            self._start()
        if self._lines.qsize() < self._most:
            self._lines.put(line)
        else:
            self._count_dropped(1)

    def close(self, seconds: float = 1.0) -> None:
        """Write what waits, for at most so long. A later line begins anew."""
        if (thread := self._thread) is not None:
            self._lines.put(None)
            thread.join(seconds)
            if not thread.is_alive():
                self._thread = None

    def forked(self) -> None:
        """Begin anew in a child process, which has no other thread. Its parent writes what waits."""
        self._lines, self._lock, self._thread = queue.SimpleQueue(), threading.Lock(), None

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dovetail-lines", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (lines := self._next()) is not None:
            for together in _portions(lines):
                self._write(together)

    def _write(self, lines: Sequence[bytes]) -> None:
        reported = self._dropped
        report = [self._report(reported)] if reported else []
        if self._written(b"".join(line + self._end for line in (*report, *lines))):
            self._count_reported(reported)
        else:
            self._count_dropped(len(lines))

    def _count_dropped(self, lines: int) -> None:
        with self._lock:
            self._dropped += lines
            self.dropped_total += lines

    def _count_reported(self, lines: int) -> None:
        with self._lock:
            self._dropped -= lines

    def _next(self) -> list[bytes] | None:
        """The lines that wait, at least one; None at the end."""
        line = self._lines.get()
        lines = []
        while line is not None:
            lines.append(line)
            if len(lines) == _BATCH:
                return lines
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                return lines
        if lines:
            self._lines.put(None)  # the end, again, for the next call
        return lines or None

    def _written(self, data: bytes) -> bool:
        """Write all of `data`, however long it takes. False if that cannot be."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # a terminal that another program has made non-blocking
                select.select((), (self._descriptor,), ())
            except OSError:
                return False
        return True


def _portions(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """`lines` in portions that a pipe takes whole, so that the lines of several processes do not mix (pipe(7))."""
    portion: list[bytes] = []
    size = 0
    for line in lines:
        if portion and size + len(line) + 1 > _PORTION_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(line)
        size += len(line) + 1
    yield portion


def close_all() -> None:
    """Write what waits in all writers of the process, before it ends without its usual end."""
    for writer in list(_WRITERS):
        writer.close()


def _forked() -> None:
    for writer in list(_WRITERS):
        writer.forked()


os.register_at_fork(after_in_child=_forked)
