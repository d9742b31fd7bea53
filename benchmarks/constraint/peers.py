"""The peers that are measured, and their workers, each in a process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.constraint.model_tags import MODEL_TAGS
from benchmarks.worker_process import WorkerError, WorkerProcess


@dataclass(frozen=True)
class Peer:
    """One row of the tables: who writes the grammar, and who runs it. `engine` names the worker's module."""

    title: str
    engine: str
    variant: str

    def can(self, family: str) -> bool:
        return self.variant != "own" or family in MODEL_TAGS


PEERS = (
    Peer("Dovetail: Lark, llguidance", "dovetail", "lark"),
    Peer("Dovetail's tag, xgrammar", "xgrammar", "tag"),
    Peer("xgrammar's own tag", "xgrammar", "own"),
    Peer("vLLM: its own tag, xgrammar", "vllm", "own"),
    Peer("vLLM: Dovetail's tag, xgrammar", "vllm", "tag"),
    Peer("vLLM: Dovetail's Lark, guidance", "vllm", "lark"),
)
ENGINES = tuple(dict.fromkeys(peer.engine for peer in PEERS))


class Worker:
    """A process that has loaded its library. Raises `WorkerError` if it cannot."""

    def __init__(self, peer: Peer, vllm: Path) -> None:
        python = vllm / "bin" / "python" if peer.engine == "vllm" else Path(sys.executable)
        quiet = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1"}
        self._process = WorkerProcess(python, f"benchmarks.constraint.worker_{peer.engine}", quiet)
        self._variant = peer.variant
        try:
            self.versions: dict[str, str] = self._process.receive()["versions"]
        except WorkerError:
            self.close()
            raise

    def ask(self, task: str, **job: Any) -> dict[str, Any]:
        """The answer to one job."""
        return self._process.send({"task": task, "variant": self._variant, **job})

    def close(self) -> None:
        """End the process."""
        self._process.close()
