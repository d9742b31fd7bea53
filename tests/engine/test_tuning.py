"""The table of the kernel's tiles: every row fits and still compiles to what it says; the choice follows the model."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from importlib.util import find_spec

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.tuning.model import KernelChoice, Work, choose, floor, seconds
from dovetail.engine.tuning.table import ARCHITECTURES, KINDS, RANK, Candidate, Kind, Measured, Row, Table, table
from dovetail.errors import EngineError
from tests.examples import examples

CELLS = list(itertools.product(ARCHITECTURES, KINDS))
#: The table where nothing was measured.
PREDICTED = msgspec.structs.replace(table(), measured=())
works = st.builds(
    Work, st.integers(1, 256), st.integers(1, 131_072), st.sampled_from((4, 8, 16, 64, 128)), st.integers(1, 16)
)


@pytest.mark.parametrize(("arch", "kind"), CELLS)
def test_every_row_fits(arch: str, kind: Kind) -> None:
    rows = table().of(arch, kind)
    assert all(row.why_not() is None and row.resident >= 1 for row in rows)
    assert len({row.candidate for row in rows}) == len(rows)
    # A window of 4 queries of 8 heads (Kimi-K2.5 on 8 GPUs) is one tile of 32 rows, whose cache is read once.
    assert max(row.candidate.tile for row in rows) >= 32


def row(**changes: object) -> Row:
    fits = Row(
        arch="sm_120",
        kind="fp8",
        candidate=Candidate(32, 16, 2, 4),
        shared=40_000,
        tensor_memory=0,
        registers=128,
        stack=0,
        instruction="mma.sync",
    )
    return msgspec.structs.replace(fits, **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        # vLLM 0.33's default for an FP8 cache.
        ({"shared": 102_400}, "needs 102,400 bytes of shared memory, 101,376 exist"),
        ({"shared": 101_376}, None),
        ({"arch": "sm_90", "shared": 102_400}, None),
        ({"arch": "sm_100", "tensor_memory": 576}, "needs 576 columns of tensor memory, 512 exist"),
        ({"instruction": None}, "uses no tensor cores"),
        ({"stack": 256}, None),
        ({"stack": 264}, "spills: 264 bytes of stack a thread"),
    ],
    ids=str,
)
def test_why_a_row_does_not_fit(changes: dict[str, object], reason: str | None) -> None:
    assert row(**changes).why_not() == reason


@pytest.mark.parametrize(
    ("changes", "resident"),
    [
        ({"registers": 255}, 2),  # 256 of them for 128 threads: 32,768 of 65,536
        ({"shared": 50_000}, 2),
        ({"shared": 51_000}, 1),
        ({"shared": 1_000, "registers": 32}, 12),  # 1,536 threads
        ({"arch": "sm_90", "shared": 1_000, "registers": 32}, 16),
    ],
    ids=str,
)
def test_how_many_blocks_an_sm_holds(changes: dict[str, object], resident: int) -> None:
    assert row(**changes).resident == resident


def test_an_architecture_without_rows() -> None:
    with pytest.raises(EngineError, match=r"no tiles for sm_75 with fp8: it has .*run `dovetail tune`"):
        table().of("sm_75", "fp8")


@given(cell=st.sampled_from(CELLS), work=works)
@examples(40)
def test_the_choice_is_the_best_of_all(cell: tuple[str, Kind], work: Work) -> None:
    arch, kind = cell
    chosen: KernelChoice = choose(PREDICTED, arch, kind, work)
    assert chosen.row in table().of(arch, kind)
    assert 1 <= chosen.queries <= min(work.queries, chosen.row.candidate.tile)
    assert 1 <= chosen.splits <= max(1, -(-work.context // chosen.row.candidate.block_n))
    assert chosen.seconds == seconds(chosen.row, work, chosen.splits)
    assert not chosen.row.stack, "the model knows nothing of spills"
    for other, splits in itertools.product([row for row in table().of(arch, kind) if not row.stack], (1, 2, 8)):
        if splits <= -(-work.context // other.candidate.block_n):
            assert chosen.seconds <= seconds(other, work, splits)


@given(cell=st.sampled_from(CELLS), work=works)
@examples(40)
def test_no_prediction_beats_the_memory(cell: tuple[str, Kind], work: Work) -> None:
    arch, kind = cell
    assert choose(PREDICTED, arch, kind, work).seconds >= floor(kind, arch, work)


@pytest.mark.parametrize(("arch", "kind"), CELLS)
def test_what_the_choice_depends_on(arch: str, kind: Kind) -> None:
    """One long sequence is cut, a full batch is not; a longer context takes longer."""
    alone, full = Work(1, 65_536, 8, 4), Work(256, 1_024, 128, 1)
    assert choose(PREDICTED, arch, kind, alone).splits >= 16
    assert choose(PREDICTED, arch, kind, full).splits <= 2
    times = [choose(PREDICTED, arch, kind, Work(4, context, 8, 4)).seconds for context in (512, 4_096, 32_768)]
    assert times == sorted(times)


def test_what_was_measured_chooses() -> None:
    """The fastest launch of the nearest work, with no more splits than the cache has blocks."""
    slow, fast = table().of("sm_120", "fp8")[:2]
    times = tuple(
        Measured("RTX PRO 6000", "sm_120", "fp8", row.candidate, batch, context, 8, 4, splits, taken)
        for batch, context, row, splits, taken in (
            (1, 1024, slow, 8, 2e-6),
            (1, 1024, fast, 16, 1e-6),
            (16, 65_536, slow, 64, 4e-4),
            (16, 65_536, fast, 32, 9e-4),
        )
    )
    measured = msgspec.structs.replace(table(), measured=times)
    near = choose(measured, "sm_120", "fp8", Work(2, 700, 8, 4))
    assert (near.row, near.splits, near.seconds) == (fast, 16, 1e-6)
    assert choose(measured, "sm_120", "fp8", Work(8, 131_072, 16, 4)).row == slow
    assert choose(measured, "sm_120", "fp8", Work(1, fast.candidate.block_n, 8, 4)).splits == 1
    for arch, kind in (("sm_120", "bfloat16"), ("sm_90", "fp8")):
        work = Work(1, 1024, 8, 4)
        assert choose(measured, arch, kind, work) == choose(PREDICTED, arch, kind, work)


def test_an_h100_was_measured() -> None:
    """The launch of Kimi-K2.5's 64 heads is a tile of 64 rows, which the model would not choose: it spills."""
    chosen = choose(table(), "sm_90", "bfloat16", Work(64, 8192, 64, 1))
    assert chosen.row.candidate.tile == 64 and chosen.row.stack
    assert all(each.gpu.startswith("NVIDIA H100") and each.arch == "sm_90" for each in table().measured)
    works = {(each.kind, each.batch, each.context, each.heads, each.queries) for each in table().measured}
    assert len(works) == len(table().measured) == 3 * 36


