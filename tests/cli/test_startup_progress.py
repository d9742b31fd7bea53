"""The progress display while vLLM starts."""

from __future__ import annotations

import io

from rich.console import Console

from dovetail.backends.supervised import Progress
from dovetail.cli.startup_progress import StartupProgress


def shown(*steps: tuple[Progress, float], terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, _environ={})
    with StartupProgress(console, "vLLM") as progress_line:
        for progress, silent in steps:
            progress_line.progress(progress, silent)
        progress_line.say("one\ntwo \x1b[2J")
    return file.getvalue()


STARTING, LOADING, READY = Progress("starting"), Progress("load", 28, 62), Progress("ready")


def test_a_terminal_shows_one_changing_line() -> None:
    seen = shown((STARTING, 0), (LOADING, 0), terminal=True)
    assert "loading weights" in seen and "28/62" in seen
    seen = shown((STARTING, 95), terminal=True)
    assert "vLLM is starting, silent for 95 s" in seen
    seen = shown((Progress("download", 3_000_000_000, 8_000_000_000), 0), terminal=True)
    assert "fetching weights (MB)" in seen and "3000/8000" in seen


def test_elsewhere_each_phase_has_a_line() -> None:
    seen = shown((STARTING, 0), (LOADING, 0), (LOADING, 1), (LOADING, 61), (LOADING, 62), (READY, 0), terminal=False)
    assert seen.splitlines() == [
        "vLLM is starting",
        "loading weights, after 0 s",
        "after 0 s vLLM has been silent for 61 s",
        "one",
        "two ␛[2J",
    ]


def test_engine_output_cannot_control_the_terminal() -> None:
    assert "\x1b[2J" not in shown(terminal=True)
