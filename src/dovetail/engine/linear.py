"""A product of rows with weights that are prepared once, at load: the one place that calls oneDNN and fbgemm.

On a CPU a decode step multiplies 1 to 8 rows by every weight, and MKL's product of a few rows is slow on AMD: by a
256 x 2304 matrix 1 row takes 36 us and 4 rows take 102 us; oneDNN with packed weights takes 38 us and 40 us (one core
of an EPYC 9005, torch 2.13). Verifying four tokens for the price of one depends on this.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.engine.compute import PORTABLE, Kernels, kernels_here
from dovetail.engine.settings import Quantization

# torch's own compiler calls these for every linear layer on a CPU; they are not public, so their absence is no error.
_ONEDNN: bool = torch._C._has_mkldnn and all(
    hasattr(module, name)
    for module, name in (
        (torch.ops.mkldnn, "_reorder_linear_weight"),
        (torch.ops.mkldnn, "_linear_pointwise"),
        (torch.ops.onednn, "qlinear_prepack"),
        (torch.ops.onednn, "qlinear_pointwise"),
    )
)
_packed_linear: Any = torch.ops.mkldnn._linear_pointwise.default if _ONEDNN else None

_PREPARED: bool = _ONEDNN and "fbgemm" in torch.backends.quantized.supported_engines
_float16_linear: Any = torch.ops.quantized.linear_dynamic_fp16.default
_FARTHEST = 60  # the powers of two by which weights are moved to the end of float16's range

# How many weights are converted at a time: a megabyte of float32, which stays in a cache.
_TILE = 1 << 18
# Up to this many rows, torch's own product in bfloat16 is faster. It reads the weights once for each row: by 8192 x
# 2048, 1 row takes 3.6 ms and 4 rows 13, converted 5.7 and 11 (one core of an EPYC 7003).
_FEW_ROWS = 2


def cast(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`x` in this type, as it is if it has it: even a conversion of nothing takes torch half a microsecond."""
    return x if x.dtype == dtype else x.to(dtype)


class Linear:
    """``x @ weight.T + bias`` for `x` [rows, in], `weight` [out, in], `bias` [out] or None; `x` has `weight`'s dtype.

    `quantization` "int8" keeps the weight in 8 bits (`Int8`). `kernels` are this processor's unless a test says others;
    one that the processor does not have raises torch's RuntimeError, or computes nonsense.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        quantization: Quantization | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        kernels = kernels or kernels_here()
        self._product = _product(weight.contiguous(), bias, quantization, kernels if _PREPARED else PORTABLE)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x)


Product = Callable[[Tensor], Tensor]


def _product(weight: Tensor, bias: Tensor | None, quantization: Quantization | None, kernels: Kernels) -> Product:
    wide = weight.dtype == torch.float32
    kind = kernels.int8 if quantization == "int8" else kernels.float32 if wide else kernels.bfloat16
    in_float16 = kind == "float16" and kernels.in_float16(*weight.shape)
    if quantization == "int8":
        return Int8(weight, bias, "7 bit digits" if kind == "float16" and not in_float16 else kind)
    if in_float16 and (exponent := _float16_exponent(weight)) is not None:
        return _Float16(weight, bias, exponent)
    if kind == "packed" or (kind == "float16" and wide):
        return _Packed(weight, bias, kernels.plain_below)
    if kind in ("converted", "float16"):
        return _Converted(weight, bias)
    return lambda x: F.linear(x, weight, bias)


class _Packed:
    """oneDNN's product. Small weights are kept unpacked too, for few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None, plain_below: int) -> None:
        self._bias = bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._few_rows = plain_below // weight.numel()
        self._unpacked = weight if self._few_rows else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._unpacked is not None and x.shape[0] <= self._few_rows:
            return F.linear(x, self._unpacked, self._bias)
        product: Tensor = _packed_linear(x, self._packed, self._bias, "none", [], "")
        return product


