"""A worker's end of the line to its parent: JSON in, JSON out. Needs the standard library alone."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

Job = dict[str, Any]


def serve(load: Callable[[], tuple[Job, Callable[[Job], Job]]]) -> None:
    """Answer jobs, one JSON line each, until standard input ends. What fails is answered by {"error": why}.

    `load` gives what to say first (`versions` of what is used, at least) and what answers a job. What a library prints
    goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(data: Job) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    try:
        hello, answered = load()
    except Exception as error:
        traceback.print_exc()
        answer(_failure(error))
        return
    versions = {"python": sys.version.split()[0], **hello["versions"]}
    answer(hello | {"versions": versions})
    for line in sys.stdin:
        try:
            answer(answered(json.loads(line)))
        except Exception as error:
            traceback.print_exc()
            answer(_failure(error))


def _failure(error: Exception) -> Job:
    return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
