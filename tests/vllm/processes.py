"""Servers as processes, which leave nothing behind.

`adopt` makes orphans children of this process, so whatever a test has started, however indirectly, is found below it.
A start is mostly one process after the other that imports vLLM, on one core: `two_at_a_time` has another beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.cli.test_serve import free_port

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
#: vLLM's own children take seconds to notice that their parent has ended.
_PATIENCE_S, _GRACE_S = 60.0, 30.0
#: Of one start, on a machine that has other things to do.
_START_S = 300.0


def adopt() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def running(ancestor: int | None = None) -> dict[int, str]:
    """The processes that descend from one (this one) and still run, by id: their commands. vLLM names its own."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                # pid (name) state ppid …; the name may hold anything
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(folder.name)] = int(parent)
    family = [ancestor or os.getpid()]
    for pid in family:  # which grows
        family += [each for each, parent in parents.items() if parent == pid]
    return {pid: _command(pid) for pid in family[1:]}


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def _without_model(name: str) -> str:
    return re.sub(r',?model="[^"]*"', "", name).replace("{,", "{").replace("{}", "")


def until(holds: Callable[[], object], what: str, seconds: float = _PATIENCE_S) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


def nothing_left(family: Collection[int] | None = None) -> None:
    """Of all that was started from here, or of these processes."""

    def left() -> Collection[int]:
        return running() if family is None else running().keys() & set(family)

    until(lambda: not left(), f"nothing left running, of {running()}")


class Process:
    """A server on `port`, with all that it prints. It is up when its /health answers and it has printed `ready`."""

    def __init__(self, command: list[str | Path], port: int, ready: str, **variables: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._ready = ready
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def printed(self) -> str:
        return "".join(self.lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def wait_until_up(self) -> None:
        def up() -> bool:
            assert self.code is None, self.printed[-4000:]
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"{self.url}/health", timeout=_START_S).status_code == 200
            return False

        until(up, "a server that is up", _START_S)
        until(lambda: self._ready in self.printed, self._ready)  # what it has printed is read by another thread

    def family(self) -> dict[int, str]:
        """What it has started, and what that has, as `running` has it."""
        return running(self._process.pid)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code, when nothing runs any more of what it had started."""
        family = self.family()
        self._process.send_signal(number)
        code = self.end()
        nothing_left(family)
        return code

    def end(self) -> int:
        """Its exit code, and everything that it printed is in `printed`."""
        code = self._process.wait(_START_S)
        self._reader.join(_PATIENCE_S)
        return code

    def close(self) -> None:
        """End it, by force if it does not listen: vLLM that is killed leaves its workers."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def metrics(self) -> dict[str, float]:
        """Of its /metrics, by name with labels but the gateway's `model`: each gateway here has one."""
        lines = httpx.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {_without_model(name): float(value) for name, _, value in pairs}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
        self._process.stdout.close()


def dovetail(*words: str | Path, port: int | None = None, **variables: str) -> Process:
    """`dovetail serve WORDS`, not up yet; on `port`, else on a free one."""
    port = port or free_port()
    command = [sys.executable, "-m", "dovetail", "serve", *words, "--port", str(port)]
    return Process(command, port, "ready in", **variables)


@contextlib.contextmanager
def two_at_a_time(jobs: Mapping[str, Callable[[], None]]) -> Iterator[dict[str, Future[None]]]:
    pool = ThreadPoolExecutor(2)
    try:
        yield {name: pool.submit(job) for name, job in jobs.items()}
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def up(process: Process) -> Iterator[Process]:
    """`process` when it is up; it is ended then, if it still runs, and nothing of what it started runs either."""
    try:
        process.wait_until_up()
        yield process
    finally:
        family = process.family()
        process.close()
        nothing_left(family)
