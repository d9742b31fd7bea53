"""The measurements of a worker, for any grammar library. This file needs the standard library alone.

Compile times are CPU time of all threads of the process, masks of the calling thread, so other work on the machine does
not count.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks import jobs

Job = dict[str, Any]


class Sequence(Protocol):
    """One sequence under a constraint."""

    def fill(self) -> None:
        """Compute the mask of the next token, in the memory where the peer has it."""

    def advance(self, token: int) -> bool:
        """Take a token; False if it is not allowed."""


class Library(ABC):
    """A grammar library as one peer uses it. A request is {"tools": …, "tag": …, "lark": …}; each peer reads its own
    field."""

    @abstractmethod
    def open(self, job: Job) -> None:
        """Load the vocabulary of `job`, a `Vocabulary.job` with a `family`."""

    @abstractmethod
    def forget(self) -> None:
        """Return to the state after the start, with an empty cache."""

    @abstractmethod
    def start(self, request: Job) -> Sequence:
        """Make the constraint of a request, from its tools to the first token."""

    def write(self, request: Job) -> bool:
        """Only the part of `start` that writes the grammar in the library's language; False if the request has the
        grammar."""
        return False

    def sent(self, request: Job) -> Any:
        """The input of `serve`: a request as a client sends it."""
        return request

    async def serve(self, request: Any) -> None:
        """As `start`, in an event loop, as the peer's own server does it."""
        self.start(request)

    def kept(self) -> int | None:
        """The bytes in the library's cache, as it reports them; None if it does not."""
        return None


def serve(load: Callable[[], tuple[Job, Library]]) -> None:
    """Answer jobs by their `task`. `benchmarks.jobs` defines the protocol."""

    def loaded() -> tuple[Job, Callable[[Job], Job]]:
        hello, library = load()
        return hello, lambda job: _TASKS[job["task"]](library, job)

    jobs.serve(loaded)


def _open(library: Library, job: Job) -> Job:
    """The seconds and bytes that the vocabulary takes."""
    before, begin = _resident(), time.process_time()
    library.open(job)
    return {"seconds": time.process_time() - begin, "bytes": _resident() - before}


def _compile(library: Library, job: Job) -> Job:
    """The seconds from tools to a constraint: with an empty cache, with other tools in it, and with the same tools in
    it."""
    first, *others = job["requests"]
    times: dict[str, list[float]] = {"first": [], "new": [], "again": [], "writing": []}

    def timed(kind: str, request: Job) -> None:
        begin = time.process_time()
        library.start(request)
        times[kind].append(time.process_time() - begin)

    for request in others:
        library.forget()
        timed("first", request)
    library.forget()
    library.start(first)
    for request in others:
        timed("new", request)
    for request in others:
        timed("again", request)
        begin = time.process_time()
        if library.write(request):
            times["writing"].append(time.process_time() - begin)
    return times


def _masks(library: Library, job: Job) -> Job:
    """The seconds of each mask along `ids`, and of the token after it, by pass. The first pass follows `forget`."""
    fills, advances = [], []
    library.forget()
    for _ in range(job["passes"]):
        sequence = library.start(job["request"])
        filled, advanced = [], []
        for place, token in enumerate(job["ids"]):
            begin = time.thread_time()
            sequence.fill()
            between = time.thread_time()
            accepted = sequence.advance(token)
            advanced.append(time.thread_time() - between)
            filled.append(between - begin)
            if not accepted:
                return {"refused": place}
        fills.append(filled)
        advances.append(advanced)
    return {"fill": fills, "advance": advances}


def _memory(library: Library, job: Job) -> Job:
    """The bytes that each grammar adds to the process, compiled and used once, and that each sequence adds."""
    library.forget()
    _walk(library.start(job["requests"][0]), job["ids"][0])
    start, grown = _resident(), []
    for request, ids in zip(job["requests"][1:], job["ids"][1:], strict=True):
        _walk(library.start(request), ids)
        grown.append(_resident() - start)
    before = _resident()
    alive = [library.start(job["requests"][-1]) for _ in range(job["sequences"])]
    for sequence in alive:
        _walk(sequence, job["ids"][-1][:-1])
    return {"grown": grown, "sequence": (_resident() - before) / len(alive), "kept": library.kept()}


def _walk(sequence: Sequence, ids: list[int]) -> None:
    for token in ids:
        sequence.fill()
        sequence.advance(token)


def _loop(library: Library, job: Job) -> Job:
    """How late a task is that wakes up every millisecond in an event loop, while all requests come at once."""

    async def ticking(lags: list[float]) -> None:
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append(time.perf_counter() - begin - 0.001)

    async def direct(request: Job) -> None:
        library.start(request)

    served = job["way"] == "served"
    requests = [library.sent(request) if served else request for request in job["requests"]]

    async def run() -> Job:
        lags: list[float] = []
        ticker = asyncio.create_task(ticking(lags))
        await asyncio.sleep(0.05)
        lags.clear()
        begin = time.perf_counter()
        await asyncio.gather(*map(library.serve if served else direct, requests))
        # A late loop still has ticks to run.
        await asyncio.sleep(0.005)
        whole = time.perf_counter() - begin
        ticker.cancel()
        return {"lags": lags, "seconds": whole}

    library.forget()
    return asyncio.run(run())


def _resident() -> int:
    """The resident bytes of this process, after unused memory is returned to the system."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError):  # not Linux
        return 0


_TASKS = {"open": _open, "compile": _compile, "masks": _masks, "memory": _memory, "loop": _loop}
