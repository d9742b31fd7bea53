"""`make demo` on a pair with random weights: the calls are nonsense, the figures and the exit code are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_the_demo_runs_without_a_terminal(pair: Path) -> None:
    command = [sys.executable, "-m", "demo", str(pair / "drafter"), "--threads", "1"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    figures = {line[:28].strip(): line[28:].split() for line in done.stdout.splitlines()[-5:]}
    assert figures.keys() == {"speculation", "tokens/s, prompts included", "tokens per step"} | {
        "drafted tokens accepted",
        "same messages",
    }
    assert figures["tokens per step"][0] == "1.00"
    assert figures["same messages"] == ["yes"]


def test_a_server_that_does_not_start_ends_the_demo() -> None:
    command = [sys.executable, "-m", "demo", "nowhere"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("dovetail: there is no folder")
