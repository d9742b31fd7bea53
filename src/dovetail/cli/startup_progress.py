"""What a person sees of an engine that starts in another process: one line that changes, and what goes wrong."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from dovetail.backends import vllm
from dovetail.cli.terminal import PROBLEM, visible

_DOING: dict[vllm.Phase, str] = {
    "starting": "vLLM is starting",
    "download": "fetching weights (MB)",
    "load": "loading weights",
    "compile": "compiling",
    "allocate": "allocating the KV cache",
    "capture": "capturing graphs",
    "ready": "ready",
}
_SILENT_S = 60.0


class Watching:
    """On a terminal a line with a bar and the time so far; elsewhere a line for each thing that vLLM begins to do.

    Raises nothing, wherever the console goes: a full disk or a closed pipe is no reason to end what serves.
    """

    def __init__(self, console: Console) -> None:
        reconfigure = getattr(console.file, "reconfigure", None)
        if reconfigure is not None:  # what vLLM says need not be in the terminal's encoding
            reconfigure(errors="replace")
        self._console = console
        self._bar: Progress | None = None
        self._phase: vllm.Phase | None = None
        self._began = 0.0
        self._quiet = 0

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        with _unharmed():
            self._close()

    def progress(self, progress: vllm.Progress, silent: float) -> None:
        with _unharmed():
            self._show(progress, silent)

    def _show(self, progress: vllm.Progress, silent: float) -> None:
        if progress.phase == "ready":
            self._close()
            return
        if self._phase is None:
            self._began = time.monotonic()
            self._quiet = 0
        doing, quiet = _DOING[progress.phase], int(silent // _SILENT_S)
        if self._console.is_terminal:
            self._draw(progress, f"{doing}, silent for {silent:.0f} s" if quiet else doing)
        else:
            so_far = f"after {time.monotonic() - self._began:.0f} s"
            if progress.phase != self._phase:
                self._console.print(doing if self._phase is None else f"{doing}, {so_far}", style="dim")
            elif quiet > self._quiet:
                self._console.print(f"{so_far} vLLM has been silent for {silent:.0f} s", style="dim")
        self._phase, self._quiet = progress.phase, quiet

    def say(self, text: str) -> None:
        with _unharmed():
            self._close()
            for line in text.splitlines():
                self._console.print(Text(visible(line), PROBLEM), soft_wrap=True)

    def _draw(self, progress: vllm.Progress, doing: str) -> None:
        if self._bar is None:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
            self._bar.add_task(doing, total=None)
            self._bar.start()
        mega = 10**6 if progress.phase == "download" else 1
        done, total = (None if each is None else each // mega for each in (progress.done, progress.total))
        self._bar.update(self._bar.task_ids[0], description=doing, completed=done or 0, total=total)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._phase = None, None


@contextlib.contextmanager
def _unharmed() -> Iterator[None]:
    # rich makes a `SystemExit` of a closed pipe, and its console quiet; a closed file is a `ValueError`.
    with contextlib.suppress(OSError, ValueError, SystemExit):
        yield
