"""Workers as the parent sees them: a process for each reader's environment, asked one job at a time."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).parents[2]
_START_SECONDS = 180.0


@dataclass(frozen=True)
class Reader:
    """One row of the tables. `engine` names the worker's module and its environment's folder."""

    title: str
    engine: str
    ids: bool


READERS = (
    Reader("Dovetail, text", "dovetail", ids=False),
    Reader("Dovetail, ids", "dovetail", ids=True),
    Reader("vLLM", "vllm", ids=True),
    Reader("SGLang", "sglang", ids=False),
)


class WorkerError(Exception):
    """A worker cannot start, or has died."""


class Worker:
    """One worker process. It is started again after a job that had to be cut off.

    `command`: what to run; None: the engine's module here, with the Python of its environment.
    """

    def __init__(self, engine: str, environments: Path, command: Sequence[str | Path] | None = None) -> None:
        self._engine = engine
        here = self._here = engine == "dovetail"
        python = Path(sys.executable) if here else environments / engine / "bin" / "python"
        self._command = command or [python, "-m", f"benchmarks.reading.worker_{engine}"]
        self._log = None if here else environments / f"{engine}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        if not Path(self._command[0]).exists():
            raise WorkerError(f"{self._command[0]} is missing; setup.sh makes it, or --only leaves it out")
        self.versions = self._start()

    def _start(self) -> dict[str, str]:
        quiet = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        quiet["PYTHONPATH"] = str(_ROOT / "src") if self._here else ""
        log: IO[bytes] | None = None if self._log is None else self._log.open("wb")
        self._process = subprocess.Popen(
            self._command,
            cwd=_ROOT,
            env=os.environ | quiet,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        if log is not None:
            log.close()
        self._buffer = b""
        hello = self._line(_START_SECONDS)
        if hello is None or "error" in hello:
            self.close()
            reason = "it does not answer" if hello is None else hello["error"]
            raise WorkerError(f"the {self._engine} worker cannot start: {reason} (see {self._log})")
        versions: dict[str, str] = hello["versions"]
        return versions

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The answer to one job; {"over": limit} when it never came."""
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            # A worker minds the limit itself, between deltas and in CPU time: this is for one that is stuck in one.
            answer = self._line(3 * job["limit"] + 60)
        except OSError:
            answer = {"error": "the worker ended"}
        if answer is None:
            answer = {"over": job["limit"]}
            self.close()
        return answer

    def _line(self, seconds: float) -> dict[str, Any] | None:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(seconds):
                    return None
                more = os.read(self._process.stdout.fileno(), 1 << 20)
                if not more:
                    self.close()
                    return {"error": "the worker ended"}
                self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
