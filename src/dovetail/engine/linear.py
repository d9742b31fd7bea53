"""A matrix product with weights packed once, at load: the one place that knows oneDNN.

On a CPU a decode step multiplies 1 to 8 rows by every weight, and MKL's product of a few rows is slow on AMD: by a
256 x 2304 matrix 1 row takes 36 us and 4 rows take 102 us; oneDNN with packed weights takes 38 us and 40 us (one core
of an EPYC 9005, torch 2.13). Verifying four tokens for the price of one depends on this.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# torch's own compiler calls these for every linear layer on a CPU; they are not public, so their absence is no error.
_PACKED: bool = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
_packed_linear: Any = torch.ops.mkldnn._linear_pointwise.default if _PACKED else None

# A call of oneDNN costs 8 us more than one of MKL, which is therefore faster up to this many multiplications: by 96 x
# 384, 4 rows take 5.9 us against 11 us; by 1152 x 256, 1 row takes 14 us against 22 us (4 rows 43 us against 24 us).
_FEW = 400_000


class Linear:
    """``x @ weight.T`` for `x` [rows, in] and `weight` [out, in], without a bias. Small weights are kept both ways."""

    def __init__(self, weight: Tensor) -> None:
        weight = weight.contiguous()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight) if _PACKED else None
        self._rows = _FEW // weight.numel() if _PACKED else sys.maxsize
        self._plain = weight if self._rows else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._plain is not None and x.shape[0] <= self._rows:
            return F.linear(x, self._plain)
        product: Tensor = _packed_linear(x, self._packed, None, "none", [], "")
        return product
