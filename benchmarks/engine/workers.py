"""The engines that are measured, and their workers: processes with a loaded model, each in its engine's environment."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.worker_process import NotInstalled, WorkerError, WorkerProcess


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
    Peer("llama.cpp", "llama_cpp"),
)


class Worker:
    """A process that has loaded `job`. Raises `WorkerError` if it cannot."""

    def __init__(self, peer: Peer, job: dict[str, Any], pythons: dict[str, Path | None], cache: Path) -> None:
        python = pythons[peer.engine]
        if python is None:
            raise NotInstalled("not installed")
        variables = _environment(peer, python, job["threads"], cache)
        self._process = WorkerProcess(python, f"benchmarks.engine.worker_{peer.engine}", variables)
        try:
            hello = self.ask(job | {"variant": peer.variant})
        except WorkerError:
            self.close()
            raise
        self.versions: dict[str, str] = hello["versions"]
        self.settings: str = hello["settings"]

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The answer to one job."""
        return self._process.send(job)

    def close(self) -> None:
        """End the process."""
        self._process.close()


def pythons(vllm: Path, llama_cpp: Path | None = None) -> dict[str, Path | None]:
    """Each engine's Python; None if it is not installed. transformers runs in this environment, with the same torch."""
    return {
        "dovetail": Path(sys.executable),
        "transformers": Path(sys.executable),
        "llama_cpp": Path(sys.executable) if llama_cpp is not None and llama_cpp.exists() else None,
        "vllm": vllm / "bin" / "python" if (vllm / "bin" / "python").exists() else None,
    }


def _environment(peer: Peer, python: Path, threads: int, cache: Path) -> dict[str, str]:
    return vllm_variables(python, threads, cache, eager=peer.variant == "eager") if peer.engine == "vllm" else {}


def vllm_variables(python: Path, threads: int, cache: Path, *, eager: bool) -> dict[str, str]:
    """What a process with vLLM on CPU needs in its environment. `cache` is a folder for what it compiles."""
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        # In one process it binds no threads, whatever VLLM_CPU_OMP_THREADS_BIND says.
        "OMP_NUM_THREADS": str(threads),
    }
    if eager:
        variables["TORCHDYNAMO_DISABLE"] = "1"
    # The manual advises to preload the OpenMP of its environment.
    openmp = python.parents[1] / "lib" / "libiomp5.so"
    return variables | ({"LD_PRELOAD": str(openmp)} if openmp.exists() else {})
