"""Other engines' decode kernels, from the files that setup.sh took out of their wheels, called as those engines do."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dovetail.engine.tuning.model import Work
from dovetail.engine.tuning.table import RANK, ROPE, Kind

#: A kernel over one batch: queries [batch, queries, heads, 576] in, mixed latents [batch * queries, heads, 512] out.
Run = Callable[[], Tensor]


class Batch:
    """Sequences of one length, in blocks of a shuffled table."""

    block = 64

    def __init__(self, kind: Kind, work: Work, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        self.kind, self.work = kind, work
        blocks = -(-work.context // self.block)
        order = torch.randperm(work.batch * blocks, device="cuda", generator=generator)
        self.table = order.to(torch.int32).view(work.batch, blocks)
        shape = (work.batch, work.queries, work.heads, RANK + ROPE)
        self.queries = torch.randn(shape, device="cuda", generator=generator).mul_((RANK + ROPE) ** -0.5).bfloat16()
        self.latents = torch.empty(work.batch * blocks * self.block, RANK + ROPE, dtype=torch.bfloat16, device="cuda")
        self.latents.normal_(generator=generator)

    @property
    def rows_of_queries(self) -> tuple[Tensor, Tensor, Tensor]:
        """A row for each query: queries, tables and ends, as engines have it that know one query a sequence."""
        work = self.work
        ends = torch.arange(work.context - work.queries + 1, work.context + 1, device="cuda", dtype=torch.int32)
        table = self.table.repeat_interleave(work.queries, 0)
        return self.queries.flatten(0, 1), table, ends.repeat(work.batch)


def peers(folder: Path) -> Iterator[tuple[str, Callable[[Batch, Tensor], Run | None]]]:
    """Each kernel that is in `folder`, by its name: a function of a batch and its cache, or None where it has none."""
    for name, file, make in (
        ("vLLM 0.33 TRITON_MLA", "vllm_triton.py", _vllm),
        ("SGLang 0.5.23 triton", "sglang_triton.py", _sglang),
        ("FlashMLA", "flashmla.so", _flashmla),
    ):
        if (folder / file).exists():
            yield name, make(folder / file)


def _vllm(file: Path) -> Callable[[Batch, Tensor], Run | None]:
    _stub("vllm.platforms", current_platform=SimpleNamespace(is_rocm=lambda: False))
    _stub("vllm.triton_utils", triton=triton, tl=tl)
    module = _load("vllm_triton", file)
    processors = torch.cuda.get_device_properties(0).multi_processor_count

    def make(batch: Batch, cache: Tensor) -> Run | None:
        if batch.kind == "fp8_ds_mla":
            return None
        queries, table, ends = batch.rows_of_queries
        rows, heads = queries.shape[:2]
        splits = min(triton.next_power_of_2(max(1, batch.work.context // 512)), 2 * processors)
        out, sums = torch.zeros_like(queries[..., :RANK]), queries.new_zeros(rows, heads)
        parts = torch.empty(rows, heads, splits, RANK + 1, dtype=torch.float32, device="cuda")
        paged = cache.view(-1, batch.block, 1, RANK + ROPE)
        scale = torch.ones((), device="cuda")

        def run() -> Tensor:
            module.decode_attention_fwd(
                *(queries, paged, paged[..., :RANK], out, sums, table, ends, parts, splits, 1.0, batch.block),
                **{"k_scale": scale, "v_scale": scale, "is_mla": True},
            )
            return out

        return run

    return make


def _sglang(file: Path) -> Callable[[Batch, Tensor], Run | None]:
    no = dict.fromkeys(("is_gfx95_supported", "is_gfx1250_supported", "is_hip"), lambda: False)
    _stub("sglang.kernels.ops.attention.score_mod", unpack_aux_tensors=lambda *_: (None, 0, 0, 0))
    _stub("sglang.srt.environ", envs=SimpleNamespace())
    _stub("sglang.srt.utils", get_device_core_count=lambda _: 0, **no)
    module = _load("sglang_triton", file)

    def make(batch: Batch, cache: Tensor) -> Run | None:
        if batch.kind == "fp8_ds_mla":
            return None
        queries, table, ends = batch.rows_of_queries
        rows, heads = queries.shape[:2]
        within = torch.arange(batch.block, device="cuda")
        index = (table.long().unsqueeze(-1) * batch.block + within).flatten(1)
        used = torch.arange(index.shape[1], device="cuda") < ends.unsqueeze(1)
        starts = torch.cat((ends.new_zeros(1), ends.cumsum(0))).to(torch.int32)
        flat = index[used]
        most = 16  # twice its default, as it takes for deep contexts
        out = torch.zeros_like(queries[..., :RANK])
        parts = torch.empty(rows, heads, most, RANK, dtype=torch.float32, device="cuda")
        sums = torch.empty(rows, heads, most, dtype=torch.float32, device="cuda")
        splits = torch.full((rows,), most, dtype=torch.int32, device="cuda")
        keys = cache.view(-1, 1, RANK + ROPE)

        def run() -> Tensor:
            module.decode_attention_fwd(
                *(queries, keys, keys[..., :RANK], out, starts, flat, parts, sums, splits, most, 1.0, 1.0, 1.0),
                has_mla=True,
            )
            return out

        return run

    return make


def _flashmla(file: Path) -> Callable[[Batch, Tensor], Run | None]:
    torch.ops.load_library(str(file))
    kernel: Any = torch.ops._flashmla_C

    def make(batch: Batch, cache: Tensor) -> Run | None:
        if batch.kind != "bfloat16":
            return None  # dense attention over FP8 has another extension, and packed rows are for sparse attention only
        work = batch.work
        lengths = torch.full((work.batch,), work.context, dtype=torch.int32, device="cuda")
        paged = cache.view(-1, batch.block, 1, RANK + ROPE)
        plan: list[Any] = [None, None]

        def run() -> Tensor:
            out, _, *plan[:] = kernel.dense_decode_fwd(
                *(batch.queries, paged, RANK, lengths, batch.table, 1.0, True, *plan, None)
            )
            mixed: Tensor = out.flatten(0, 1)
            return mixed

        return run

    return make


def _stub(name: str, **content: Any) -> None:
    """A module of this name, so that a file can import from it."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), ModuleType(".".join(parts[:i])))
    vars(sys.modules[name]).update(content)


def _load(name: str, file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
