"""Busy neighbours: processes that multiply matrices beside a measurement, each with one thread; and an interval."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence

_BUSY = "import torch; torch.set_num_threads(1); a = torch.rand(600, 600)\nwhile True: a @ a"


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many busy processes until the block ends."""
    with contextlib.ExitStack() as running:
        for _ in range(count):
            process = running.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY]))
            running.callback(process.kill)
        yield


def interval(values: Sequence[float]) -> tuple[float, float]:
    """About where the median is in 95 of 100 such samples, by order: all of the range where there are few."""
    ordered, outside = sorted(values), max(0, math.floor((len(values) - 1.96 * math.sqrt(len(values))) / 2))
    return ordered[outside], ordered[-1 - outside]
