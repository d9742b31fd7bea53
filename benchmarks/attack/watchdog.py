"""Runs `dovetail` and measures the lag of its event loop: how late the loop runs what is due.

A thread asks every 20 ms whether the loop has run since, and appends a line to a file for each lag above 100 ms: the
moment (`time.monotonic`) and the lag in seconds, which grows line by line while the loop is busy or hangs.
Run: python -m benchmarks.attack.watchdog FILE ARGUMENTS_OF_DOVETAIL…
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

_BEAT_S = 0.02
_LEAST_S = 0.1


class _Watched(asyncio.SelectorEventLoop):
    """An event loop that beats every `_BEAT_S`."""

    beat = 0.0

    def run_forever(self) -> None:
        self._beat()
        super().run_forever()

    def _beat(self) -> None:
        self.beat = time.monotonic()
        self.call_later(_BEAT_S, self._beat)


def _watch(loop: _Watched, file: Path) -> None:
    while not loop.is_closed():
        time.sleep(_BEAT_S)
        now = time.monotonic()
        lag = now - loop.beat - _BEAT_S
        if loop.is_running() and lag > _LEAST_S:
            with file.open("a") as lines:
                lines.write(f"{now} {lag}\n")


def worst(file: Path, since: float, until: float) -> float:
    """The greatest lag in seconds between two moments of `time.monotonic`, from `file`."""
    lines = (line.split() for line in file.read_text().splitlines()) if file.exists() else ()
    return max((float(lag) for at, lag in lines if since <= float(at) - float(lag) <= until), default=0.0)


def main() -> int:
    from dovetail.cli import main as dovetail

    file = Path(sys.argv.pop(1))

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            loop = _Watched()
            threading.Thread(target=_watch, args=(loop, file), daemon=True).start()
            return loop

    asyncio.set_event_loop_policy(Policy())
    return dovetail()


if __name__ == "__main__":
    sys.exit(main())
