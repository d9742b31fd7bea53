"""What paged attention kinds share: the mask inside a window, and when a window counts as a prompt."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

# Windows longer than this that start a sequence are prompts, and take the fused kernel. Drafts never make one so long.
PREFILL = 16


@functools.lru_cache(maxsize=64)
def causal_mask(length: int) -> Tensor:
    """0 where query i may see key j of the same window (j <= i), -inf elsewhere: float32 [length, length]."""
    return torch.full((length, length), -math.inf).triu_(1)