def _float16_exponent(weight: Tensor) -> int | None:
    """The power of two that `weight` is multiplied by so that float16 holds it exactly; None if it never does.

    Nearly all weights that were published in bfloat16 are exact: of their 8 bits float16 has 11, and the power of two
    moves the largest to the end of its range, 2^32 times the smallest bfloat16 that it holds.
    """
    largest = weight.abs().amax().item()
    if not math.isfinite(largest):
        return None
    for exponent in (0, 15 - math.frexp(largest)[1]):
        scale = 2.0**exponent
        # Moved farther, a bias could leave float32's range.
        if abs(exponent) <= _FARTHEST and all(_exact(part.float() * scale) for part in torch.split(weight, 1024)):
            return exponent
    return None


def _exact(weight: Tensor) -> bool:
    return torch.equal(weight.half().float(), weight)


class _Float16:
    """fbgemm's product of float32 rows with weights in 16 bits: half of the bytes that float32 reads.

    The weights are exactly the ones given, so this is float32's product. A row's sums are the same whatever rows come
    with it (`_like_others`).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, exponent: int) -> None:
        scale = 2.0**exponent
        moved = None if bias is None else bias.float() * scale
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float() * scale, moved)
        self._factor = 1 / scale

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        multiplied, wide = _like_others(rows), cast(x)
        if rows == 1:
            wide = wide.expand(multiplied, -1)
        elif rows < multiplied:
            wide = F.pad(wide, (0, 0, 0, multiplied - rows))
        product: Tensor = _float16_linear(wide, self._packed)
        if rows < multiplied:
            product = product[:rows]
        if self._factor != 1:
            product.mul_(self._factor)
        return cast(product, x.dtype)


@functools.cache
def _like_others(rows: int) -> int:
    """How many rows to multiply, `rows` or a few more, so that each row's sums are those that it has among three rows.

    fbgemm cuts rows into groups of up to six on AVX2, and adds in another order in groups of one and two. Which numbers
    of rows leave such a group is not documented and not the same on all processors, so it is tried.
    """
    generator = torch.Generator().manual_seed(0)
    packed = torch.ops.quantized.linear_prepack_fp16(torch.randn(64, 600, generator=generator).half().float(), None)
    for more in range(rows, rows + 8):
        x = torch.randn(-(-more // 3) * 3, 600, generator=generator)
        threes = torch.cat([_float16_linear(three, packed) for three in torch.split(x, 3)])
        if torch.equal(_float16_linear(x[:more], packed), threes[:more]):
            return more
    return rows


class _Converted:
    """bfloat16 weights on a processor without bfloat16 instructions: float32 products of a tile at a time."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        self._tile = max(1, min(weight.shape[0], _TILE // weight.shape[1]))

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] <= _FEW_ROWS:
            return F.linear(x, self._weight, self._bias)
        outputs, width = self._weight.shape
        rows, product = x.float(), torch.empty(x.shape[0], outputs)
        tile = torch.empty(self._tile, width)
        for start in range(0, outputs, self._tile):
            part = slice(start, min(start + self._tile, outputs))
            wide = tile[: part.stop - start].copy_(self._weight[part])
            product[:, part] = F.linear(rows, wide)
        if self._bias is not None:
            product += self._bias
        return product.to(x.dtype)


# Rows become whole numbers of 24 bits: x / max|x| times the largest. Digits are moved up until each is unsigned, and
# the largest leaves room for rounding.
_LARGEST = 0x7F7F00


