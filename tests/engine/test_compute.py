"""The kernels of a processor follow from its flags and oneDNN's own limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dovetail.engine import compute
from dovetail.engine.compute import BY_PROCESSOR, PORTABLE, TABLE, kernels_for, kernels_here

AVX2 = {"sse4_1", "avx", "avx2", "fma", "f16c"}
AVX512 = {*AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq"}
VNNI = {*AVX512, "avx512_vnni", "avx512_bf16"}


@pytest.mark.parametrize(
    ("flags", "limit", "processor"),
    [
        (VNNI, "", "avx512_vnni"),
        (AVX512, "", "avx512"),
        (AVX512 - {"avx512dq"}, "", "avx2"),
        ({*AVX2, "avx_vnni", "avx_ne_convert"}, "", "avx_ne_convert"),
        (AVX2, "", "avx2"),
        (AVX2 - {"f16c"}, "", "avx2_onednn"),
        ({"sse4_1", "avx"}, "", "sse41"),
        ({"sse2"}, "", "portable"),
        (set[str](), "", "portable"),
        (VNNI, "avx2", "avx2_onednn"),
        (VNNI, "AVX512_CORE", "avx512"),
        (VNNI, "AVX512_CORE_AMX", "avx512_vnni"),
        (VNNI, "SSE41", "sse41"),
        (AVX2, "AVX512_CORE", "avx2"),
        (AVX2, "AVX2", "avx2_onednn"),
        (set[str](), "AVX2", "portable"),
    ],
)
def test_kernels_for(flags: set[str], limit: str, processor: str) -> None:
    assert kernels_for(flags, limit).processor == processor


def test_a_less_capable_processor_has_no_kernel_that_needs_more() -> None:
    """A row that has a kernel for which an instruction is needed stands above every row that does without."""
    for kind, kernel in (("bfloat16", "packed"), ("int8", "8 bit digits"), ("absorbed", "bfloat16")):
        has = [getattr(row, kind) == kernel for row in TABLE]
        assert has == sorted(has, reverse=True)
    assert TABLE[-1] is PORTABLE


def test_shown() -> None:
    avx2, avx512 = BY_PROCESSOR["avx2"], BY_PROCESSOR["avx512"]
    assert avx512.shown("float32", None) == "avx512, float32 in float16"
    assert avx2.shown("float32", None) == "avx2, float32 in float16"
    assert avx512.shown("bfloat16", "int8") == "avx512, int8 by 7 bit digits"
    assert avx2.shown("bfloat16", "int8") == "avx2, int8 in float16"


def test_bytes_of_a_weight() -> None:
    avx2, sse41 = BY_PROCESSOR["avx2"], BY_PROCESSOR["sse41"]
    assert [sse41.weight_bytes(*how, "bfloat16") for how in (("float32", None), ("bfloat16", None))] == [4, 2]
    assert [avx2.weight_bytes("float32", None, stored) for stored in ("bfloat16", "float16", "float32")] == [2, 2, 4]
    assert [kernels.weight_bytes("float32", "int8", "float32") for kernels in (sse41, avx2)] == [1, 2]


def test_weights_are_kept_in_float16_where_that_takes_no_more_memory() -> None:
    """fbgemm fills 576 numbers up to 1,024 of 2 bytes, which float32 has in 4; of 192 it makes 512."""
    shapes = {(3072, 576): True, (3072, 192): False, (256, 4096): True, (512, 512): False, (100_000, 255): False}
    assert {shape: BY_PROCESSOR["avx2"].in_float16(*shape) for shape in shapes} == shapes


def test_the_processor_here_is_what_torch_finds() -> None:
    """What the table takes from flags is what torch's own detection says, where nothing limits either."""
    assert kernels_here().processor != "avx512_vnni" or torch.cpu._is_vnni_supported()
    assert not kernels_here().processor.startswith("avx512") or torch.cpu._is_avx512_supported()


@pytest.mark.parametrize(
    ("cores", "limit", "threads"), [(1, "", 1), (2, "", 2), (3, "", 2), (8, "", 7), (8, "3,1", 3), (8, "0", 7)]
)
def test_default_threads(monkeypatch: pytest.MonkeyPatch, cores: int, limit: str, threads: int) -> None:
    monkeypatch.setattr(compute, "_cores", lambda: cores)
    monkeypatch.setattr(compute, "_quota", lambda file: sys.maxsize)
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert compute.default_threads() == threads


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert 1 <= compute.default_threads() <= (os.cpu_count() or 1)
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
        "from dovetail.engine.compute import default_threads; print(default_threads())"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "1\n"


@pytest.mark.parametrize(
    ("text", "threads"),
    [("200000 100000\n", 2), ("50000 100000", 1), ("800000 100000", 7), ("max 100000", 15), ("", 15), ("1 0", 15)],
)
def test_a_container_gets_no_more_threads_than_its_quota(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, threads: int
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(compute, "_cores", lambda: 16)
    for file in (tmp_path / "cpu.max", tmp_path / "absent"):
        monkeypatch.setattr(compute, "_CPU_MAX", file)
        assert compute.default_threads() == (threads if file.exists() else 15)
