"""Waits for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
