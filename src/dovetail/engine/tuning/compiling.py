"""Compiles the decode kernel ahead of time for an architecture, and reads what it would need there.

Triton's wheel brings its compilers and `cuobjdump`, so neither a driver nor a GPU is needed. The compiler does not
check limits: a kernel that needs more shared memory than a block may have fails at its first launch, and one that needs
more tensor memory is compiled to a trap.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dovetail.engine.attention.triton_mla import attend_parts
from dovetail.engine.tuning.table import RANK, ROPE, Candidate, Kind, Row
from dovetail.errors import EngineError

#: The version of Triton that compiles here.
VERSION: str = triton.__version__
#: By type of cache: the kernel's layout, the type of its pointer, the elements of a row, the type of the products.
_CACHES = {
    "bfloat16": (0, "*bf16", 576, tl.bfloat16),
    "fp8": (1, "*u8", 576, tl.float16),
    "fp8_ds_mla": (2, "*u8", 656, tl.float16),
}
#: Arguments that are not constants, in the kernel's order. Pointers are aligned to 16 bytes, as torch's are.
_POINTERS = {"table": "*i32", "starts": "*i32", "ends": "*i32", "mixed": "*fp32", "sums": "*fp32"}
_NUMBERS = {
    "score_scale": "fp32",
    "scale": "fp32",
    "heads": "i32",
    "table_width": "i32",
    "splits": "i32",
    "queries_of_tile": "i32",
}
_INSTRUCTIONS = re.compile(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync")


def candidates(kind: Kind) -> Iterator[Candidate]:
    """Every tile that is tried. The sums of 32 rows are 64 kB, which 4 warps do not have in registers."""
    for tile, warps, steps in (
        (16, 4, ((32, 2), (32, 3), (64, 2))),
        (16, 8, ((32, 3), (64, 2), (64, 3))),
        (32, 8, ((16, 2), (32, 2), (32, 3))),
        (64, 8, ((16, 3), (32, 2), (32, 3))),
    ):
        for block_n, stages in steps:
            # Bytes are not pipelined, so only floats have a third stage.
            if kind == "bfloat16" or stages == 2:
                yield Candidate(block_n, tile, stages, warps)
            elif (block_n, 2) not in steps:
                yield Candidate(block_n, tile, 2, warps)


def compile_row(arch: str, kind: Kind, candidate: Candidate, block_size: int = 64) -> Row:
    """Compile the kernel's first pass for `arch` (such as "sm_120") and queries in bfloat16."""
    layout, pointer, row, dots = _CACHES[kind]
    signature = {"queries": "*bf16", "data": pointer} | _POINTERS | _NUMBERS
    constants = {
        "RANK": RANK,
        "ROPE": ROPE,
        "LAYOUT": layout,
        "ROW": row,
        "BLOCK_SIZE": block_size,
        "TYPE": dots,
        "TILE": candidate.tile,
        "BLOCK_N": candidate.block_n,
    }
    source = ASTSource(
        fn=attend_parts,
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in range(2 + len(_POINTERS))},
    )
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    options = {"num_warps": candidate.warps, "num_stages": candidate.stages, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=target, options=options)
    usage = resources(compiled.asm["cubin"])
    instructions = sorted(set(_INSTRUCTIONS.findall(compiled.asm["ptx"])))
    return Row(
        arch=arch,
        kind=kind,
        candidate=candidate,
        shared=compiled.metadata.shared,
        tensor_memory=getattr(compiled.metadata, "tmem_size", 0),
        registers=usage["REG"],
        stack=usage["STACK"] + usage["LOCAL"],
        instruction=", ".join(instructions) or None,
    )


def resources(cubin: bytes) -> dict[str, int]:
    """Registers and stack of the kernel in `cubin`, as `cuobjdump` reports them."""
    tools = sorted(Path(triton.__file__).parent.rglob("cuobjdump"))
    if not tools:
        raise EngineError(f"triton {VERSION} brings no cuobjdump, which reads a kernel's registers")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run([tools[0], "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", report)}
