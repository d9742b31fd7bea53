"""Laws of ranks, for `threads` and `processes` alike: each takes the group, and raises where the law does not hold."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from dovetail.engine.attention.partial import attend_part
from dovetail.engine.attention.split_mla import merge_heads
from dovetail.engine.cache.tables import BlockTable
from dovetail.engine.models.base import Model, collate
from dovetail.engine.models.layers import Options
from dovetail.engine.models.registry import build_model
from dovetail.engine.parallel.group import Group
from dovetail.engine.parallel.sizes import Sizes, part
from dovetail.engine.parallel.split import Split
from dovetail.engine.settings import CacheDType
from dovetail.engine.weights import inspect_target, load_tensors
from tests.engine.ranks import layout

TOKENS = [(i * 37 + 5) % 97 for i in range(41)]
#: A prompt in parts, a token, a window of a token and its drafts, a token.
CHUNKS = [(0, 20), (20, 21), (21, 26), (26, 41)]


def collectives(group: Group) -> None:
    """Each collective gives what its docstring says, of tensors that every rank can compute for all."""
    size, rank = group.size, group.rank
    every = torch.randn(size, size, 3, 2, generator=torch.Generator().manual_seed(size))
    own = every[rank]
    assert torch.equal(group.gather(own), every)
    assert torch.equal(group.joined(own[0]), torch.cat(list(every[:, 0]), -1))
    assert torch.equal(group.exchange(own), every[:, rank])
    summed = group.sum_(own.clone())
    assert torch.allclose(summed, every.sum(0), atol=1e-6)
    assert all(torch.equal(summed, other) for other in group.gather(summed)), "the bits differ from rank to rank"
    assert torch.equal(group.from_first(own.clone()), every[0])
    assert torch.equal(group.sum_(group.once(own.clone())), group.gather(own)[0])
    assert torch.equal(group.own(torch.arange(4 * size)), torch.arange(4 * rank, 4 * rank + 4))
    transposed = torch.arange(6.0).view(2, 3).t()
    assert torch.equal(group.gather(transposed)[size - 1], transposed)


def best(group: Group, rows: torch.Tensor) -> list[int]:
    """The first of the largest numbers of each row [rows, columns], of which every rank has its columns only."""
    width = rows.shape[1] // group.size
    tokens: list[int] = group.best(rows[:, group.rank * width : (group.rank + 1) * width]).tolist()
    assert tokens == rows.argmax(-1).tolist()
    return tokens


def merged(group: Group, seed: int, interleave: int, rows: int, tokens: int) -> None:
    """Attention over a context that is split by position, and merged, is attention over the whole."""
    heads, rank, rope = 4, 8, 2
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(tokens, heads, rank + rope, generator=generator)
    latents = torch.randn(rows, rank + rope, generator=generator)
    ends = torch.arange(rows - tokens + 1, rows + 1)
    split = Split(group.rank, group.size, interleave)
    own = latents[split.stores(torch.arange(rows))]
    mixed, sums = attend_part(queries, own, split.count(ends), rank)
    expected = attend_part(queries, latents, ends, rank)[0].chunk(group.size, 1)[group.rank]
    assert torch.allclose(merge_heads(group, mixed, sums), expected, atol=1e-5)


def nothing_seen(group: Group) -> None:
    """A rank without rows counts nothing, whatever its part holds; where nobody has rows, the result is zero."""
    mixed = torch.full((2, 4, 8), math.nan if group.rank else 1.0)
    sums = torch.full((2, 4), -math.inf if group.rank else 3.0)
    assert torch.equal(merge_heads(group, mixed, sums), torch.ones(2, 4 // group.size, 8))
    assert not merge_heads(group, torch.full_like(mixed, math.nan), torch.full_like(sums, -math.inf)).any()


def load(group: Group | None, path: Path, sizes: Sizes, kind: CacheDType = "auto") -> Model:
    """This rank's part of the model in `path`, or without a group the whole model."""
    rank, ranks = (0, 1) if group is None else (group.rank, group.size)
    checkpoint = inspect_target(path)
    names = checkpoint.config.expected_tensors()
    return build_model(
        part(checkpoint.config, ranks),
        load_tensors(checkpoint.tensors, names, rank=rank, ranks=ranks),
        rows=512 // sizes.context,
        context=256,
        dtype=torch.float32,
        options=Options(kind, ranks=None if group is None else layout(group, sizes)),
    )


def logits(group: Group | None, path: Path, sizes: Sizes, kind: CacheDType = "auto") -> torch.Tensor:
    """At every position, chunk by chunk, of two sequences: one whose blocks are contiguous and one whose are not."""
    model = load(group, path, sizes, kind)
    size = 16 * sizes.context
    straight, scattered = BlockTable(size), BlockTable(size)
    for block in range(64 // size + 1):
        straight.append(block)
    for block in (7, 5, 4, 6)[: 64 // size] if size < 64 else (7,):
        scattered.append(block)
    parts = []
    for start, end in CHUNKS:
        new = TOKENS[start:end]
        batch = collate([(new, start, straight), (new[::-1], start, scattered)])
        parts.append(model.forward(batch)[0].view(2, end - start, -1))
    hidden = torch.cat(parts, 1).flatten(0, 1)
    scores = model.logits(hidden)
    assert torch.equal(model.best(hidden), scores.argmax(-1))
    return scores
