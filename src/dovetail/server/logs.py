"""Log records and access lines: a thread writes them, so that a reader that stalls holds up no request.

Records that the reader does not take are dropped: when too many wait, or when the file is closed or its disk full.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener

import msgspec

from dovetail.plan import Plan

_STDOUT, _STDERR = 1, 2
#: Records that may wait for the reader; an access line has some 500 bytes.
_MOST_RECORDS = 10_000
#: How long the last records may take to be written when the server stops.
_LAST_RECORDS_S = 1.0
_ACCESS = logging.getLogger("dovetail.access")
_ACCESS.propagate = False
_ACCESS.setLevel(logging.INFO)

_Records = queue.Queue[logging.LogRecord | None]


def logs_json(plan: Plan) -> bool:
    """Whether standard output has JSON lines and nothing else."""
    return bool(plan.value("log_format") == "json")


def write_access_line(line: bytes) -> None:
    """Log an access line."""
    _ACCESS.info(line.decode())


@contextlib.contextmanager
def logging_in_background(*, json: bool, descriptor: int | None = None) -> Iterator[None]:
    """Within this context, log records are lines on standard error. `json`: they and access lines are JSON lines on
    standard output. `descriptor`: another file to write to."""
    records: _Records = queue.Queue(_MOST_RECORDS)
    logs, access = _DroppingHandler(records), _DroppingHandler(records)
    if json:
        logs.setFormatter(_JsonFormatter())
    writer = _Writer(records, (_STDOUT if json else _STDERR) if descriptor is None else descriptor)
    raises, logging.raiseExceptions = logging.raiseExceptions, False  # a record that cannot be formatted stops nobody
    logging.root.addHandler(logs)
    if json:
        _ACCESS.addHandler(access)
    writer.start()
    try:
        yield
    finally:
        logging.root.removeHandler(logs)
        _ACCESS.removeHandler(access)
        logging.raiseExceptions = raises
        # A reader that does not take the last records is left behind.
        closing = threading.Thread(target=writer.stop, name="dovetail-last-records", daemon=True)
        closing.start()
        closing.join(_LAST_RECORDS_S)


class _DroppingHandler(QueueHandler):
    """Formats a record where it is logged, and leaves it to the queue; drops it if the queue is full."""

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


class _Writer(QueueListener):
    """Writes each record's message, and a line break, from a thread of its own.

    It has no handler: `logging.shutdown` would wait for the lock of a handler that a stalled reader blocks.
    """

    def __init__(self, records: _Records, descriptor: int) -> None:
        super().__init__(records)
        self._records = records
        self._descriptor = descriptor

    def handle(self, record: logging.LogRecord) -> None:
        rest = memoryview(f"{record.getMessage()}\n".encode(errors="backslashreplace"))
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # a terminal that another program has made non-blocking
                select.select((), (self._descriptor,), ())
            except OSError:
                return

    def enqueue_sentinel(self) -> None:
        self._records.put(None)  # waits for room


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "kind": "log",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info is not None:
            fields["exception"] = self.formatException(record.exc_info)
        whole = {name: text.encode(errors="replace").decode() for name, text in fields.items()}
        return msgspec.json.encode(whole).decode()
