"""The tiles that the decode kernel may be launched with, by architecture and type of cache: data with its evidence.

`table.json` is written by `dovetail tune`, which compiles every candidate. This module needs neither torch nor Triton.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.resources import files
from typing import Literal

import msgspec

from dovetail.errors import EngineError

#: The types of cache that the kernel reads.
Kind = Literal["bfloat16", "fp8", "fp8_ds_mla"]
KINDS: tuple[Kind, ...] = ("bfloat16", "fp8", "fp8_ds_mla")
#: The widths of a latent in published models (DeepSeek-V2 and V3, Kimi-K2), for which tiles are compiled.
RANK, ROPE = 512, 64
#: Bytes of their rows.
ROW_BYTES: dict[Kind, int] = {"bfloat16": 1152, "fp8": 576, "fp8_ds_mla": 656}


#: The most bytes of stack that a thread of a tile may spill. A few, outside the loop, cost less than smaller tiles: on
#: an H100, 64 rows of bfloat16 with 120 bytes take 0.66 of the time of 16 rows with none, for 64 heads.
MOST_STACK = 256


class Architecture(msgspec.Struct, frozen=True):
    """What a block of threads may have on one kind of multiprocessor (SM), and a GPU that has it, for the model.

    `shared_block` and `shared` are bytes of shared memory that a block may ask for and that an SM has (a block takes
    1,024 more than it asks for); `tensor_memory`: columns, 0 without. `bandwidth` is in bytes/s, `products` the dense
    float16 operations/s of `mma.sync`. (CUDA C Programming Guide, "Compute Capabilities"; data sheets.)
    """

    shared_block: int
    shared: int
    threads: int
    tensor_memory: int
    gpu: str
    sms: int
    bandwidth: float
    products: float


ARCHITECTURES: dict[str, Architecture] = {
    "sm_80": Architecture(166_912, 167_936, 2048, 0, "A100 80GB", 108, 2.04e12, 312e12),
    "sm_90": Architecture(232_448, 233_472, 2048, 0, "H100 SXM", 132, 3.35e12, 620e12),
    "sm_100": Architecture(232_448, 233_472, 2048, 512, "B200", 148, 8.0e12, 620e12),
    "sm_120": Architecture(101_376, 102_400, 1536, 0, "RTX PRO 6000", 188, 1.79e12, 250e12),
}


class Candidate(msgspec.Struct, frozen=True, order=True):
    """How the kernel may be compiled: cache rows of a step, rows of a tile, stages of the pipeline, warps."""

    block_n: int
    tile: int
    stages: int
    warps: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate and what came out when it was compiled.

    `shared`: bytes; `tensor_memory`: columns; `registers`: of a thread; `stack`: bytes of a thread that do not fit into
    registers. `instruction`: the tensor-core instruction; None where the compiler made none.
    """

    arch: str
    kind: Kind
    candidate: Candidate
    shared: int
    tensor_memory: int
    registers: int
    stack: int
    instruction: str | None

    def why_not(self) -> str | None:
        """Why the kernel cannot be launched like this, or should not; None if it can."""
        limits = ARCHITECTURES[self.arch]
        if self.shared > limits.shared_block:
            return f"needs {self.shared:,} bytes of shared memory, {limits.shared_block:,} exist"
        if self.tensor_memory > limits.tensor_memory:
            return f"needs {self.tensor_memory} columns of tensor memory, {limits.tensor_memory} exist"
        if self.instruction is None:
            return "uses no tensor cores"
        return f"spills: {self.stack} bytes of stack a thread" if self.stack > MOST_STACK else None

    @property
    def resident(self) -> int:
        """How many blocks an SM holds at once."""
        limits, warps = ARCHITECTURES[self.arch], self.candidate.warps
        by_registers = 65_536 // (-(-self.registers // 8) * 8 * warps * 32)
        return min(by_registers, limits.shared // (self.shared + 1024), limits.threads // (warps * 32))


class Measured(msgspec.Struct, frozen=True):
    """How long a launch took on a GPU: `dovetail tune --measure`. What was done is a `model.Work`, and `splits`."""

    gpu: str
    arch: str
    kind: Kind
    candidate: Candidate
    batch: int
    context: int
    heads: int
    queries: int
    splits: int
    seconds: float


class Table(msgspec.Struct, frozen=True, omit_defaults=True):
    """All rows that fit, the version of Triton that compiled them, and what was measured, if anything was."""

    triton: str
    rows: tuple[Row, ...]
    measured: tuple[Measured, ...] = ()

    def of(self, arch: str, kind: Kind) -> tuple[Row, ...]:
        """The rows of an architecture and a type of cache. Raises `EngineError` if the table has none."""
        rows = tuple(row for row in self.rows if row.arch == arch and row.kind == kind)
        if not rows:
            archs = ", ".join(sorted({row.arch for row in self.rows}))
            raise EngineError(
                f"the GPU kernel has no tiles for {arch} with {kind}: it has {archs}; run `dovetail tune`"
            )
        return rows


def updated(before: Table, compiled: Table) -> bytes:
    """The file of `before`, with the rows of `compiled` that fit for all cells that were compiled.

    What was measured in these cells is kept if `compiled` has it. One row a line.
    """
    cells = {(row.arch, row.kind) for row in compiled.rows}
    rows = [row for row in before.rows if (row.arch, row.kind) not in cells]
    rows += [row for row in compiled.rows if row.why_not() is None]
    order = list(ARCHITECTURES)
    rows.sort(key=lambda row: (order.index(row.arch), KINDS.index(row.kind), row.candidate.tile, row.candidate))
    measured = [each for each in before.measured if (each.arch, each.kind) not in cells]
    parts = [b'"triton":%b' % msgspec.json.encode(compiled.triton), b'"rows":%b' % _lines(rows)]
    if measured or compiled.measured:
        parts.append(b'"measured":%b' % _lines([*measured, *compiled.measured]))
    return b"{%b}\n" % b",".join(parts)


def _lines(each: Sequence[msgspec.Struct]) -> bytes:
    return b"[\n%b\n]" % b",\n".join(map(msgspec.json.encode, each))


@functools.cache
def table() -> Table:
    """The table that comes with Dovetail."""
    return msgspec.json.decode(files("dovetail.engine.tuning").joinpath("table.json").read_bytes(), type=Table)
