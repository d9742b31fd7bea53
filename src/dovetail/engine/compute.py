"""What this machine's processor can do, and which kernel computes each product on it.

The one place that knows. It needs no torch, so that a plan shows the choice before anything loads.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec


class Kernels(msgspec.Struct, frozen=True):
    """Which kernel multiplies rows by weights of each type. `processor` is the row of `TABLE` that it stands in.

    `float32`, `bfloat16`: "packed" is oneDNN's product with weights packed at load; "float16" is fbgemm's product of
    float32 rows with the weights in 16 bits, for weights that float16 holds exactly, and as if it were "packed" or
    "converted" for others; "converted" keeps bfloat16 weights and makes float32 of a tile of them at a time; "plain" is
    torch's own product.
    `int8`: how rows become whole numbers, so that sums are exact and a row's product does not depend on the rows beside
    it. "8 bit digits" needs VNNI: without it, oneDNN adds pairs of products in 16 bits, where two products of 8 bits
    overflow and two of 7 by 8 bits do not. "float64" holds the same sums exactly on any processor. "float16" is the
    product of that name, of rows as they are: more than twice as fast as digits of 7 bits, with twice their bytes.
    `absorbed`: the type of the two halves of kv_b_proj that latent attention multiplies in batches. Without bfloat16
    instructions torch's batched product in bfloat16 takes 10 to 50 times as long as in float32.
    `plain_below`: with packed weights, torch's own product is used up to this many multiplications. A call of oneDNN
    costs 8 us more than one of MKL: by 96 x 384, 4 rows take 5.9 us against 11 us; by 1152 x 256, 1 row takes 14 us
    against 22 us (4 rows 43 us against 24 us).
    `float16_above`: weights of up to this many numbers are not kept in float16. They stay in a cache, and a call of
    fbgemm costs as much as one of oneDNN.
    `float16_padding`: fbgemm fills rows of weights up to a multiple of 512 numbers. If that makes them longer by a
    greater factor than this, float32 takes less memory, and they are not kept in float16.
    """

    processor: str
    float32: Literal["packed", "float16", "plain"]
    bfloat16: Literal["packed", "float16", "converted", "plain"]
    int8: Literal["8 bit digits", "7 bit digits", "float16", "float64"]
    absorbed: Literal["bfloat16", "float32"]
    plain_below: int = 400_000
    float16_above: int = 1 << 18
    float16_padding: float = 2

    def in_float16(self, outputs: int, inputs: int) -> bool:
        """Whether a weight of this shape is kept in float16 where the table says so."""
        return outputs * inputs > self.float16_above and -(-inputs // 512) * 512 <= self.float16_padding * inputs

    def shown(self, dtype: str, quantization: str | None) -> str:
        """The kernel for weights of `dtype` under `quantization`, for people: "sse41, float32 packed"."""
        if quantization == "int8":
            return f"{self.processor}, int8 {'in' if self.int8 == 'float16' else 'by'} {self.int8}"
        kernel = self.bfloat16 if dtype == "bfloat16" else self.float32
        return f"{self.processor}, {dtype} {'in float16' if kernel == 'float16' else kernel}"

    def weight_bytes(self, dtype: str, quantization: str | None, stored: str) -> int:
        """Bytes of a weight in memory; the checkpoint was published in the type `stored`.

        In float16 that is the weight of a model whose widths are multiples of 512 (`float16_padding`).
        """
        if quantization == "int8":
            return 2 if self.int8 == "float16" else 1
        in_16_bits = dtype == "bfloat16" or (self.float32 == "float16" and stored in ("bfloat16", "float16"))
        return 2 if in_16_bits else 4


#: From the most capable processor to the least; figures by row in docs/engine.md.
TABLE: tuple[Kernels, ...] = (
    Kernels("avx512_vnni", "float16", "packed", "8 bit digits", "bfloat16"),
    Kernels("avx512", "float16", "packed", "7 bit digits", "bfloat16"),
    Kernels("avx_ne_convert", "packed", "packed", "7 bit digits", "float32"),
    Kernels("avx2", "float16", "float16", "float16", "float32"),
    # Where oneDNN is limited to AVX2. fbgemm would not be.
    Kernels("avx2_onednn", "packed", "converted", "7 bit digits", "float32"),
    Kernels("sse41", "packed", "converted", "7 bit digits", "float32"),
    # arm64 among them. Untried, so nothing here that is not right everywhere.
    Kernels("portable", "plain", "plain", "float64", "float32"),
)
BY_PROCESSOR: Mapping[str, Kernels] = {kernels.processor: kernels for kernels in TABLE}
PORTABLE = BY_PROCESSOR["portable"]

_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
#: The flags of /proc/cpuinfo that each row needs, all of them.
_NEEDS: Mapping[str, set[str]] = {
    "avx512_vnni": {*_AVX512, "avx512_vnni"},
    "avx512": _AVX512,
    "avx_ne_convert": {"avx2", "avx_ne_convert"},
    "avx2": {"avx2", "fma", "f16c"},
    "avx2_onednn": {"avx2"},
    "sse41": {"sse4_1"},
}
#: The first row that is left where ONEDNN_MAX_CPU_ISA has one of these values; any other value leaves all.
#: https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
_LIMITS: Mapping[str, str] = {
    "SSE41": "sse41",
    "AVX": "sse41",
    "AVX2": "avx2_onednn",
    "AVX2_VNNI": "avx2_onednn",
    "AVX2_VNNI_2": "avx_ne_convert",
    "AVX512_CORE": "avx512",
}


def kernels_for(flags: set[str], limit: str = "") -> Kernels:
    """The first row of `TABLE` whose processor flags are all in `flags`, at or below oneDNN's `limit`."""
    limited = _LIMITS.get(limit.upper())
    start = 0 if limited is None else TABLE.index(BY_PROCESSOR[limited])
    rows = (kernels for kernels in TABLE[start:] if kernels.processor in _NEEDS)
    return next((kernels for kernels in rows if _NEEDS[kernels.processor] <= flags), PORTABLE)


@functools.cache
def kernels_here() -> Kernels:
    """The kernels for this machine's processor, under oneDNN's own limits in the environment."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
    return kernels_for(_flags(), limit)


def default_threads() -> int:
    """How many threads compute by default: OMP_NUM_THREADS, or one for each core, but for one core of three or more.

    Products wait for memory, so a second thread on a core adds nothing. Threads wait for each other after every
    operation: where all cores compute, other programs make every step longer.
    """
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if limit.isdecimal() and int(limit):
        return int(limit)
    cores = min(_cores(), _quota(_CPU_MAX))
    return cores - 1 if cores > 2 else cores


#: Where a container reads how much of the processors it may use (cgroup v2): microseconds of each period, or "max".
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def _cores() -> int:
    """The cores that this process may use. Two processors of the system may be one core."""
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    topology = "/sys/devices/system/cpu/cpu{}/topology/core_cpus_list"
    try:
        return len({Path(topology.format(processor)).read_text() for processor in processors})
    except OSError:
        return max(1, len(processors) // 2)


def _quota(file: Path) -> int:
    """The processors of a container's quota, at least one; very many if there is no quota."""
    try:
        used, period = file.read_text().split()
        return max(1, int(used) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return sys.maxsize


def _flags() -> set[str]:
    """The processor's flags; none on anything but x86 under Linux."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return set()
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split())
