"""A matrix product with weights packed once, at load: the one place that knows oneDNN.

On a CPU a decode step multiplies 1 to 8 rows by every weight, and MKL's product of a few rows is slow on AMD: by a
256 x 2304 matrix 1 row takes 36 us and 4 rows take 102 us; oneDNN with packed weights takes 38 us and 40 us (one core
of an EPYC 9005, torch 2.13). Verifying four tokens for the price of one depends on this.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Quantization = Literal["int8"]

# torch's own compiler calls these for every linear layer on a CPU; they are not public, so their absence is no error.
_PACKED: bool = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
_packed_linear: Any = torch.ops.mkldnn._linear_pointwise.default if _PACKED else None
# Without VNNI, oneDNN adds pairs of 8 bit products in 16 bits, which overflow.
_PACKED_INT8: bool = _PACKED and hasattr(torch.ops.onednn, "qlinear_pointwise") and torch.cpu._is_vnni_supported()

# A call of oneDNN costs 8 us more than one of MKL, which is therefore faster up to this many multiplications: by 96 x
# 384, 4 rows take 5.9 us against 11 us; by 1152 x 256, 1 row takes 14 us against 22 us (4 rows 43 us against 24 us).
_FEW = 400_000


class Linear:
    """``x @ weight.T + bias`` for `x` [rows, in], `weight` [out, in], `bias` [out] or None; `x` has `weight`'s dtype.

    Small weights are kept both ways. With `quantization` "int8" the weight is held in 8 bits (see `_Int8`).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, quantization: Quantization | None = None) -> None:
        self._bias = bias
        self._int8 = _Int8(weight, bias) if quantization == "int8" else None
        if self._int8 is not None:
            return
        weight = weight.contiguous()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight) if _PACKED else None
        self._rows = _FEW // weight.numel() if _PACKED else sys.maxsize
        self._plain = weight if self._rows else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._int8 is not None:
            return self._int8(x)
        if self._plain is not None and x.shape[0] <= self._rows:
            return F.linear(x, self._plain, self._bias)
        product: Tensor = _packed_linear(x, self._packed, self._bias, "none", [], "")
        return product


# x / max|x| as a whole number of at most this size (three digits of 8 bits hold a little more, for when rounding needs
# it), moved up so that every digit is unsigned.
_DIGITS = 3
_LARGEST = 0x7F7F00
_OFFSET = 0x808080
_TILE = 1024


class _Int8:
    """A weight as 8 bit integers, symmetric, with one scale per output: a quarter of float32's bytes to read.

    Activations keep their precision, yet the product is one of integers: a row of `x` is written as three digits in
    base 256 (24 bits of its largest value), each digit a row of its own. oneDNN's product of unsigned by signed bytes
    is near memory bandwidth for the 3 to 12 rows of a decode step: by 8192 x 2048, 1 row takes 0.63 ms and 4 rows 0.94
    (bfloat16 1.05 and 1.05, float32 2.0 and 2.0; torch's own _weight_int8pack_mm 1.0 and 1.2 in bfloat16, 22 and 50 in
    float32); 64 rows take 13 ms, float32 17. Sums of integers are exact, so a row's result does not depend on how many
    rows come with it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight = weight.float()
        self._scale = weight.abs().amax(1).clamp_min(1e-30) / 127
        quantized = torch.empty(weight.shape, dtype=torch.int8)
        for start in range(0, weight.shape[0], _TILE):
            part = slice(start, start + _TILE)
            quantized[part] = (weight[part] / self._scale[part, None]).round_()
        self._bias = None if bias is None else bias.float()
        self._weight = torch.ops.onednn.qlinear_prepack(quantized, None) if _PACKED_INT8 else quantized
        self._zero = torch.zeros(weight.shape[0], dtype=torch.int64)
        # What the digits' being moved up by 128 adds to every sum.
        self._moved = quantized.sum(1, dtype=torch.float32) * self._scale * -128
        self._offset, self._largest = torch.tensor(float(_OFFSET)), torch.tensor(float(_LARGEST))
        self._worth = torch.tensor([[1.0], [256.0], [65536.0]]) / _LARGEST

    def __call__(self, x: Tensor) -> Tensor:
        product = self._product(x.float())
        if self._bias is not None:
            product += self._bias
        return product.to(x.dtype)

    def _product(self, x: Tensor) -> Tensor:
        if not _PACKED_INT8:
            tiles = range(0, self._weight.shape[0], _TILE)
            return torch.cat([F.linear(x, self._weight[i : i + _TILE].float()) for i in tiles], 1).mul_(self._scale)
        rows, width = x.shape
        largest = x.abs().amax(-1, keepdim=True).clamp_min_(1e-30)
        whole = torch.addcmul(self._offset, x, torch.div(self._largest, largest)).to(torch.int32)
        digits = whole.view(torch.uint8).view(rows, width, 4)[..., :_DIGITS].transpose(1, 2).reshape(-1, width)
        sums: Tensor = torch.ops.onednn.qlinear_pointwise(
            digits, 1.0, 0, self._weight, self._scale, self._zero, self._moved, 1.0, 0, torch.float32, "none", [], ""
        )
        return sums.view(rows, _DIGITS, -1).mul_(largest.unsqueeze(1) * self._worth).sum(1)
