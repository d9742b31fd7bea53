"""What a worker measures, whatever grammar library is behind it. Needs the standard library alone.

Compile and masks are CPU time (of all threads of the process, and of the calling thread), so that what else the machine
does is not in them.
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
        """Compute the mask of what may come next, where the library's caller has it computed."""

    def advance(self, token: int) -> bool:
        """Take a token; False if it is not allowed."""


class Library(ABC):
    """A grammar library as one peer uses it. A request is {"tools": …, "tag": …, "lark": …}; each has its own of it."""

    @abstractmethod
    def open(self, job: Job) -> None:
        """Take up the vocabulary of `job`, which is a `Vocabulary.job` with a `family`."""

    @abstractmethod
    def forget(self) -> None:
        """Be as after the start: nothing compiled."""

    @abstractmethod
    def start(self, request: Job) -> Sequence:
        """A request's constraint, from its tools to the first token."""

    def write(self, request: Job) -> bool:
        """Of `start`, only write the grammar in the library's language; False where somebody else has written it."""
        return False

    def sent(self, request: Job) -> Any:
        """What `serve` is given: a request as a client has it ready."""
        return request

    async def serve(self, request: Any) -> None:
        """The same as `start` in a server's event loop, as the peer's own server has it."""
        self.start(request)

    def kept(self) -> int | None:
        """Bytes that the library says its cache has; None if it does not say."""
        return None


def serve(load: Callable[[], tuple[Job, Library]]) -> None:
    """Answer jobs by their `task`; `benchmarks.jobs` has the lines."""

    def loaded() -> tuple[Job, Callable[[Job], Job]]:
        hello, library = load()
        return hello, lambda job: _TASKS[job["task"]](library, job)

    jobs.serve(loaded)


def _open(library: Library, job: Job) -> Job:
    """Seconds and bytes that the vocabulary takes."""
    before, begin = _resident(), time.process_time()
    library.open(job)
    return {"seconds": time.process_time() - begin, "bytes": _resident() - before}


def _compile(library: Library, job: Job) -> Job:
    """Seconds from tools to a constraint: with nothing compiled, with others compiled, and for the same once more."""
    first, *others = job["requests"]
    found: dict[str, list[float]] = {"first": [], "new": [], "again": [], "writing": []}

    def timed(kind: str, request: Job) -> None:
        begin = time.process_time()
        library.start(request)
        found[kind].append(time.process_time() - begin)

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
            found["writing"].append(time.process_time() - begin)
    return found


def _masks(library: Library, job: Job) -> Job:
    """Seconds of each mask along `ids`, and of taking the token behind it, by pass; the first after `forget`."""
    fills, advances = [], []
    library.forget()
    for _ in range(job["passes"]):
        sequence = library.start(job["request"])
        filled, advanced = [], []
        for place, token in enumerate(job["ids"]):
            begin = time.thread_time()
            sequence.fill()
            between = time.thread_time()
            taken = sequence.advance(token)
            advanced.append(time.thread_time() - between)
            filled.append(between - begin)
            if not taken:
                return {"refused": place}
        fills.append(filled)
        advances.append(advanced)
    return {"fill": fills, "advance": advances}


def _memory(library: Library, job: Job) -> Job:
    """Bytes by which the process grows with each grammar, compiled and used once, and with each sequence more."""
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
    """How late an event loop is with a task that wakes up every millisecond, while all requests come at once."""

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
        # A loop that was held up has ticks that are yet to come.
        await asyncio.sleep(0.005)
        whole = time.perf_counter() - begin
        ticker.cancel()
        return {"lags": lags, "seconds": whole}

    library.forget()
    return asyncio.run(run())


def _resident() -> int:
    """Bytes of this process in memory, without what could be given back."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError):  # not Linux
        return 0


_TASKS = {"open": _open, "compile": _compile, "masks": _masks, "memory": _memory, "loop": _loop}
