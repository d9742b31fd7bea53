"""Standard input, output and error: always open, and for a server never in its way."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from dovetail.cli.line_writer import LineWriter

#: Pieces of output that may wait for a reader. A piece is a line, a traceback, or a frame of a progress bar.
_MOST_PIECES = 2_000
_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_missing() -> None:
    """Open what the process was started without (`>&-`) on the null device.

    Else the next file or socket would get its number, and the output of a library would go there.
    """
    for descriptor, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115


class BackgroundStream(io.TextIOBase):
    """Writes to the file of `stream` from a thread. Never blocks or raises; what cannot be written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""
        self._lock = threading.Lock()
        self._writer = LineWriter(stream.fileno(), _MOST_PIECES, end=b"", report=_report)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def dropped(self) -> int:
        """How many pieces of output were dropped."""
        return self._writer.dropped_total

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            whole, newline, self._line = (self._line + text).rpartition("\n")
            if newline:
                self._writer(self._encoded(whole + newline))
        return len(text)

    def flush(self) -> None:
        """Write a line that has not ended."""
        with self._lock:
            if self._line:
                self._writer(self._encoded(self._line))
                self._line = ""

    def finish(self) -> None:
        """Write what waits, for a second at most."""
        self.flush()
        self._writer.close()

    def _encoded(self, text: str) -> bytes:
        errors = "backslashreplace" if self._stream.errors == "backslashreplace" else "replace"
        return text.encode(self.encoding or "utf-8", errors)


@contextlib.contextmanager
def in_background() -> Iterator[None]:
    """Standard output and error that block nobody, inside the block."""
    usual = sys.stdout, sys.stderr
    streams = [_background(stream) for stream in usual]
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = usual
        for stream in streams:
            if isinstance(stream, BackgroundStream):
                stream.finish()


def dropped_pieces() -> int:
    """How many pieces of standard output and error were dropped."""
    return sum(stream.dropped for stream in (sys.stdout, sys.stderr) if isinstance(stream, BackgroundStream))


def _background(stream: TextIO) -> TextIO:
    """`stream` in the background; itself if it is no file."""
    try:
        stream.fileno()
    except (OSError, ValueError):
        return stream
    return BackgroundStream(stream)  # type: ignore[return-value]


def _report(pieces: int) -> bytes:
    return b"[%d messages were dropped here, because nobody read them]\n" % pieces
