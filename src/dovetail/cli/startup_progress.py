"""What a person sees while an engine starts in another process: its progress, and what goes wrong."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from dovetail.backends import supervised
from dovetail.cli.terminal import PROBLEM, visible

_PHASES: dict[supervised.Phase, str] = {
    "starting": "{engine} is starting",
    "download": "fetching weights (MB)",
    "load": "loading weights",
    "compile": "compiling",
    "allocate": "allocating the KV cache",
    "capture": "capturing graphs",
    "ready": "ready",
}
_SILENT_S = 60.0  # after so long without output, the progress says so


class StartupProgress:
    """On a terminal, one line with a bar and the time; elsewhere, a line for each phase.

    `engine`: its name. Nothing is raised, wherever the console writes: a full disk or a closed pipe must not end the
    server.
    """

    def __init__(self, console: Console, engine: str) -> None:
        reconfigure = getattr(console.file, "reconfigure", None)
        if reconfigure is not None:  # the engine's output may have characters that the terminal's encoding has not
            reconfigure(errors="replace")
        self._console, self._engine = console, engine
        self._bar: Progress | None = None
        self._phase: supervised.Phase | None = None
        self._started = 0.0
        self._silences = 0

    def __enter__(self) -> StartupProgress:
        return self

    def __exit__(self, *_: object) -> None:
        with errors_ignored():
            self._close()

    def progress(self, progress: supervised.Progress, silent: float) -> None:
        """Show `progress`; the engine has written nothing for `silent` seconds."""
        with errors_ignored():
            self._show(progress, silent)

    def _show(self, progress: supervised.Progress, silent: float) -> None:
        if progress.phase == "ready":
            self._close()
            return
        if self._phase is None:
            self._started = time.monotonic()
            self._silences = 0
        text, silences = _PHASES[progress.phase].format(engine=self._engine), int(silent // _SILENT_S)
        if self._console.is_terminal:
            self._draw(progress, f"{text}, silent for {silent:.0f} s" if silences else text)
        else:
            elapsed = f"after {time.monotonic() - self._started:.0f} s"
            if progress.phase != self._phase:
                self._console.print(text if self._phase is None else f"{text}, {elapsed}", style="dim")
            elif silences > self._silences:
                self._console.print(f"{elapsed} {self._engine} has been silent for {silent:.0f} s", style="dim")
        self._phase, self._silences = progress.phase, silences

    def say(self, text: str) -> None:
        """Print the lines of `text` as a problem."""
        with errors_ignored():
            self._close()
            for line in text.splitlines():
                self._console.print(Text(visible(line), PROBLEM), soft_wrap=True)

    def _draw(self, progress: supervised.Progress, text: str) -> None:
        if self._bar is None:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
            self._bar.add_task(text, total=None)
            self._bar.start()
        unit = 10**6 if progress.phase == "download" else 1
        done, total = (None if count is None else count // unit for count in (progress.done, progress.total))
        self._bar.update(self._bar.task_ids[0], description=text, completed=done or 0, total=total)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._phase = None, None


@contextlib.contextmanager
def errors_ignored() -> Iterator[None]:
    """Ignore that the console's file is closed or its disk full."""
    # For a closed pipe rich raises `SystemExit` and silences its console; a closed file is a `ValueError`.
    with contextlib.suppress(OSError, ValueError, SystemExit):
        yield
