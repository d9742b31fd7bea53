"""One front end under load: what it takes of the CPU, how long answers take, and what a stream holds."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gateway.fronts import Front, Running

HERE = Path(__file__).parent
Job = dict[str, Any]


class Load:
    """The load client, a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, job: Job) -> Job:
        """Do one job of `load.py`. Raises `RuntimeError` if it failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        result: Job = json.loads(self._process.stdout.readline())
        if "error" in result:
            raise RuntimeError(result["error"])
        return result


@contextlib.contextmanager
def load_client() -> Iterator[Load]:
    command = [sys.executable, HERE / "load.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Load(process)
        finally:
            process.kill()


@contextlib.contextmanager
def upstream(tokens: Sequence[tuple[int, str]], folder: Path) -> Iterator[int]:
    """The port of an upstream that answers with `tokens`."""
    path = folder / "tokens.json"
    path.write_text(json.dumps(tokens))
    command = [sys.executable, HERE / "upstream.py", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def set_pace(port: int, pace: str) -> None:
    """How the upstream writes answers from now on; see `upstream.py`."""
    urllib.request.urlopen(f"http://127.0.0.1:{port}/pace/{pace}", timeout=10).close()


class Measured:
    """Measures one front end that runs."""

    def __init__(self, front: Front, running: Running, load: Load, upstream: int, texts: Mapping[int, str]) -> None:
        self._front, self._running, self._load, self._upstream, self._texts = front, running, load, upstream, texts

    def streams(self, count: int, tokens: int, pace: str) -> Job:
        """`count` streams of `tokens` at once: microseconds of CPU a token, tokens a second, time to the first byte.

        `busiest_us`: those of the process that takes most, which says how many tokens a second there could be if each
        process had a core to itself.
        """
        set_pace(self._upstream, pace)
        job = self._job(tokens) | {"streams": count}
        result, cpus = self._timed(job)
        self._check(result, tokens)
        made = count * tokens
        return {
            "cpu_us": sum(cpus) / made * 1e6,
            "busiest_us": max(cpus) / made * 1e6,
            "rate": made / result["seconds"],
            "first_ms": statistics.median(result["first"]) * 1e3,
            "tokens_a_read": made / result["reads"],
        }

    def single(self, count: int, *, keep: bool) -> Job:
        """`count` requests for one token, one after the other: percentiles in milliseconds, and CPU."""
        set_pace(self._upstream, "whole")
        job = self._job(1) | {"one_by_one": count, "keep": keep}
        job["body"]["stream"] = False
        result, cpus = self._timed(job)
        self._check(result, 1)
        seconds = result["latencies"]
        return {
            "p50_ms": percentile(seconds, 0.5) * 1e3,
            "p99_ms": percentile(seconds, 0.99) * 1e3,
            "cpu_ms": sum(cpus) / count * 1e3,
        }

    def held(self, count: int, tokens: int, pace: str, folder: Path) -> Job:
        """`count` slow streams at once: memory of each, and how long /health takes meanwhile."""
        set_pace(self._upstream, pace)
        flag = folder / "all-streaming"
        flag.unlink(missing_ok=True)
        before, seen = self._running.memory(), [0]
        watch = threading.Thread(target=lambda: seen.append(self._memory_once(flag)))
        watch.start()
        result = self._load.run(self._job(tokens) | {"streams": count, "health": "/health", "within": str(flag)})
        flag.touch()
        watch.join()
        self._check(result, tokens)
        health = result["health"]
        return {
            "memory_kb": (seen[-1] - before) / count / 1024,
            "health_p50_ms": percentile(health, 0.5) * 1e3,
            "health_p99_ms": percentile(health, 0.99) * 1e3,
            "health_worst_ms": max(health) * 1e3,
            "asked": len(health),
            "rate": count * tokens / result["seconds"],
        }

    def _timed(self, job: Job) -> tuple[Job, list[float]]:
        """Do `job`. Returns its result, and the seconds of CPU that each process of the front end took meanwhile."""
        before = self._running.cpu()
        result = self._load.run(job)
        return result, [seconds - before.get(pid, 0.0) for pid, seconds in self._running.cpu().items()]

    def _memory_once(self, flag: Path) -> int:
        while not flag.exists():
            time.sleep(0.05)
        return self._running.memory()

    def _job(self, tokens: int) -> Job:
        body = {**self._front.body, "max_tokens": tokens, "stream": True}
        return {"port": self._running.port, "path": self._front.path, "body": body}

    def _check(self, result: Job, tokens: int) -> None:
        """Every answer is what the upstream sent. Raises `RuntimeError`."""
        answers = result["answers"]
        wanted = len(answers) == 1 and (self._front.own_engine or answers[0] == self._texts[tokens])
        if not wanted:
            raise RuntimeError(f"an answer is not what the upstream sent: {answers[0][-200:]!r}")


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of `values` are at most."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
