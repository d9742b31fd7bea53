"""When a crashed engine is started again: a pure function of when it crashed."""

from __future__ import annotations

from collections.abc import Sequence

WINDOW_S = 1800.0  # a large model may take ten minutes to load, and so to crash again
MOST = 5  # crashes in a window, with the last of which it is enough
_FIRST_S = 1.0


def delay(crashes: Sequence[float]) -> float | None:
    """Seconds until the next start, after crashes at these times (the last is now); None: not again.

    Doubles with every crash in the window, so an engine that crashes once a day is always back after the first delay.
    """
    lately = sum(1 for crash in crashes if crash > crashes[-1] - WINDOW_S)
    return None if lately >= MOST else _FIRST_S * 2.0 ** (lately - 1)
