"""The front ends that are measured, each a process of its own in an environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_TICK = os.sysconf("SC_CLK_TCK")
_READY_S = 180


class Missing(Exception):
    """A front end that cannot be run here, and why."""


class Front(NamedTuple):
    """How a front end is started.

    `command`: of its port and the upstream's. `python`: that has its distribution `package`, for its version. `path`,
    `body`: the request that it is sent, without its number of tokens. `own_engine`: it has an engine of its own, in
    processes that it starts and that do not count, and not the upstream.
    `most`: the most streams at once that it is measured with, where more would take minutes.
    """

    name: str
    command: Callable[[int, int], Sequence[str]]
    python: Path
    package: str
    path: str = "/v1/chat/completions"
    body: Mapping[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Go on."}]}
    environment: Mapping[str, str] = {}
    own_engine: bool = False
    most: int = 1_000_000

    def version(self) -> str:
        """The version of its distribution. Raises `Missing`."""
        if not self.python.exists():
            raise Missing(f"there is no {self.python}")
        code = f"from importlib.metadata import version; print(version({self.package!r}))"
        asked = subprocess.run([self.python, "-c", code], capture_output=True, text=True)
        if asked.returncode:
            raise Missing(f"{self.package} is not installed beside {self.python}")
        return asked.stdout.strip()


class Running:
    """A front end that runs. `port`: where it listens."""

    def __init__(self, front: Front, process: subprocess.Popen[bytes], port: int) -> None:
        self._front = front
        self._process = process
        self.port = port

    def cpu(self) -> dict[int, float]:
        """Seconds of CPU that each of its processes has taken."""
        return {pid: _cpu(pid) for pid in self._pids()}

    def memory(self) -> int:
        """Bytes of memory that its processes have of their own (Linux, "Pss")."""
        return sum(map(_memory, self._pids()))

    def _pids(self) -> list[int]:
        root = self._process.pid
        return [root] if self._front.own_engine else _tree(root)


@contextlib.contextmanager
def running(front: Front, upstream: int, log: Path) -> Iterator[Running]:
    """Start `front` and wait until it answers. Raises `Missing` if it does not."""
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(front.command(port, upstream)),
            stdout=output,
            stderr=output,
            env={**os.environ, **front.environment},
            start_new_session=True,
        )
    try:
        _wait(process, port, front, log)
        yield Running(front, process, port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int, front: Front, log: Path) -> None:
    data = json.dumps({**front.body, "max_tokens": 1}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{front.path}", data, {"Content-Type": "application/json"})
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10):
            return
        time.sleep(0.5)
    lines = log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
    raise Missing(f"it does not answer: {lines[-1][:200]}")


def _tree(root: int) -> list[int]:
    """`root` and its descendants."""
    pids = [root]
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK
    return 0.0


def _memory(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def dovetail(name: str) -> Front:
    """Dovetail in front of the upstream."""

    def command(port: int, upstream: int) -> Sequence[str]:
        serve = [sys.executable, "-m", "dovetail", "serve", "--engine", f"http://127.0.0.1:{upstream}"]
        # The upstream reads no grammar, which Dovetail would notice when it starts.
        return [*serve, "--port", str(port), "--strict", "off", "--served-model-name", "m"]

    return Front(name, command, Path(sys.executable), "dovetail")


def litellm(folder: Path, configs: Path) -> Front:
    """LiteLLM's proxy with one worker."""
    binary = folder / "litellm/bin"

    def command(port: int, upstream: int) -> Sequence[str]:
        model = {"model": "openai/m", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
        config = configs / "litellm.yaml"
        settings = {"dangerously_permit_weak_or_unset_master_key": True}  # without it, clients need a key
        models = [{"model_name": "m", "litellm_params": model}]
        config.write_text(json.dumps({"model_list": models, "general_settings": settings}))
        return [str(binary / "litellm"), "--config", str(config), "--port", str(port), "--num_workers", "1"]

    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LITELLM_LOG": "ERROR"}
    return Front("LiteLLM", command, binary / "python", "litellm", environment=quiet, most=32)


def router(folder: Path) -> Front:
    """vLLM's router, which is written in Rust and passes bytes on."""
    binary = folder / "router/bin"

    def command(port: int, upstream: int) -> Sequence[str]:
        worker = f"http://127.0.0.1:{upstream}"
        return [str(binary / "vllm-router"), "--worker-urls", worker, "--port", str(port), "--log-level", "warning"]

    return Front("vllm-router", command, binary / "python", "vllm-router")


def vllm(environment: Path, model: Path, work: Path) -> Front:
    """vLLM's own API server. Its engine is a process of its own, which is left out."""
    python = environment / "bin/python"

    def command(port: int, upstream: int) -> Sequence[str]:
        server = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
        server += ["--enforce-eager", "--max-model-len", "1024", "--dtype", "float32", "--served-model-name", "m"]
        return [*server, "--disable-uvicorn-access-log", "--max-num-seqs", "256"]

    variables = {
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(work / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        "TMPDIR": str(work),
    }
    body = {"model": "m", "prompt": "Go on.", "ignore_eos": True, "temperature": 0}
    return Front(
        "vLLM's API server",
        command,
        python,
        "vllm",
        "/v1/completions",
        body,
        environment=variables,
        own_engine=True,
        most=32,
    )
