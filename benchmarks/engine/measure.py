"""What the workers have in common: answering jobs, and noting when tokens came. Needs the standard library alone.

An engine is loaded once and then answers sets of prompts, all at once: it calls `Log.note` after each of its steps.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from benchmarks import jobs
from benchmarks.jobs import Job


class Log:
    """When tokens came: for each step the seconds since the start, and how many tokens each sequence has by then."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, list[int]]] = []
        self._start = perf_counter()

    def note(self, counts: list[int]) -> None:
        """A step is over, and sequence i has `counts[i]` new tokens in all."""
        self.lines.append((perf_counter() - self._start, counts))


class Engine(Protocol):
    """A loaded model. `settings` says how it was loaded, for the reader of the table."""

    settings: str

    def run(self, prompts: list[list[int]], max_tokens: int, log: Log) -> list[list[int]]:
        """Answer all prompts greedily with `max_tokens` ids each."""

    def ask(self, job: Job) -> Job:
        """Whatever else this engine can tell."""


def serve(load: Callable[[Job], tuple[dict[str, str], Engine]]) -> None:
    """Load what the first line asks for and answer the others."""

    def loaded() -> tuple[Job, Callable[[Job], Job]]:
        versions, engine = load(json.loads(sys.stdin.readline()))
        gc.collect()
        gc.freeze()
        return {"versions": versions, "settings": engine.settings}, functools.partial(_answer, engine)

    jobs.serve(loaded)


def _answer(engine: Engine, job: Job) -> Job:
    if job["task"] != "run":
        return engine.ask(job)
    log = Log()
    ids = engine.run(job["prompts"], job["max_tokens"], log)
    return {"ids": ids, "log": log.lines}
