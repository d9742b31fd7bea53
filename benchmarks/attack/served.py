"""`dovetail serve` as a process under attack: its memory, its CPU time, its log, and how others fare meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO

import msgspec

from benchmarks.attack import watchdog, wire
from dovetail.client.statistics import quantile

#: The model's name, and deadlines short enough to be waited for.
MODEL = "dovetail-demo"
SHORT = ("--header-timeout", "2", "--body-timeout", "2", "--send-timeout", "2", "--keep-alive-timeout", "3")
_START_S = 120.0
#: The greatest lag of the event loop of each server that was attacked, in seconds.
LAGS: list[float] = []
_TICKS = os.sysconf("SC_CLK_TCK")


class Served:
    """A running server on `port`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self._log = process, port, log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def memory(self) -> float:
        """Resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1e3

    @property
    def cpu(self) -> float:
        """Seconds of CPU so far, all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    async def ready(self) -> None:
        """Wait until it answers. Raises `RuntimeError` if it ends first, or takes too long."""
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if (await wire.get(self.port, "/health", seconds=5)).status == 200:
                    return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the server did not start:\n{self.log}")

    async def metric(self, name: str) -> float:
        page = (await wire.get(self.port, "/metrics")).body.decode()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name)

    async def until_idle(self, seconds: float = 60.0) -> float:
        """Wait until the engine runs nothing. How long that took."""
        began = time.monotonic()
        while time.monotonic() - began < seconds and await self.metric("dovetail_engine_running"):
            await asyncio.sleep(0.1)
        return time.monotonic() - began


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


#: oneDNN keeps the kernels of the last 1,024 shapes of products, which come with the lengths of prompts: 650 MB in the
#: end, whatever is in the prompts. With fewer of them, memory that grows is memory that requests took.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}


@contextlib.asynccontextmanager
async def serving(
    *options: str, files: int | None = None, key: str | None = None, output: int | IO[bytes] | None = None
) -> AsyncIterator[Served]:
    """`dovetail serve` with `options`, ready. `files`: how many it may have open. `output`: where it writes."""
    port = free_port()
    environment = {**os.environ, **_ENVIRONMENT}
    if key is not None:
        environment["DOVETAIL_API_KEY"] = key
    with tempfile.TemporaryDirectory() as folder:
        environment["XDG_CACHE_HOME"] = folder
        log = Path(folder) / "log"
        with log.open("wb") as file:
            sink = file if output is None else output
            lags = Path(folder) / "lags"
            command = [
                sys.executable,
                "-m",
                "benchmarks.attack.watchdog",
                str(lags),
                "serve",
                *options,
                "--port",
                str(port),
            ]
            limit = None if files is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment, preexec_fn=limit
            )
            served = Served(process, port, log)
            try:
                await served.ready()
                ready = time.monotonic()
                yield served
                LAGS.append(watchdog.worst(lags, ready, time.monotonic()))
            finally:
                await asyncio.to_thread(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Latencies(msgspec.Struct):
    """Latencies in milliseconds, sorted."""

    sorted_ms: list[float] = []

    def __str__(self) -> str:
        return f"/health p99 {self.p99:.0f} ms, worst {self.worst:.0f} ms"

    @property
    def worst(self) -> float:
        return self.sorted_ms[-1] if self.sorted_ms else 0.0

    @property
    def p99(self) -> float:
        return quantile(self.sorted_ms, 0.99) if self.sorted_ms else 0.0


@contextlib.asynccontextmanager
async def watched(served: Served, *body: str) -> AsyncIterator[Latencies]:
    """How another client fares inside the block, with /health or the chat completion `body`; filled at its end."""
    command = [sys.executable, "-m", "benchmarks.attack.watch", str(served.port), *body]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watcher:
        latencies = Latencies()
        await asyncio.sleep(0.5)  # it starts
        try:
            yield latencies
        finally:
            printed, _ = await asyncio.to_thread(watcher.communicate)
            latencies.sorted_ms = sorted(json.loads(printed))


@contextlib.contextmanager
def connections(opened: list[wire.Connection]) -> Iterator[None]:
    """Closes them at the end."""
    try:
        yield
    finally:
        for connection in opened:
            connection.close()
