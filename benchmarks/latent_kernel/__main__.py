"""Which share of a GPU's memory bandwidth the decode kernel reaches, beside vLLM's, SGLang's and FlashMLA.

python -m benchmarks.latent_kernel [--peers FOLDER] [--json FILE]

Each time is the median of replays of a CUDA graph that runs the kernel over several caches in turn, so that no cache is
in the L2 cache of the GPU when it is read. The share is the bytes of all cached rows, once, by the time and the data
sheet's bandwidth. Every kernel's result is compared with that of the oracle in float32.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table as Shown
from torch import Tensor

from benchmarks.latent_kernel.peers import Batch, Run, peers
from dovetail.engine.attention.latent_rows import LatentRows, latent_rows
from dovetail.engine.attention.partial import attend_part
from dovetail.engine.attention.triton_mla import Launch, attend_latents
from dovetail.engine.tuning.model import Work, choose
from dovetail.engine.tuning.table import ARCHITECTURES, KINDS, RANK, ROPE, ROW_BYTES, table

#: Twice the largest L2 cache of these GPUs.
_BYTES = 256 << 20
_MOST_SETS = 32
_REPLAYS = 15


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latent_kernel", description=__doc__)
    parser.add_argument("--peers", type=Path, help="the folder that benchmarks/latent_kernel/setup.sh has made")
    parser.add_argument("--cache", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--context", nargs="+", type=int, default=[1024, 8192, 65536])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--heads", nargs="+", type=int, default=[8, 64], help="of this GPU: Kimi-K2.5 has 64 in all")
    parser.add_argument("--queries", nargs="+", type=int, default=[1, 4], help="drafts and one")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    major, minor = torch.cuda.get_device_capability()
    arch, gpu = f"sm_{major}{minor}", torch.cuda.get_device_name()
    others = list(peers(arguments.peers)) if arguments.peers else []
    shown = Shown("cache", "heads", "queries", "context", "batch", "Dovetail", *(name for name, _ in others))
    rows = []
    for kind in arguments.cache:
        for work in (
            Work(batch, context, heads, queries)
            for heads in arguments.heads
            for queries in arguments.queries
            for context in arguments.context
            for batch in arguments.batch
        ):
            size = work.batch * work.context * ROW_BYTES[kind]
            sets = max(1, min(_MOST_SETS, -(-_BYTES // size)))
            batches = [Batch(kind, work, seed) for seed in range(sets)]
            stored = [_rows(batch) for batch in batches]
            makers: dict[str, Callable[[int], Run | None]] = {
                "Dovetail": lambda i, b=batches, s=stored, a=arch: _ours(b[i], s[i], a)  # type: ignore[misc]
            }
            for name, make in others:
                makers[name] = lambda i, m=make, b=batches, s=stored: m(b[i], _as_stored(s[i]))  # type: ignore[misc]
            row: dict[str, object] = {"cache": kind, "work": work._asdict(), "gpu": gpu}
            expected = _expected(batches[0], stored[0])
            for name, maker in makers.items():
                row[name] = _measured([maker(i) for i in range(sets)], expected, size, arch)
            rows.append(row)
            shown.add_row(
                *(kind, str(work.heads), str(work.queries), f"{work.context:,}", str(work.batch)),
                *(_cell(row[name]) for name in makers),
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(rows, indent=1))
    console = Console(width=160)
    console.print(shown)
    console.print(f"{gpu}; microseconds, share of {ARCHITECTURES[arch].bandwidth / 1e12:.2f} TB/s")


def _cell(result: object) -> str:
    if not isinstance(result, dict):
        return str(result or "")
    return f"{result['microseconds']:,.0f} us, {result['share']:.0%}"


def _rows(batch: Batch) -> LatentRows:
    """The batch's latents, stored as its kind."""
    kind = "bfloat16" if batch.kind == "bfloat16" else batch.kind
    rows = latent_rows(kind, len(batch.latents), RANK, ROPE, torch.bfloat16, device=torch.device("cuda"))
    step = 1 << 18
    for start in range(0, len(batch.latents), step):
        part = batch.latents[start : start + step]
        rows.write(torch.arange(start, start + len(part), device="cuda"), part)
    batch.latents = batch.latents[:0]
    return rows


def _as_stored(rows: LatentRows) -> Tensor:
    """The cache as other engines take it."""
    return rows.data if rows.data.dtype == torch.bfloat16 else rows.data.view(torch.float8_e4m3fn)


def _ours(batch: Batch, rows: LatentRows, arch: str) -> Run:
    work = batch.work
    tokens = work.batch * work.queries
    starts = torch.arange(0, tokens + 1, work.queries, dtype=torch.int32, device="cuda")
    queries, _, ends = batch.rows_of_queries
    choice = choose(table(), arch, batch.kind, work)
    tile = choice.row.candidate
    launch = Launch(tile.block_n, tile.tile, tile.stages, tile.warps, choice.queries, choice.splits)

    def run() -> Tensor:
        return attend_latents(
            *(queries, rows, batch.table, starts, ends),
            rank=RANK,
            block_size=batch.block,
            most_queries=work.queries,
            launch=launch,
        )[0]

    return run


def _expected(batch: Batch, rows: LatentRows) -> Tensor:
    """What the first sequence's queries mix, by the oracle."""
    work = batch.work
    within = torch.arange(batch.block, device="cuda")
    index = (batch.table[0].long().unsqueeze(-1) * batch.block + within).flatten()[: work.context]
    ends = torch.arange(work.context - work.queries + 1, work.context + 1, device="cuda")
    return attend_part(batch.queries[0].float(), rows.read(index).float(), ends, RANK)[0]


def _measured(runs: Sequence[Run | None], expected: Tensor, size: int, arch: str) -> dict[str, float] | str | None:
    own = [run for run in runs if run is not None]
    if not own:
        return None
    try:
        off = ((own[0]()[: len(expected)].float() - expected).norm() / expected.norm()).item()
        seconds = _seconds(own)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:90]
    if not off < 0.05:
        return f"wrong by {off:.0%}"
    share = size / seconds / ARCHITECTURES[arch].bandwidth
    return {"microseconds": seconds * 1e6, "share": share, "error": off}


def _seconds(runs: Sequence[Run]) -> float:
    """Seconds of one run: the median of replays of a graph that runs all of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for run in runs:
            run()
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    times = []
    for _ in range(_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(runs))
    return statistics.median(times)


if __name__ == "__main__":
    main()
