"""One front end under load: what it takes of the CPU, how long answers take, and what a stream holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gateway import load
from benchmarks.gateway.fronts import Front, Running
from dovetail.client.statistics import quantile
from dovetail.client.transport import Arrival

HERE = Path(__file__).parent
Job = dict[str, Any]


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
    _page(port, f"/pace/{pace}")


def streaming(port: int) -> int:
    """How many answers the upstream has begun to write and not ended."""
    return int(_page(port, "/streaming")["count"])


def _page(port: int, path: str) -> Job:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
        page: Job = json.load(reply)
    return page


class Measured:
    """Measures one front end that runs. Its methods raise `RuntimeError` and `NotTested` where an answer is not right.

    `client_us`, or `client_ms`: the CPU of the client, which is in no other figure, for each token or request.
    """

    def __init__(self, front: Front, running: Running, upstream: int, texts: Mapping[int, str]) -> None:
        self._front, self._running, self._upstream, self._texts = front, running, upstream, texts
        self._url = f"http://127.0.0.1:{running.port}"

    def streams(self, count: int, tokens: int, pace: str) -> Job:
        """`count` streams of `tokens` at once: microseconds of CPU a token, tokens a second, time to the first byte.

        `busiest_us`: those of the process that takes most, which says how many tokens a second there could be if each
        process had a core to itself.
        """
        set_pace(self._upstream, pace)
        arrivals, cpus, client = self._timed(load.at_once(self._url, self._front.path, self._body(tokens), count))
        self._check(arrivals, tokens)
        made = count * tokens
        return {
            "cpu_us": sum(cpus) / made * 1e6,
            "busiest_us": max(cpus) / made * 1e6,
            "rate": made / _seconds(arrivals),
            "first_ms": statistics.median(arrival.pieces[0][0] - arrival.sent for arrival in arrivals) * 1e3,
            "tokens_a_read": made / sum(len(arrival.pieces) for arrival in arrivals),
            "client_us": client / made * 1e6,
        }

    def single(self, count: int, *, keep: bool) -> Job:
        """`count` requests for one token, one after the other: percentiles in milliseconds, and CPU."""
        set_pace(self._upstream, "whole")
        body = self._body(1) | {"stream": False}
        arrivals, cpus, client = self._timed(load.one_by_one(self._url, self._front.path, body, count, keep=keep))
        self._check(arrivals, 1)
        seconds = sorted(map(load.latency, arrivals))
        return {
            "p50_ms": quantile(seconds, 0.5) * 1e3,
            "p99_ms": quantile(seconds, 0.99) * 1e3,
            "cpu_ms": sum(cpus) / count * 1e3,
            "client_ms": client / count * 1e3,
        }

    def held(self, count: int, tokens: int, pace: str) -> Job:
        """`count` slow streams at once: memory of each, and how long /health takes meanwhile."""
        set_pace(self._upstream, pace)
        before, health = self._running.memory(), list[float]()
        (arrivals, memory), _, client = self._timed(self._held(count, tokens, health))
        self._check(arrivals, tokens)
        if not health:
            raise RuntimeError("the streams ended before /health was answered")
        health.sort()
        return {
            "memory_kb": (memory - before) / count / 1024,
            "health_p50_ms": quantile(health, 0.5) * 1e3,
            "health_p99_ms": quantile(health, 0.99) * 1e3,
            "health_worst_ms": health[-1] * 1e3,
            "asked": len(health),
            "rate": count * tokens / _seconds(arrivals),
            "client_us": client / (count * tokens) * 1e6,
        }

    async def _held(self, count: int, tokens: int, health: list[float]) -> tuple[list[Arrival], int]:
        """The streams, and the memory of the front end once all of them have begun; /health is asked for from then."""
        asked = asyncio.create_task(load.at_once(self._url, self._front.path, self._body(tokens), count))
        while not asked.done() and await asyncio.to_thread(streaming, self._upstream) < count:
            await asyncio.sleep(0.05)
        asking = asyncio.create_task(load.page_latencies(self._url, "/health", health))
        memory = await asyncio.to_thread(self._running.memory)
        try:
            return await asked, memory
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    def _timed(self, work: Coroutine[Any, Any, Any]) -> tuple[Any, list[float], float]:
        """The result of `work`, and the seconds of CPU that each process of the front end took, and the client."""
        before, own = self._running.cpu(), time.process_time()
        result = asyncio.run(work)
        cpus = [seconds - before.get(pid, 0.0) for pid, seconds in self._running.cpu().items()]
        return result, cpus, time.process_time() - own

    def _body(self, tokens: int) -> Job:
        return {**self._front.body, "max_tokens": tokens, "stream": True}

    def _check(self, arrivals: Sequence[Arrival], tokens: int) -> None:
        """Every answer is what the upstream sent. Raises `RuntimeError`."""
        answers = sorted({load.text_of(arrival.reply) for arrival in arrivals})
        wanted = len(answers) == 1 and (self._front.own_engine or answers[0] == self._texts[tokens])
        if not wanted:
            raise RuntimeError(f"an answer is not what the upstream sent: {answers[0][-200:]!r}")


def _seconds(arrivals: Sequence[Arrival]) -> float:
    """From when the first request was written to the end of the last answer."""
    return max(arrival.pieces[-1][0] for arrival in arrivals) - min(arrival.sent for arrival in arrivals)
