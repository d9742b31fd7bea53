"""The peers that are measured, and their workers as the parent uses them: a process each, with one job at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.constraint.model_tags import MODEL_TAGS

_ROOT = Path(__file__).parents[2]


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


class PeerError(Exception):
    """A worker cannot do its job; the message says why."""


class Worker:
    """A process that has loaded its library. Raises `PeerError` when it could not."""

    def __init__(self, peer: Peer, vllm: Path) -> None:
        python = vllm / "bin" / "python" if peer.engine == "vllm" else Path(sys.executable)
        if not python.exists():
            raise PeerError("not installed")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        quiet = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.constraint.worker_{peer.engine}"],
            cwd=_ROOT,
            env=os.environ | quiet | {"TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            encoding="utf-8",
        )
        self._variant = peer.variant
        try:
            self.versions: dict[str, str] = self._answer()["versions"]
        except PeerError:
            self.close()
            raise

    def ask(self, task: str, **job: Any) -> dict[str, Any]:
        """The answer to one job."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"task": task, "variant": self._variant, **job}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError(f"ended: {self._last_words()}") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
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
