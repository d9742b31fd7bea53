"""Measures the tiles of the table on the GPU of this machine: `dovetail tune --measure`.

Every row of the table runs with the numbers of splits that fill the GPU about twice. The times replace the model where
the choice is made (`model.choose`).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator

import torch

from dovetail.engine.attention.latent_rows import latent_rows
from dovetail.engine.attention.triton_mla import Launch, attend_latents
from dovetail.engine.settings import CacheDType
from dovetail.engine.tuning.model import Work, splits_of, tiles
from dovetail.engine.tuning.table import ARCHITECTURES, RANK, ROPE, Kind, Measured, Row, Table

#: Calls a launch and returns its seconds.
Timer = Callable[[Callable[[], object]], float]

_BLOCK = 64
_SPLITS = 4  # that are tried of each row
_WRITTEN = 1 << 18  # rows at once
_FLUSHED = 256 << 20  # bytes, more than any L2 cache


def on_gpu(run: Callable[[], object]) -> float:
    """The median of 9 runs by events of the device, as a CUDA graph, so that a launch is not timed.

    Before each run other memory is written, so that the cache has to be read from memory, as it is in a model of many
    layers.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    other = torch.empty(_FLUSHED, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        other.zero_()
        begin.record()
        graph.replay()
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
                for splits in _likely(row, work):
                    taken = timer(functools.partial(run, row, splits))
                    yield Measured(name, arch, kind, row.candidate, *work, splits, taken)


def fastest(times: Iterable[Measured]) -> list[Measured]:
    """The fastest launch for each type of cache and work, in the order of `times`."""
    best: dict[tuple[object, ...], Measured] = {}
    for each in times:
        key = (each.gpu, each.kind, each.batch, each.context, each.heads, each.queries)
        if key not in best or each.seconds < best[key].seconds:
            best[key] = each
    return list(best.values())


def _likely(row: Row, work: Work) -> list[int]:
    """The numbers of splits with which there are about two programs for each SM."""
    programs = work.batch * tiles(row.candidate.tile, work) / ARCHITECTURES[row.arch].sms
    return sorted(splits_of(row, work), key=lambda each: abs(math.log2(programs * each / 2)))[:_SPLITS]


def _attention(kind: Kind, work: Work, dtype: torch.dtype, device: str) -> Callable[[Row, int], object]:
    """A launch over random latents, in blocks of a shuffled table."""
    blocks = -(-work.context // _BLOCK)
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(work.batch * blocks, generator=generator).to(torch.int32).view(work.batch, blocks)
    stored: CacheDType = "auto" if kind == "bfloat16" else kind
    total = work.batch * blocks * _BLOCK
    rows = latent_rows(stored, total, RANK, ROPE, dtype, device=torch.device(device))
    for start in range(0, total, _WRITTEN):
        count = min(_WRITTEN, total - start)
        latents = torch.randn(count, RANK + ROPE, device=device)
        rows.write(torch.arange(start, start + count, device=device), latents)
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
