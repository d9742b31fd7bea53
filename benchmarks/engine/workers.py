"""Workers as the parent sees them: a process with a loaded model, in its engine's environment, asked job by job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Peer:
    """One row of the tables: an engine, or an engine as it is set up one way."""

    title: str
    engine: str
    variant: str = ""


PEERS = (
    Peer("Dovetail", "dovetail"),
    Peer("Dovetail, gated", "dovetail", "gated"),
    Peer("transformers", "transformers"),
    Peer("vLLM", "vllm", "compiled"),
    Peer("vLLM, eager", "vllm", "eager"),
)


class WorkerError(Exception):
    """A worker cannot do what it was asked; the message says why."""


class NotInstalled(WorkerError):
    """There is no environment for this engine."""


class Worker:
    """A process that has loaded `job`. Raises `WorkerError` when it could not."""

    def __init__(self, peer: Peer, job: dict[str, Any], pythons: dict[str, Path | None], cache: Path) -> None:
        python = pythons[peer.engine]
        if python is None:
            raise NotInstalled("not installed")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.engine.worker_{peer.engine}"],
            cwd=_ROOT,
            env=os.environ | _environment(peer, python, job["threads"], cache),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            encoding="utf-8",
        )
        try:
            hello = self.ask(job | {"variant": peer.variant})
        except WorkerError:
            self.close()
            raise
        self.versions: dict[str, str] = hello["versions"]
        self.settings: str = hello["settings"]

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The answer to one job."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise WorkerError(f"ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else "nothing said"


def pythons(vllm: Path) -> dict[str, Path | None]:
    """Where each engine's Python is, if it is. transformers runs in this environment: with the same torch."""
    return {
        "dovetail": Path(sys.executable),
        "transformers": Path(sys.executable),
        "vllm": vllm / "bin" / "python" if (vllm / "bin" / "python").exists() else None,
    }


def _environment(peer: Peer, python: Path, threads: int, cache: Path) -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "TOKENIZERS_PARALLELISM": "false"}
    if peer.engine != "vllm":
        return quiet
    found = quiet | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        # In one process it binds no threads, whatever VLLM_CPU_OMP_THREADS_BIND says.
        "OMP_NUM_THREADS": str(threads),
    }
    if peer.variant == "eager":
        found["TORCHDYNAMO_DISABLE"] = "1"
    # Its manual's advice, for the OpenMP that its environment brings.
    openmp = python.parents[1] / "lib" / "libiomp5.so"
    return found | ({"LD_PRELOAD": str(openmp)} if openmp.exists() else {})
