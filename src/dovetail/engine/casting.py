"""Conversion of a tensor's type, skipped where there is nothing to convert: even that takes torch half a microsecond,
and a step of a small model had dozens of them."""

from __future__ import annotations

import torch
from torch import Tensor


def cast(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`x` in this type."""
    return x if x.dtype == dtype else x.to(dtype)
