"""How long a launch of the decode kernel takes, by a model: what orders the table where nothing was measured.

Where `dovetail tune --measure` has measured an architecture and a type of cache, its times choose instead: the fastest
launch of the nearest batch, context, heads and queries that were measured.

For a batch of sequences of one length, the first pass has ``batch * tiles * splits`` programs. An SM holds `resident`
of them, so they run in ``waves`` (rounded up: a last wave that is almost empty takes as long as a full one). A wave
takes the longest of three times, for an SM and the programs it holds:

- bytes: what they read, by the SM's share of the bandwidth. Of tiles of one sequence that read the same rows, one reads
  them from memory and the others from the L2 cache, `_L2` times as fast. The bandwidth is only reached while enough is
  under way (Little's law): bytes in flight, ``block_n * row`` for each program, over what the SM's share of the
  bandwidth would deliver within the latency. Stages do not count: Triton 3.9 pipelines the loads of the block table but
  not the loads of the rows that depend on it (a third stage takes 256 bytes of shared memory and not a block of rows).
- products: ``2 * tile * (2 * rank + rope)`` operations for each row of cache, padding included.
- latency: each block of rows takes at least `_STEP`, for two dependent products and a softmax between them.

With more than one part there is the second pass: its launch, and float32 parts written and read. What is not in the
model: clocks, the softmax's own time, traffic of other kernels. It orders tiles; it does not promise times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from dovetail.engine.tuning.table import ARCHITECTURES, RANK, ROPE, ROW_BYTES, Kind, Measured, Row, Table

_LATENCY = 0.8e-6  # seconds from a load's start to its data
_STEP = 0.5e-6
_LAUNCH = 3e-6
_L2 = 2.5  # how many times faster than memory
_MOST_SPLITS = 128


class Work(NamedTuple):
    """A step's decode on one GPU: sequences, cached tokens of each, heads on this rank, queries (drafts and one)."""

    batch: int
    context: int
    heads: int
    queries: int


class KernelChoice(NamedTuple):
    """A row of the table, how many queries share a tile, into how many parts the cache is cut, predicted seconds."""

    row: Row
    queries: int
    splits: int
    seconds: float


def seconds(row: Row, work: Work, splits: int) -> float:
    """The predicted time of both passes."""
    arch, block_n, tile = ARCHITECTURES[row.arch], row.candidate.block_n, row.candidate.tile
    of_sequence = tiles(tile, work)
    blocks = math.ceil(math.ceil(work.context / block_n) / splits)
    programs = work.batch * of_sequence * splits
    resident = max(1, min(row.resident, math.ceil(programs / arch.sms)))
    waves = math.ceil(programs / (arch.sms * resident))
    row_bytes = ROW_BYTES[row.kind]
    read = blocks * block_n * row_bytes * (1 + (of_sequence - 1) / _L2) / of_sequence
    share = arch.bandwidth / min(arch.sms, programs)
    under_way = block_n * row_bytes * resident
    share = min(share, arch.bandwidth / arch.sms * 2, under_way / _LATENCY)
    operations = 2 * tile * (2 * RANK + ROPE) * blocks * block_n
    wave = max(resident * read / share, resident * operations / (arch.products / arch.sms), blocks * _STEP)
    first = _LAUNCH + waves * wave
    if splits == 1:
        return first
    parts = work.batch * work.queries * work.heads * splits * RANK * 4
    return first + _LAUNCH + 2 * parts / (arch.bandwidth * _L2)


def choose(table: Table, arch: str, kind: Kind, work: Work) -> KernelChoice:
    """The launch with the least time, measured or predicted. Raises `EngineError` where the table has no rows."""
    rows = table.of(arch, kind)
    # The model knows nothing of spills: only a measurement chooses a tile that does.
    whole = [row for row in rows if not row.stack] or rows
    return _measured(table, rows, work) or min(_choices(whole, work), key=lambda choice: choice.seconds)


def _measured(table: Table, rows: Iterable[Row], work: Work) -> KernelChoice | None:
    """The fastest launch of the nearest work that was measured for any of `rows`; None if nothing was measured."""
    of = {(row.arch, row.kind, row.candidate): row for row in rows}
    found = [each for each in table.measured if (each.arch, each.kind, each.candidate) in of]
    if not found:
        return None
    fastest = min(found, key=lambda each: (_distance(each, work), each.seconds))
    row = of[fastest.arch, fastest.kind, fastest.candidate]
    splits = min(fastest.splits, max(splits_of(row, work)))
    return KernelChoice(row, min(work.queries, row.candidate.tile), splits, fastest.seconds)


def _distance(each: Measured, work: Work) -> float:
    """How many doublings lie between what was measured and `work`, over all four of its numbers."""
    there = (each.batch, each.context, each.heads, each.queries)
    return sum(abs(math.log2(a / max(b, 1))) for a, b in zip(there, work, strict=True))


def splits_of(row: Row, work: Work) -> list[int]:
    """The numbers of parts that the cache may be cut into: powers of two, while a part has a block."""
    most = max(1, min(_MOST_SPLITS, math.ceil(work.context / row.candidate.block_n)))
    return [1 << i for i in range(most.bit_length())]


def _choices(rows: Iterable[Row], work: Work) -> Iterable[KernelChoice]:
    for row in rows:
        together = min(work.queries, row.candidate.tile)
        for splits in splits_of(row, work):
            yield KernelChoice(row, together, splits, seconds(row, work, splits))


def tiles(tile: int, work: Work) -> int:
    """How many tiles the queries of one sequence are."""
    together = min(work.queries, tile)
    return math.ceil(work.heads / (tile // together)) * math.ceil(work.queries / together)


def floor(kind: Kind, arch: str, work: Work) -> float:
    """The time that memory alone takes: every cached row once, by the bandwidth."""
    return work.batch * work.context * ROW_BYTES[kind] / ARCHITECTURES[arch].bandwidth