class Int8:
    """A weight as 8 bit integers, symmetric, with one scale per output: a quarter of float32's bytes to read.

    Activations keep their precision, yet the product is one of integers: a row becomes whole numbers of 24 bits of its
    largest value. `kind` says how they are multiplied (`Kernels.int8`): as digits of 8 or 7 bits, each digit a row of
    its own in oneDNN's product of unsigned by signed bytes, or in float64. Sums of integers are exact, so a row's
    result does not depend on how many rows come with it. With "float16" the weights take 16 bits, and rows stay as they
    are: float32's speed with half of its bytes. docs/decisions/0012 has the figures.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: str) -> None:
        weight = weight.float()
        self._scale = weight.abs().amax(1).clamp_min(1e-30) / 127
        quantized = torch.empty(weight.shape, dtype=torch.int8)
        for start in range(0, weight.shape[0], 1024):
            part = slice(start, start + 1024)
            quantized[part] = (weight[part] / self._scale[part, None]).round_()
        self._bias = None if bias is None else bias.float()
        if kind == "float64":
            self._sums: Callable[[Tensor], Tensor] = _Float64Sums(quantized, self._scale)
        elif kind == "float16":
            whole = _Float16(quantized, None, 0)
            self._sums = lambda x: whole(x).mul_(self._scale)
        else:
            self._sums = _DigitSums(quantized, self._scale, bits=8 if kind == "8 bit digits" else 7)

    def __call__(self, x: Tensor) -> Tensor:
        product = self._sums(x.float())
        if self._bias is not None:
            product += self._bias
        return product.to(x.dtype)


class _DigitSums:
    """Rows as digits of `bits` bits, three of 8 or four of 7, by oneDNN.

    Near memory bandwidth for the 3 to 32 rows of digits that a decode step has.
    """

    def __init__(self, quantized: Tensor, scale: Tensor, bits: int) -> None:
        self._bits = bits
        self._digits = digits = 3 if bits == 8 else 4
        base, half = 1 << bits, 1 << (bits - 1)
        self._weight = torch.ops.onednn.qlinear_prepack(quantized, None)
        self._scale = scale
        self._zero = torch.zeros(quantized.shape[0], dtype=torch.int64)
        # Moving every digit up by half a base adds this to every sum.
        self._moved = quantized.sum(1, dtype=torch.float32) * scale * -half
        # All digits but the lowest at their largest: the lowest leaves room for rounding.
        largest = sum((half - 1) * base**place for place in range(1, digits))
        self._offset = torch.tensor(float(sum(half * base**place for place in range(digits))))
        self._largest = torch.tensor(float(largest))
        self._worth = torch.tensor([[float(base**place)] for place in range(digits)]) / largest
        self._shifts = torch.tensor([[bits * place] for place in range(digits)], dtype=torch.int32)

    def __call__(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        largest = x.abs().amax(-1, keepdim=True).clamp_min_(1e-30)
        whole = torch.addcmul(self._offset, x, torch.div(self._largest, largest)).to(torch.int32)
        if self._bits == 8:
            digits = whole.view(torch.uint8).view(rows, width, 4)[..., :3].transpose(1, 2)
        else:
            digits = (whole.unsqueeze(1) >> self._shifts).bitwise_and_(127).to(torch.uint8)
        sums: Tensor = torch.ops.onednn.qlinear_pointwise(
            digits.reshape(-1, width),
            *(1.0, 0, self._weight, self._scale, self._zero, self._moved, 1.0, 0, torch.float32, "none", [], ""),
        )
        return sums.view(rows, self._digits, -1).mul_(largest.unsqueeze(1) * self._worth).sum(1)


class _Float64Sums:
    """Whole numbers of 24 bits times 8 bits: float64 adds 2 million such products exactly, in any order."""

    def __init__(self, quantized: Tensor, scale: Tensor) -> None:
        self._weight = quantized
        self._scale = scale.double() / _LARGEST
        self._tile = max(1, _TILE // quantized.shape[1])

    def __call__(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(-1, keepdim=True).clamp_min_(1e-30).double()
        whole = (x.double() * (_LARGEST / largest)).round_()
        sums = [F.linear(whole, tile.double()) for tile in torch.split(self._weight, self._tile)]
        return torch.cat(sums, 1).mul_(self._scale).mul_(largest).float()
