"""The kernels of every kind of processor, on any processor that can run them."""

from __future__ import annotations

import pytest

from dovetail.engine.compute import BY_PROCESSOR, TABLE, Kernels, kernels_here

#: Every row of the table, by name.
EVERY = tuple(BY_PROCESSOR)
# What only some processors can run; the other kernels run on every x86, and the plain ones everywhere.
_INSTRUCTIONS = {
    ("bfloat16", "packed"): ("avx512", "avx512_vnni", "avx_ne_convert"),
    ("int8", "8 bit digits"): ("avx512_vnni",),
}


def needs(processor: str, dtype: str, quantization: str | None) -> Kernels:
    """The kernels of `processor`; skips the test where they need an instruction that this processor does not have."""
    kernels, here = BY_PROCESSOR[processor], kernels_here().processor
    kind = (quantization or dtype, getattr(kernels, quantization or dtype))
    able = _INSTRUCTIONS.get(kind, EVERY if kind[1] in ("plain", "float64", "converted") else EVERY[:-1])
    if here not in able:
        pytest.skip(f"{kind[0]} by {kind[1]} needs {' or '.join(able)}, and this processor has {here}")
    return kernels


def distinct(dtype: str, quantization: str | None) -> tuple[str, ...]:
    """One processor for each kernel that some processor takes for these weights."""
    kernels = {getattr(row, quantization or dtype): row.processor for row in reversed(TABLE)}
    return tuple(kernels.values())
