"""When a crashed vLLM is started again: a pure function of the times of its crashes."""

from __future__ import annotations

from collections.abc import Sequence

#: The fifth crash within half an hour is the last. A large model may load for ten minutes before it crashes again.
WINDOW_S = 1800.0
MOST = 5
FIRST_S = 1.0


def delay(crashes: Sequence[float]) -> float | None:
    """Seconds until the next start after `crashes`, of which the last is now; None to give up.

    The delay doubles with each crash in the window: an engine that crashes once a day waits `FIRST_S` each time.
    """
    recent = sum(1 for crash in crashes if crash > crashes[-1] - WINDOW_S)
    return None if recent >= MOST else FIRST_S * 2.0 ** (recent - 1)
