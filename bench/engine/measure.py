"""What the workers have in common: answering jobs, and noting when tokens came. Needs the standard library alone.

An engine is loaded once and then answers sets of prompts, all at once: it calls `Log.note` after each of its steps.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol


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

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Whatever else this engine can tell."""


def serve(load: Callable[[dict[str, Any]], tuple[dict[str, str], Engine]]) -> None:
    """Load what the first line asks for and answer the others, one JSON line each, until standard input ends.

    What a library prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(data: dict[str, Any]) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    try:
        versions, engine = load(json.loads(sys.stdin.readline()))
    except Exception as error:
        traceback.print_exc()
        answer({"error": said(error)})
        return
    answer({"versions": {"python": sys.version.split()[0], **versions}, "settings": engine.settings})
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if job["task"] != "run":
                answer(engine.ask(job))
                continue
            log = Log()
            ids = engine.run(job["prompts"], job["max_tokens"], log)
            answer({"ids": ids, "log": log.lines})
        except Exception as error:
            traceback.print_exc()
            answer({"error": said(error)})


def said(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
