"""Run as a program of its own, it holds another one on a leash: whatever ends the owner ends that, and all it started.

    python -I -S leash.py PAUSE_S GRACE_S SOCKET PROGRAM [WORD …]

Standard input is a pipe of which the owner alone has the other end. PROGRAM is started after PAUSE_S seconds. When the
pipe is closed, by the owner or by whatever kills it, PROGRAM gets SIGTERM, what is left of it and of its descendants
after GRACE_S seconds gets SIGKILL, and SOCKET, a Unix socket in a folder of its own, is removed with that. When PROGRAM
ends by itself, so do its descendants. The exit code is PROGRAM's own, 128 + N where signal N ended it, that of SIGTERM
where it never began, and 127 where it cannot be run. Nothing but the standard library, and little of that: it costs
10 MB for as long as an engine runs.
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
_AFTERMATH_S = 2.0  # that descendants have to end by themselves once PROGRAM did
_LAST_S = 10.0  # for a process that was killed to be gone: one in a driver's hands takes its time
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(words: Sequence[str]) -> int:
    pause, grace, socket, argv = float(words[0]), float(words[1]), words[2], list(words[3:])
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    for number in _HANDLED:
        signal.signal(number, lambda *_: None)  # the wakeup descriptor tells; a handler that does nothing wakes select
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    if _LINUX:
        # Orphans become ours, so that a descendant is found wherever it went, sessions of its own included.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if pause and select.select([told, 0], [], [], pause)[0]:
        code = 128 + signal.SIGTERM
    else:
        code = _hold(_start(argv), told, grace)
    # Not whether the parent is another now: an owner that is killed closes its files first.
    if _closed():
        _remove(socket)
    return code


def _hold(child: int, told: int, grace: float) -> int:
    """Until it has ended, and all it started: its exit code. `told` is read where a signal has come."""
    family = _Family(child)
    ends: float | None = None  # when patience does
    while family.status is None:
        now = time.monotonic()
        if ends is not None and now >= ends:
            break
        watched = [told] if ends is not None else [told, 0]
        ready, _, _ = select.select(watched, [], [], None if ends is None else ends - now)
        signals = os.read(told, 512) if told in ready else b""
        if ends is None and ((0 in ready and _closed()) or set(signals) - {signal.SIGCHLD}):
            ends = time.monotonic() + grace
            family.signal([child], signal.SIGTERM)
        family.reap()
    if family.status is not None:
        family.signal(family.members(), signal.SIGTERM)
        family.wait(_AFTERMATH_S)
    family.kill()
    return 128 + signal.SIGKILL if family.status is None else _exit_code(family.status)


def _closed() -> bool:
    """Whether nobody holds the other end of the pipe any more."""
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 512)


def _remove(socket: str) -> None:
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket)
        os.rmdir(os.path.dirname(socket))


def _start(argv: list[str]) -> int:
    leash = os.getpid()
    # A signal to a child that still has the leash's handlers would be lost; so it waits.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with contextlib.suppress(OSError):  # it did so itself already, and runs something else by now
            os.setpgid(child, child)
        return child
    try:
        os.setpgid(0, 0)
        if _LINUX:
            # Should it be the leash that is killed.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != leash:
                os._exit(128 + signal.SIGTERM)
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]} cannot be run: {error.strerror}\n".encode())
    os._exit(127)


class _Family:
    """`child` and all its descendants. `status` is how the child ended, as waitpid has it."""

    def __init__(self, child: int) -> None:
        self._child = child
        self.status: int | None = None

    def reap(self) -> None:
        """Note who has ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._child:
                    self.status = status

    def members(self) -> list[int]:
        """Who is still there. Where there is no /proc, those of the child's process group, as its negative id."""
        parents = _parents()
        if parents is None:
            with contextlib.suppress(OSError):
                os.killpg(self._child, 0)
                return [-self._child]
            return []
        found = [os.getpid()]
        for pid in found:  # which grows
            found += [each for each, parent in parents.items() if parent == pid]
        return found[1:]

    def signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def wait(self, seconds: float) -> bool:
        """Whether all have ended, or do within `seconds`."""
        until = time.monotonic() + seconds
        while True:
            self.reap()
            if not self.members():
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.02)

    def kill(self) -> None:
        """Again and again: whoever is forking meanwhile has a child that was not there before."""
        until = time.monotonic() + _LAST_S
        while (members := self.members()) and time.monotonic() < until:
            self.signal(members, signal.SIGKILL)
            self.wait(0.1)
        self.reap()  # one that has ended since it was last looked for is no member any more


def end_without_leash(session: int, mark: bytes, grace: float) -> None:
    """End whom a leash that was killed has left: its `session`, their descendants, and whose environment holds `mark`.

    Blocks, for `grace` seconds and some more at most. Nobody is found where there is no /proc.
    """
    killed, until = time.monotonic() + grace, time.monotonic() + grace + _LAST_S
    while (members := _orphans(session, mark)) and time.monotonic() < until:
        for pid in members:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < killed else signal.SIGKILL)
        time.sleep(0.1)


def _orphans(session: int, mark: bytes) -> list[int]:
    parents = _parents() or {}
    found = [pid for pid in parents if _belongs(pid, session, mark)]
    for pid in found:  # which grows
        found += [each for each, parent in parents.items() if parent == pid and each not in found]
    return found


def _belongs(pid: int, session: int, mark: bytes) -> bool:
    # Who has a session of its own is found by its environment; who writes its title over that, by its session.
    with contextlib.suppress(OSError):
        if os.getsid(pid) == session:
            return True
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    return False


def _parents() -> dict[int, int] | None:
    """Of every process that runs its parent; None where the system does not say."""
    parents = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return None
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # pid (name) state ppid …; the name may hold anything, parentheses too
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    parents[int(name)] = int(parent)
    return parents if parents else None


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
