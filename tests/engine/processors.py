"""The kernels of every kind of processor, on any processor that can run them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from dovetail.engine.compute import BY_PROCESSOR, TABLE, Kernels, kernels_here

#: Every row of the table, by name.
EVERY = tuple(BY_PROCESSOR)
#: Where oneDNN is not limited: fbgemm follows no limit.
_FBGEMM = ("avx2", "avx512", "avx512_vnni")
# What only some processors can run; the other kernels run on every x86, and the plain ones everywhere.
_INSTRUCTIONS = {
    ("bfloat16", "packed"): ("avx512", "avx512_vnni", "avx_ne_convert"),
    ("int8", "8 bit digits"): ("avx512_vnni",),
    ("int8", "float16"): _FBGEMM,
    ("float32", "float16"): _FBGEMM,
    ("bfloat16", "float16"): _FBGEMM,
}


def needs(processor: str, dtype: str, quantization: str | None) -> Kernels:
    """The kernels of `processor`; skips the test where they need an instruction that this processor does not have."""
    kernels, here = BY_PROCESSOR[processor], kernels_here().processor
    kind = (quantization or dtype, getattr(kernels, quantization or dtype))
    able = _INSTRUCTIONS.get(kind, EVERY if kind[1] in ("plain", "float64", "converted") else EVERY[:-1])
    if here not in able:
        pytest.skip(f"{kind[0]} by {kind[1]} needs {' or '.join(able)}, and this processor has {here}")
    return kernels


def one_for_each(kind: str) -> tuple[str, ...]:
    """One processor for each kernel that the table has for `kind`: a dtype, or a quantization."""
    kernels = {getattr(row, kind): row.processor for row in TABLE}
    return tuple(kernels.values())


def path(name: str) -> dict[str, Any]:
    """The engine settings of one of `EXACT`, or a skip where this processor does not have it."""
    if name == "as served":
        return {}
    kind, _, processor = name.partition(" ")
    kernels = needs(processor, kind, "int8" if kind == "int8" else None)
    return {"quantization": "int8" if kind == "int8" else None, "kernels": for_all_sizes(kernels)}


def for_all_sizes(kernels: Kernels) -> Kernels:
    """Small and narrow weights are multiplied by other kernels: here, all are by the ones that the table names."""
    return msgspec.structs.replace(kernels, plain_below=0, float16_above=0, float16_padding=math.inf)


#: Every way to multiply by which drafting never changes greedy ids.
EXACT = ("as served", *(f"{kind} {processor}" for kind in ("float32", "int8") for processor in one_for_each(kind)))