def _interprets() -> bool:
    return find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.skipif(not _interprets(), reason="runs in Triton's interpreter: see CONTRIBUTING.md")
def test_every_tile_is_measured() -> None:
    """In the interpreter, with a timer that counts: each row for each work, with several numbers of splits."""
    from dovetail.engine.tuning.measuring import measure

    rows = tuple(row for kind in KINDS for row in table().of("sm_120", kind)[:1])
    few, works = Table("3.9.0", rows), [Work(1, 40, 4, 2), Work(2, 16, 4, 1)]
    runs: list[object] = []

    def timer(run: Callable[[], object]) -> float:
        runs.append(run())
        return float(len(runs))

    rows = list(measure(few, "sm_120", "a GPU", KINDS, works, timer, "cpu"))
    assert [each.seconds for each in rows] == list(range(1, len(runs) + 1))
    asked = {(each.kind, each.candidate, Work(each.batch, each.context, each.heads, each.queries)) for each in rows}
    assert asked == {(row.kind, row.candidate, work) for row in rows for work in works}


def _compiles() -> bool:
    return find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") != "1"


# Five seconds each.
@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.skipif(not _compiles(), reason="compiling needs Triton, without its interpreter")
@pytest.mark.parametrize("expected", table().rows, ids=lambda row: f"{row.arch}-{row.kind}-{row.candidate}")
def test_every_row_compiles_and_fits(expected: Row) -> None:
    from dovetail.engine.tuning.compiling import VERSION, compile_row

    row = compile_row(expected.arch, expected.kind, expected.candidate)
    assert row.why_not() is None
    if table().triton == VERSION:
        assert row == expected


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.skipif(not _compiles(), reason="compiling needs Triton, without its interpreter")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_second_pass_compiles(arch: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from dovetail.engine.attention.triton_mla import merge_parts
    from dovetail.engine.tuning.compiling import resources

    signature = {"mixed": "*fp32", "sums": "*fp32", "out": "*bf16", "total": "*fp32", "splits": "i32"}
    for splits in (2, 128):
        constants = {"RANK": RANK, "SPLITS": splits}
        source = ASTSource(
            fn=merge_parts,
            signature=signature | dict.fromkeys(constants, "constexpr"),
            constexprs=constants,
            attrs={(i,): [["tt.divisibility", 16]] for i in range(4)},
        )
        target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
        compiled = triton.compile(source, target=target, options={"num_warps": 4, "enable_fp_fusion": True})
        usage = resources(compiled.asm["cubin"])
        assert usage["STACK"] + usage["LOCAL"] == 0


@pytest.mark.skipif(not _compiles(), reason="compiling needs Triton, without its interpreter")
def test_a_tile_that_does_not_fit_is_noticed() -> None:
    """On sm_100 a tile of 64 rows is one of tcgen05, needs 576 columns of 512, and is compiled to a trap."""
    from dovetail.engine.tuning.compiling import compile_row

    row = compile_row("sm_100", "bfloat16", Candidate(32, 64, 2, 8))
    assert row.tensor_memory == 576 and "columns of tensor memory" in (row.why_not() or "")


def test_the_table_says_what_compiled_it() -> None:
    assert isinstance(table(), Table) and table().triton[0].isdigit()
