"""Measures the tiles of the table on the GPU of this machine: `dovetail tune --measure`.

Every row of the table runs with the numbers of splits that the model thinks best for it. The times replace the model
where the choice is made (`model.choose`).
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator

import torch

from dovetail.engine.attention.latent_rows import latent_rows
from dovetail.engine.attention.triton_mla import Launch, attend_latents
from dovetail.engine.settings import CacheDType
from dovetail.engine.tuning.model import Work, seconds, splits_of
from dovetail.engine.tuning.table import RANK, ROPE, Kind, Measured, Row, Table

#: Calls a launch and returns its seconds.
Timer = Callable[[Callable[[], object]], float]

_BLOCK = 64
_SPLITS = 3  # that are tried of each row, the model's best


def on_gpu(run: Callable[[], object]) -> float:
    """The median of 20 runs by events of the device, after three that compile and warm up."""
    for _ in range(3):
        run()
    times = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1e3)
    return statistics.median(times)


def measure(
    table: Table, arch: str, name: str, kinds: Iterable[Kind], works: Iterable[Work], timer: Timer, device: str
) -> Iterator[Measured]:
    """Every row of `table` for `arch`, on `device`, for each of `works`. `name`: the GPU's."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float16  # the interpreter has no products of bfloat16
    works = list(works)
    for kind in kinds:
        for work in works:
            run = _attention(kind, work, dtype, device)
            for row in table.of(arch, kind):
                for splits in sorted(splits_of(row, work), key=lambda each: seconds(row, work, each))[:_SPLITS]:
                    taken = timer(functools.partial(run, row, splits))
                    yield Measured(name, arch, kind, row.candidate, *work, splits, taken)


def _attention(kind: Kind, work: Work, dtype: torch.dtype, device: str) -> Callable[[Row, int], object]:
    """A launch over latents that are zero, in blocks of a shuffled table."""
    blocks = -(-work.context // _BLOCK)
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(work.batch * blocks, generator=generator).to(torch.int32).view(work.batch, blocks)
    stored: CacheDType = "auto" if kind == "bfloat16" else kind
    rows = latent_rows(stored, work.batch * blocks * _BLOCK, RANK, ROPE, dtype)
    rows.data = torch.zeros_like(rows.data, device=device)
    tokens = work.batch * work.queries
    queries = torch.randn(tokens, work.heads, RANK + ROPE, generator=generator).to(dtype).to(device)
    starts = torch.arange(0, tokens + 1, work.queries, dtype=torch.int32, device=device)
    before = torch.arange(1 - work.queries, 1).repeat(work.batch)
    ends = (work.context + before).clamp(min=0).to(torch.int32).to(device)
    there = table.to(device)

    def run(row: Row, splits: int) -> object:
        tile = row.candidate
        together = min(work.queries, tile.tile)
        return attend_latents(
            *(queries, rows, there, starts, ends),
            rank=RANK,
            block_size=_BLOCK,
            most_queries=work.queries,
            launch=Launch(tile.block_n, tile.tile, tile.stages, tile.warps, together, splits),
        )

    return run
