"""Decode over latents on a GPU: the kernel, in two passes. `attention/partial.py` is its oracle.

1. `attend_parts`: a program has a tile of `TILE` rows: some heads times some tokens of one sequence. It reads one part
   of the sequence's cache, `BLOCK_N` rows at a time, once for all of the tile. So verifying K drafts reads the cache
   once, not K + 1 times. Each row of the tile has its own end in the cache.
2. `merge_parts`: merges the parts of a row by their log-sum-exps. With one part there is nothing to merge.

A latent is read in four sub-tiles of `RANK` / 4 numbers. A sub-tile of FP8 becomes float16 by three integer
operations, on every architecture: each byte's bits, moved, are the float16 of a 256th of its value. Nothing goes by way
of float32, so the tile in shared memory has two bytes a number and not six. Scales of packed rows (one for 128 numbers)
multiply scores and weights, which are few, and not numbers.

What is read next does not wait for what is computed now. Where a row is comes from the block table, one step ahead, so
that Triton can pipeline the loads of the rows (a load whose address is loaded in the same step is not pipelined). Bytes
have to become float16 on their way to shared memory, which Triton does not pipeline: they are read a step ahead into
registers. Loads of rows are not masked, because masked loads are not pipelined either: a row past the end is the last
row again, and its score is masked.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dovetail.engine.attention.latent_rows import FloatRows, LatentRows, PackedRows, ScaledRows
from dovetail.errors import EngineError

#: How the kernel calls the layouts of rows.
LAYOUTS: dict[type[LatentRows], int] = {FloatRows: 0, ScaledRows: 1, PackedRows: 2}


class Launch(NamedTuple):
    """How the kernel is compiled (the first four) and started: queries that share a tile, and parts of the cache.

    `tile` (rows) and `block_n` are powers of two and 16 or more. A tile has ``tile // queries`` heads.
    """

    block_n: int
    tile: int
    stages: int
    warps: int
    queries: int = 1
    splits: int = 1


@triton.jit
def _near(table, begin, stop, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which rows of the cache are the `BLOCK_N` from position `begin` on. A position past the end is the last one."""
    near = tl.minimum(begin + tl.arange(0, BLOCK_N), stop - 1)
    block = tl.load(table + near // BLOCK_SIZE, mask=near >= 0, other=0)
    return block.to(tl.int64) * BLOCK_SIZE + tl.maximum(near, 0) % BLOCK_SIZE


@triton.jit
def _read(rows, RANK: tl.constexpr, ROPE: tl.constexpr, LAYOUT: tl.constexpr, GROUP: tl.constexpr):
    """Four sub-tiles of latents, the rotated numbers, and the scales of packed rows (else 1), as they are stored."""
    PART: tl.constexpr = RANK // 4
    rotated = tl.arange(0, ROPE)
    keys = rows[:, None] + tl.arange(0, PART)[None, :]
    k0, k1, k2, k3 = tl.load(keys), tl.load(keys + PART), tl.load(keys + 2 * PART), tl.load(keys + 3 * PART)
    if LAYOUT == 2:
        scales = (rows + RANK).to(tl.pointer_type(tl.float32))
        s0 = tl.load(scales) * 256.0
        s1 = tl.load(scales + PART // GROUP) * 256.0
        s2 = tl.load(scales + 2 * PART // GROUP) * 256.0
        s3 = tl.load(scales + 3 * PART // GROUP) * 256.0
        turned = (rows + RANK + RANK // GROUP * 4).to(tl.pointer_type(tl.bfloat16))
        kr = tl.load(turned[:, None] + rotated[None, :])
    else:
        s0, s1, s2, s3 = 1.0, 1.0, 1.0, 1.0
        kr = tl.load(rows[:, None] + RANK + rotated[None, :])
    return k0, k1, k2, k3, kr, s0, s1, s2, s3


@triton.jit
def _number(tile, BYTES: tl.constexpr, TYPE: tl.constexpr):
    """A tile as `TYPE`; bytes of e4m3 as a 256th of their values."""
    if BYTES:
        moved = (tile.to(tl.int8, bitcast=True).to(tl.int16) << 7) & -16385
        tile = moved.to(tl.float16, bitcast=True)
    return tile.to(TYPE)


@triton.jit
def _score(query, keys, PRECISION: tl.constexpr):
    return tl.dot(query, tl.trans(keys), input_precision=PRECISION)


#: Compiled once, whatever their values are.
_NUMBERS = ["heads", "table_width", "splits", "queries_of_tile"]


@triton.jit(do_not_specialize=_NUMBERS)
def attend_parts(
    queries,
    data,
    table,
    starts,
    ends,
    mixed,
    sums,
    score_scale,
    scale,
    heads,
    table_width,
    splits,
    queries_of_tile,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    LAYOUT: tl.constexpr,
    ROW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TYPE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One tile of queries over one part of a sequence's cache.

    `queries` [tokens, heads, RANK + ROPE]; `data`: rows of `ROW` elements (bytes, or floats), and for `PACKED` scales
    after `RANK` bytes; `table` int32 [sequences, table_width]; `starts` int32 [sequences + 1] counts tokens; `ends`
    int32 [tokens]; `mixed` [tokens, heads, splits, RANK] and `sums` float32 [tokens, heads, splits] are written.
    `score_scale` multiplies scores; `scale` multiplies bytes that have one scale for all.
    """
    PART: tl.constexpr = RANK // 4
    BYTES: tl.constexpr = LAYOUT != 0
    PRECISION: tl.constexpr = "ieee" if tl.float32 == TYPE else "tf32"
    GROUP: tl.constexpr = 128 if RANK > 128 else RANK
    sequence, part = tl.program_id(0), tl.program_id(2)
    heads_of_tile = TILE // queries_of_tile
    head_blocks = tl.cdiv(heads, heads_of_tile)
    first, last = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    query = tl.arange(0, TILE) // heads_of_tile
    token = first + tl.program_id(1) // head_blocks * queries_of_tile + query
    head = tl.program_id(1) % head_blocks * heads_of_tile + tl.arange(0, TILE) % heads_of_tile
    exists = (query < queries_of_tile) & (token < last) & (head < heads)
    end = tl.load(ends + token, mask=exists, other=0)

    # This program's part of the rows that any of its queries sees, in whole blocks.
    longest = tl.max(end, 0)
    length = tl.cdiv(tl.cdiv(longest, BLOCK_N), splits) * BLOCK_N
    start = part * length
    stop = tl.minimum(start + length, longest)
    end = tl.minimum(end, stop)

    number = tl.arange(0, PART)
    query_row = queries + (token.to(tl.int64) * heads + head)[:, None] * (RANK + ROPE)
    here = exists[:, None]
    q0 = tl.load(query_row + number[None, :], mask=here, other=0.0)
    q1 = tl.load(query_row + PART + number[None, :], mask=here, other=0.0)
    q2 = tl.load(query_row + 2 * PART + number[None, :], mask=here, other=0.0)
    q3 = tl.load(query_row + 3 * PART + number[None, :], mask=here, other=0.0)
    rotated = tl.arange(0, ROPE)
    qr = tl.load(query_row + RANK + rotated[None, :], mask=here, other=0.0)
    # Scores in units of log 2, for exp2.
    unit = tl.full([TILE], 1.4426950408889634, tl.float32) * score_scale
    if BYTES:
        # In float16 a query is at most 1: the largest of its numbers is a factor of its scores.
        largest = tl.maximum(tl.max(tl.abs(q0), 1), tl.max(tl.abs(q1), 1))
        largest = tl.maximum(largest, tl.maximum(tl.max(tl.abs(q2), 1), tl.max(tl.abs(q3), 1)))
        largest = tl.maximum(tl.maximum(largest, tl.max(tl.abs(qr), 1)).to(tl.float32), 1e-30)
        q0, q1 = q0.to(tl.float32) / largest[:, None], q1.to(tl.float32) / largest[:, None]
        q2, q3 = q2.to(tl.float32) / largest[:, None], q3.to(tl.float32) / largest[:, None]
        qr = qr.to(tl.float32) / largest[:, None]
        unit = unit * largest
        if LAYOUT == 1:
            unit = unit * (scale * 256.0)
    q0, q1, q2, q3, qr = q0.to(TYPE), q1.to(TYPE), q2.to(TYPE), q3.to(TYPE), qr.to(TYPE)

    highest = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    m0 = tl.zeros([TILE, PART], tl.float32)
    m1 = tl.zeros([TILE, PART], tl.float32)
    m2 = tl.zeros([TILE, PART], tl.float32)
    m3 = tl.zeros([TILE, PART], tl.float32)
    own = table + sequence.to(tl.int64) * table_width
    row = _near(own, start, stop, BLOCK_SIZE, BLOCK_N)
    if BYTES:
        n0, n1, n2, n3, nr, t0, t1, t2, t3 = _read(data + row * ROW, RANK, ROPE, LAYOUT, GROUP)
    for begin in range(start, stop, BLOCK_N):
        if BYTES:
            k0, k1, k2, k3, kr, s0, s1, s2, s3 = n0, n1, n2, n3, nr, t0, t1, t2, t3
            row = _near(own, begin + BLOCK_N, stop, BLOCK_SIZE, BLOCK_N)
            n0, n1, n2, n3, nr, t0, t1, t2, t3 = _read(data + row * ROW, RANK, ROPE, LAYOUT, GROUP)
        else:
            k0, k1, k2, k3, kr, s0, s1, s2, s3 = _read(data + row * ROW, RANK, ROPE, LAYOUT, GROUP)
            row = _near(own, begin + BLOCK_N, stop, BLOCK_SIZE, BLOCK_N)
        position = begin + tl.arange(0, BLOCK_N)
        k0, k1 = _number(k0, BYTES, TYPE), _number(k1, BYTES, TYPE)
        k2, k3 = _number(k2, BYTES, TYPE), _number(k3, BYTES, TYPE)
        kr = _number(kr, LAYOUT == 1, TYPE)
        if LAYOUT == 2:
            score = _score(qr, kr, PRECISION)
            score += _score(q0, k0, PRECISION) * s0[None, :]
            score += _score(q1, k1, PRECISION) * s1[None, :]
            score += _score(q2, k2, PRECISION) * s2[None, :]
            score += _score(q3, k3, PRECISION) * s3[None, :]
        else:
            score = _score(q0, k0, PRECISION)
            score = tl.dot(q1, tl.trans(k1), score, input_precision=PRECISION)
            score = tl.dot(q2, tl.trans(k2), score, input_precision=PRECISION)
            score = tl.dot(q3, tl.trans(k3), score, input_precision=PRECISION)
            score = tl.dot(qr, tl.trans(kr), score, input_precision=PRECISION)
        score = tl.where(position[None, :] < end[:, None], score * unit[:, None], float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - level[:, None])
        decay = tl.exp2(highest - level)
        total = total * decay + tl.sum(weight, 1)
        highest = higher
        if LAYOUT == 2:
            m0 = tl.dot((weight * s0[None, :]).to(TYPE), k0, m0 * decay[:, None], input_precision=PRECISION)
            m1 = tl.dot((weight * s1[None, :]).to(TYPE), k1, m1 * decay[:, None], input_precision=PRECISION)
            m2 = tl.dot((weight * s2[None, :]).to(TYPE), k2, m2 * decay[:, None], input_precision=PRECISION)
            m3 = tl.dot((weight * s3[None, :]).to(TYPE), k3, m3 * decay[:, None], input_precision=PRECISION)
        else:
            narrow = weight.to(TYPE)
            m0 = tl.dot(narrow, k0, m0 * decay[:, None], input_precision=PRECISION)
            m1 = tl.dot(narrow, k1, m1 * decay[:, None], input_precision=PRECISION)
            m2 = tl.dot(narrow, k2, m2 * decay[:, None], input_precision=PRECISION)
            m3 = tl.dot(narrow, k3, m3 * decay[:, None], input_precision=PRECISION)

    seen = total > 0
    share = tl.where(seen, 1.0 / tl.where(seen, total, 1.0), 0.0)
    if LAYOUT == 1:
        share = share * (scale * 256.0)
    share = share[:, None]
    slot = (token.to(tl.int64) * heads + head) * splits + part
    tl.store(
        sums + slot,
        tl.where(seen, (highest + tl.log2(tl.where(seen, total, 1.0))) * 0.6931471805599453, float("-inf")),
        mask=exists,
    )
    to = mixed + slot[:, None] * RANK + number[None, :]
    tl.store(to, (m0 * share).to(mixed.dtype.element_ty), mask=here)
    tl.store(to + PART, (m1 * share).to(mixed.dtype.element_ty), mask=here)
    tl.store(to + 2 * PART, (m2 * share).to(mixed.dtype.element_ty), mask=here)
    tl.store(to + 3 * PART, (m3 * share).to(mixed.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["splits"])
def merge_parts(mixed, sums, out, total, splits, RANK: tl.constexpr, SPLITS: tl.constexpr):
    """One row of [tokens * heads]: float32 `mixed` [rows, splits, RANK] and `sums` [rows, splits] into `out`, `total`.

    `SPLITS` is the power of two that is not less than `splits`.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, SPLITS)
    own = tl.load(sums + row * splits + part, mask=part < splits, other=float("-inf"))
    highest = tl.max(own, 0)
    level = tl.where(highest == float("-inf"), 0.0, highest)
    whole = tl.sum(tl.exp(own - level), 0)
    number = tl.arange(0, RANK)
    joined = tl.zeros([RANK], tl.float32)
    for i in range(splits):
        weight = tl.exp(tl.load(sums + row * splits + i) - level)
        # A part that saw nothing may hold anything, and 0 times NaN is NaN.
        seen_numbers = tl.where(weight > 0, RANK, 0)
        joined += weight * tl.load(mixed + (row * splits + i) * RANK + number, mask=number < seen_numbers, other=0.0)
    seen = whole > 0
    joined = joined / tl.where(seen, whole, 1.0)
    tl.store(out + row * RANK + number, joined.to(out.dtype.element_ty))
    tl.store(total + row, tl.where(seen, level + tl.log(tl.where(seen, whole, 1.0)), float("-inf")))


def attend_latents(
    queries: Tensor,
    rows: LatentRows,
    table: Tensor,
    starts: Tensor,
    ends: Tensor,
    *,
    rank: int,
    block_size: int,
    most_queries: int,
    launch: Launch,
    score_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Attend with `queries` [tokens, heads, rank + rope], absorbed, to the latents of their sequences.

    `table` int32 [sequences, blocks] has each sequence's blocks of `block_size` rows. Tokens ``starts[s]`` to
    ``starts[s + 1]`` are of sequence s (int32 [sequences + 1]), `most_queries` of them at most. Query i sees the first
    ``ends[i]`` rows of its sequence (int32 [tokens]); no row is read that none of its sequence's queries sees. Scores
    are multiplied by `score_scale`: 1 if the queries are scaled already.

    Returns the mixed latents [tokens, heads, rank], of the queries' type, and the log-sum-exps [tokens, heads] in
    float32: zeros and -inf where a query sees nothing, and for tokens after the last sequence's, which pad a batch.
    Raises `EngineError` for widths that the kernel does not have.
    """
    tokens, heads, width = queries.shape
    check_widths(rank, width - rank)
    splits = launch.splits
    out = queries.new_zeros(tokens, heads, rank)
    total = torch.full((tokens, heads), -torch.inf, dtype=torch.float32, device=queries.device)
    parts = out if splits == 1 else total.new_empty(tokens, heads, splits, rank)
    sums = total if splits == 1 else total.new_full((tokens, heads, splits), -torch.inf)
    together = min(launch.queries, launch.tile)
    tiles = triton.cdiv(heads, launch.tile // together) * triton.cdiv(most_queries, together)
    attend_parts[(len(starts) - 1, tiles, splits)](
        *(queries.contiguous(), rows.data, table, starts, ends, parts, sums),
        *(score_scale, getattr(rows, "scale", 1.0), heads, table.shape[1], splits, together),
        RANK=rank,
        ROPE=width - rank,
        LAYOUT=LAYOUTS[type(rows)],
        ROW=rows.data.shape[1],
        BLOCK_SIZE=block_size,
        TYPE=dot_type(queries.dtype, rows.data.dtype),
        TILE=launch.tile,
        BLOCK_N=launch.block_n,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
    if splits > 1:
        merge_parts[(tokens * heads,)](
            parts, sums, out, total, splits, RANK=rank, SPLITS=triton.next_power_of_2(splits), num_warps=4
        )
    return out, total


def check_widths(rank: int, rope: int) -> None:
    """Raises `EngineError` unless sub-tiles of a latent are powers of two that a tensor core takes."""
    for name, width, least in (("kv_lora_rank", rank, 64), ("qk_rope_head_dim", rope, 16)):
        if width < least or width & (width - 1):
            raise EngineError(f"{name} is {width}, and the GPU kernel needs a power of two that is {least} or more")


def dot_type(queries: torch.dtype, stored: torch.dtype) -> tl.dtype:
    """The type of the products: float16 for bytes, which it holds exactly; else the queries'; float32 for float32."""
    if queries == torch.float32:
        return tl.float32
    return tl.float16 if stored == torch.uint8 or queries == torch.float16 else tl.bfloat16
