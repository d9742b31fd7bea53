"""The others as the parent sees them: a process in each one's environment, asked one job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


class PeerError(Exception):
    """An environment is missing, or what runs in it failed."""


def ask(engine: str, module: str, job: dict[str, Any], environments: Path) -> dict[str, Any]:
    """What `benchmarks.rendering.MODULE` answers to `job` in the environment of `engine`; Dovetail's is this one."""
    python = Path(sys.executable) if engine == "dovetail" else environments / engine / "bin" / "python"
    if not python.exists():
        raise PeerError(f"{python} is missing; benchmarks/rendering/setup.sh makes it, or --only leaves it out")
    quiet = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    run = subprocess.run(
        [python, "-m", f"benchmarks.rendering.{module}"],
        cwd=_ROOT,
        env=os.environ | quiet,
        input=json.dumps(job),
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )
    if run.returncode:
        last = run.stderr.strip().splitlines()[-1:]
        raise PeerError(f"{engine}: {module} cannot do {job.get('renderer', 'this')}: {' '.join(last)}")
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer
