"""`--workers N`: several processes that serve the clients of one address, and their parent, which accepts for them.

The parent accepts every connection and hands it to the workers in turn, so that each has as many, on TCP as on a Unix
socket. It starts a worker that has died again, passes signals on, and ends when they have ended. It loads nothing and
runs no event loop, so that it can fork at any time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator

import msgspec

from dovetail.cli import line_writer
from dovetail.cli.terminal import visible
from dovetail.errors import DovetailError

_LOG = logging.getLogger("dovetail.server")

#: What a worker sends when it is ready for connections.
READY = b"r"
#: What comes with a connection that is handed to a worker.
CONNECTION = b"c"
_REFUSED = 2
#: Seconds before a worker that has died is started again; doubled, up to the second figure, while it dies at its start.
_DELAYS = 0.5, 30.0
#: Connections that are accepted before anything else is looked at.
_ACCEPTS = 64
_ENDING = (signal.SIGINT, signal.SIGTERM)
_SIGNALS = (*_ENDING, signal.SIGHUP)

#: Serves what comes over the channel, as worker number so much, until it ends. The third argument: whether it is the
#: one that prints what a server prints at its start.
Serve = Callable[[socket.socket, int, bool], None]


class _Worker(msgspec.Struct, eq=False):
    number: int
    pid: int = 0
    channel: socket.socket | None = None
    ready: bool = False
    delay: float = _DELAYS[0]
    start_at: float = 0.0


class Workers:
    """The parent of `count` workers that serve the connections to `listener`."""

    def __init__(self, count: int, listener: socket.socket, serve: Serve) -> None:
        self._workers = [_Worker(number) for number in range(count)]
        self._listener = listener
        self._serve = serve
        self._selector = selectors.DefaultSelector()
        self._turn = 0
        self._ending = False
        self._code = 0
        self._was_ready = False

    def run(self) -> int:
        """Serve until a signal, or until the first worker cannot start. Returns the exit code."""
        self._listener.setblocking(False)
        with self._signals() as signals:
            self._selector.register(signals, selectors.EVENT_READ)
            self._start_due()
            while not self._ending or any(worker.pid for worker in self._workers):
                for key, _ in self._selector.select(self._timeout()):
                    if key.fileobj is signals:
                        for number in signals.recv(256):
                            self._signal(number)
                    elif key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._read(key.data)
                self._start_due()
        return self._code

    @contextlib.contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """A socket from which the numbers of signals can be read."""
        reading, writing = socket.socketpair()
        with reading, writing:
            writing.setblocking(False)
            earlier = {number: signal.signal(number, _ignore) for number in _SIGNALS}
            before = signal.set_wakeup_fd(writing.fileno())
            try:
                yield reading
            finally:
                signal.set_wakeup_fd(before)
                for number, handler in earlier.items():
                    signal.signal(number, handler)

    def _timeout(self) -> float | None:
        """Seconds until the next worker has to be started."""
        if self._ending:
            return None
        due = [worker.start_at for worker in self._workers if not worker.pid]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _signal(self, number: int) -> None:
        """Pass a signal on. Ctrl-C reaches only the parent, because the workers have process groups of their own."""
        self._ending = self._ending or number in _ENDING
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, signal.SIGTERM if number in _ENDING else number)

    # Connections.

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # no more, or no more files
                return
            with connection:
                self._hand_over(connection)

    def _hand_over(self, connection: socket.socket) -> None:
        """Give `connection` to the next worker that takes it; it is closed if none does."""
        for _ in self._workers:
            self._turn = (self._turn + 1) % len(self._workers)
            worker = self._workers[self._turn]
            if worker.channel is not None and worker.ready:
                with contextlib.suppress(OSError):  # full: it is stuck, or it has just died
                    socket.send_fds(worker.channel, [CONNECTION], [connection.fileno()])
                    return

    # Workers start and end.

    def _start_due(self) -> None:
        for worker in self._workers:
            if not worker.pid and not self._ending and worker.start_at <= time.monotonic():
                self._start(worker)

    def _start(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # no handler of the parent may run in the worker
        pid = os.fork()
        if not pid:
            ours.close()
            self._become(theirs, worker.number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        theirs.close()
        ours.setblocking(False)
        worker.pid, worker.channel, worker.ready = pid, ours, False
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _become(self, channel: socket.socket, number: int) -> None:
        """Be worker `number`, in its process, and end it."""
        code: object = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for each in _ENDING:
                signal.signal(each, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until something is there to be read again
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self._selector.close()
            self._listener.close()
            for worker in self._workers:
                if worker.channel is not None:
                    worker.channel.close()
            self._serve(channel, number, number == 0 and not self._was_ready)
            code = 0
        except DovetailError as error:
            sys.stderr.write(f"dovetail: {visible(error.message)}\n")  # at once: other workers write there too
            code = _REFUSED
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            line_writer.close_all()
            os._exit(code if isinstance(code, int) else 1)

    def _read(self, worker: _Worker) -> None:
        """Take a worker's word that it is ready, or notice its end."""
        assert worker.channel is not None
        try:
            word = worker.channel.recv(1)
        except OSError:
            word = b""
        if word == READY:
            worker.ready, worker.delay = True, _DELAYS[0]
            if not self._was_ready:
                self._was_ready = True
                self._selector.register(self._listener, selectors.EVENT_READ)
        elif not word:
            self._ended(worker)

    def _ended(self, worker: _Worker) -> None:
        assert worker.channel is not None
        self._selector.unregister(worker.channel)
        worker.channel.close()
        _, status = os.waitpid(worker.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        worker.pid, worker.channel = 0, None
        if self._ending:
            # One that was still starting ends by the signal: no failure if others serve.
            if worker.ready or not self._was_ready:
                self._code = self._code or max(code, 0)
        elif not self._was_ready:
            # What keeps one from starting keeps all: a server that is none, a port of the metrics that is in use.
            self._code = code if code > 0 else 1
            self._signal(signal.SIGTERM)
        else:
            _LOG.error("worker %d has ended with code %d, and is started again", worker.number, code)
            worker.start_at = time.monotonic() + worker.delay
            worker.delay = min(2 * worker.delay, _DELAYS[1])


def _ignore(number: int, frame: object) -> None:
    """Signals are read from the wakeup socket."""
