"""A small program that runs another one, and ends it with all of its descendants when the owner process dies.

    python -I -S supervisor.py PAUSE_S GRACE_S SOCKET PROGRAM [ARGUMENT …]

Standard input is a pipe, and only the owner holds its other end. PROGRAM is started after PAUSE_S seconds. When the
pipe closes, because the owner closed it or died, PROGRAM gets SIGTERM, and after GRACE_S seconds PROGRAM and all
descendants that still run get SIGKILL. Then SOCKET, a Unix socket in a folder of its own, is removed with that folder.
When PROGRAM exits by itself, its descendants are ended too.

The exit code is PROGRAM's own, 128 + N if signal N ended it, 128 + SIGTERM if it was never started, and 127 if it
cannot be run. It imports only a few modules of the standard library, because
it stays in memory (10 MB) while an engine runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
_LINUX = sys.platform == "linux"
_DESCENDANTS_S = 2.0  # for descendants to exit after SIGTERM, once PROGRAM has exited
_KILL_S = 10.0  # for a killed process to disappear; one inside a driver call takes long
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: Sequence[str]) -> int:
    pause, grace, socket, argv = float(arguments[0]), float(arguments[1]), arguments[2], list(arguments[3:])
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    for number in _HANDLED:
        signal.signal(number, lambda *_: None)  # a signal with a handler is written to the wakeup descriptor
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    if _LINUX:
        # Orphaned descendants become children of this process, so that all are found, even those in other sessions.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if pause and select.select([signals, 0], [], [], pause)[0]:
        code = 128 + signal.SIGTERM
    else:
        code = _supervise(_start(argv), signals, grace)
    # The pipe tells whether the owner died: its files are closed before this process gets another parent.
    if _closed():
        _remove(socket)
    return code


def _supervise(child: int, signals: int, grace: float) -> int:
    """Wait until `child` and all descendants have exited, and return the exit code. `signals`: the wakeup pipe."""
    family = _Family(child)
    deadline: float | None = None  # for SIGKILL, once SIGTERM was sent
    while family.status is None:
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            break
        watched = [signals] if deadline is not None else [signals, 0]
        ready, _, _ = select.select(watched, [], [], None if deadline is None else deadline - now)
        received = os.read(signals, 512) if signals in ready else b""
        if deadline is None and ((0 in ready and _closed()) or set(received) - {signal.SIGCHLD}):
            deadline = time.monotonic() + grace
            family.signal([child], signal.SIGTERM)
        family.reap()
    if family.status is not None:
        family.signal(family.members(), signal.SIGTERM)
        family.wait(_DESCENDANTS_S)
    family.kill()
    return 128 + signal.SIGKILL if family.status is None else _exit_code(family.status)


def _closed() -> bool:
    """Whether the owner's end of the pipe is closed."""
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 512)


def _remove(socket: str) -> None:
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket)
        os.rmdir(os.path.dirname(socket))


def _start(argv: list[str]) -> int:
    supervisor = os.getpid()
    # The forked child still has this process's signal handlers, which would swallow a signal; so signals are blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with contextlib.suppress(OSError):  # the child has done so itself, and runs PROGRAM already
            os.setpgid(child, child)
        return child
    try:
        os.setpgid(0, 0)
        if _LINUX:
            # The child gets SIGTERM if the supervisor is killed.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(128 + signal.SIGTERM)
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]} cannot be run: {error.strerror}\n".encode())
    os._exit(127)


class _Family:
    """A child process and all of its descendants. `status`: how the child exited, as waitpid returns it."""

    def __init__(self, child: int) -> None:
        self._child = child
        self.status: int | None = None

    def reap(self) -> None:
        """Collect the processes that have exited."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._child:
                    self.status = status

    def members(self) -> list[int]:
        """The processes that still run. Without /proc: the child's process group, as a negative id."""
        parents = _parents()
        if parents is None:
            with contextlib.suppress(OSError):
                os.killpg(self._child, 0)
                return [-self._child]
            return []
        return _with_descendants([os.getpid()], parents)[1:]

    def signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def wait(self, seconds: float) -> bool:
        """Whether all processes exit within `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            self.reap()
            if not self.members():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)

    def kill(self) -> None:
        """Send SIGKILL until no process is left: a process may fork while it is being killed."""
        deadline = time.monotonic() + _KILL_S
        while (members := self.members()) and time.monotonic() < deadline:
            self.signal(members, signal.SIGKILL)
            self.wait(0.1)
        self.reap()


def end_orphans(session: int, mark: bytes, grace: float) -> None:
    """End the processes that a killed supervisor left behind. Called by the owner, not by the supervisor.

    They are the processes of `session`, those with `mark` in their environment, and all descendants of both. They get
    SIGTERM, and after `grace` seconds SIGKILL. Blocks meanwhile. Does nothing without /proc.
    """
    kill_at, deadline = time.monotonic() + grace, time.monotonic() + grace + _KILL_S
    while (orphans := _orphans(session, mark)) and time.monotonic() < deadline:
        for pid in orphans:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < kill_at else signal.SIGKILL)
        time.sleep(0.1)


def _orphans(session: int, mark: bytes) -> list[int]:
    parents = _parents() or {}
    return _with_descendants([pid for pid in parents if _belongs(pid, session, mark)], parents)


def _with_descendants(pids: list[int], parents: dict[int, int]) -> list[int]:
    family = list(pids)
    for pid in family:  # the list grows while it is walked
        family += [child for child, parent in parents.items() if parent == pid and child not in family]
    return family


def _belongs(pid: int, session: int, mark: bytes) -> bool:
    # A process with a session of its own is found by its environment. A process that has overwritten its environment
    # with a title is found by its session.
    with contextlib.suppress(OSError):
        if os.getsid(pid) == session:
            return True
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    return False


def _parents() -> dict[int, int] | None:
    """The parent of each running process; None without /proc."""
    parents = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return None
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # "pid (name) state ppid …", where the name may contain parentheses
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    parents[int(name)] = int(parent)
    return parents if parents else None


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
