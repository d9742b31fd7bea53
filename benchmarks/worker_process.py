"""A worker as its parent uses it: a process in an engine's own environment, which does one job at a time.

`jobs.serve` is the worker's side.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]


class WorkerError(Exception):
    """A worker cannot do its job. The message says why."""


class NotInstalled(WorkerError):
    """The engine has no environment."""


class WorkerProcess:
    """A process that runs `module` with a Python, in this environment with `variables` changed."""

    def __init__(self, python: Path, module: str, variables: Mapping[str, str]) -> None:
        if not python.exists():
            raise NotInstalled("not installed")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        self._process = subprocess.Popen(
            [python, "-m", module],
            cwd=_ROOT,
            env={**os.environ, **variables, "HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            encoding="utf-8",
        )

    def send(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one job. Raises `WorkerError` with the worker's reason, or with its last printed line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerError(f"ended: {self._last_line()}") from error
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """The worker's next line, such as the one that it writes when it has loaded. Raises as `send`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"ended: {self._last_line()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else "it printed nothing"
