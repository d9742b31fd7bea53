"""How fast the machine's memory can be read: with which every engine's speed with one sequence is compared."""

from __future__ import annotations

import time

import torch


def bandwidth() -> float:
    """Bytes per second that torch's threads read from memory: the best of a few sums over 512 MB."""
    data = torch.ones(1 << 27)
    best = 0.0
    for _ in range(5):
        before = time.perf_counter()
        data.sum()
        best = max(best, data.nbytes / (time.perf_counter() - before))
    return best
