"""Runs a client's program against a target, and collects the lines that it prints."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dovetail
from clients import tasks

#: A folder with the tokenizer that all targets have (the scripted ones with more control tokens).
TOKENIZER = Path(dovetail.__file__).parent / "data" / "demo" / "target"
#: Words of a prompt that no target has room for; each is three tokens of theirs.
TOO_LONG_WORDS = 50_000


class Outcome(NamedTuple):
    """What a program printed: what its client saw, or why it failed, by feature; and why the program itself failed."""

    saw: dict[str, Any]
    errors: dict[str, str]
    failed: str | None
    stderr: str


def task(url: str, model: str) -> dict[str, Any]:
    """What a program is told."""
    return {
        "url": url,
        "model": model,
        "hello": tasks.HELLO,
        "count": tasks.COUNT,
        "weather": tasks.WEATHER,
        "both": tasks.BOTH,
        "person_request": tasks.PERSON_REQUEST,
        "weather_tool": tasks.WEATHER_TOOL,
        "partly_enforced_tool": tasks.PARTLY_ENFORCED_TOOL,
        "person_schema": tasks.PERSON_SCHEMA,
        "results": tasks.RESULTS,
        "too_long_words": TOO_LONG_WORDS,
        "edit_request": tasks.edit_request("{path}", "{tools}"),
        "blocks_request": tasks.blocks_request("{path}"),
        "edit_file": tasks.EDIT_FILE,
        "slow": tasks.SLOW,
        "pictures": tasks.PICTURES,
        "sight": tasks.SIGHT,
        "look_request": tasks.look_request("{path}", "{tools}"),
        "look_tool": tasks.LOOK_TOOL,
        "grow_request": tasks.grow_request("{number}", "{tools}"),
        "exam": tasks.EXAM,
        "count_answer": tasks.COUNT_ANSWER,
        "requests": tasks.BENCHMARK_REQUESTS,
        "tokenizer": str(TOKENIZER),
    }


def run(
    command: Sequence[str], folder: Path, url: str, model: str, environment: Mapping[str, str], timeout_s: float
) -> Outcome:
    """Run `command` in the empty folder `folder`, which is its home too."""
    variables = {
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "DOVETAIL_TASK": json.dumps(task(url, model)),
        "NO_PROXY": "127.0.0.1,localhost",
        **environment,
    }
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that everything it starts can be ended with it
    )
    failed = None
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
        if process.returncode:
            failed = f"its program ended with status {process.returncode}"
    except subprocess.TimeoutExpired:
        failed = f"its program took more than {timeout_s:.0f} s"
        _end(process)
        stdout, stderr = process.communicate()
    finally:
        _end(process)
    lines = [json.loads(line) for line in stdout.decode().splitlines() if line.startswith('{"feature"')]
    return Outcome(
        {line["feature"]: line["saw"] for line in lines if "saw" in line},
        {line["feature"]: line["error"] for line in lines if "error" in line},
        failed,
        stderr.decode(errors="replace"),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
