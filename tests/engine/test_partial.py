"""Attention over parts of a context, merged by log-sum-exps, is attention over the whole."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.attention.partial import attend_part, merge
from tests.examples import examples

RANK, ROPE, HEADS = 16, 4, 3


def made(seed: int, tokens: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(tokens, HEADS, RANK + ROPE, generator=generator)
    return queries, torch.randn(rows, RANK + ROPE, generator=generator)


def naive(queries: torch.Tensor, latents: torch.Tensor, end: int) -> tuple[list[float], float]:
    """One query of one head, number by number."""
    if end == 0:
        return [0.0] * RANK, -math.inf
    weights = [math.exp(float(queries.double() @ row.double())) for row in latents[:end]]
    total = sum(weights)
    return [
        sum(w * float(row[i]) for w, row in zip(weights, latents, strict=False)) / total for i in range(RANK)
    ], math.log(total)


@given(seed=st.integers(0, 1000), ends=st.lists(st.integers(0, 9), min_size=1, max_size=3))
@examples(8)
def test_a_part_is_what_a_loop_computes(seed: int, ends: list[int]) -> None:
    queries, latents = made(seed, len(ends), 9)
    mixed, sums = attend_part(queries, latents, torch.tensor(ends), RANK)
    for token, end in enumerate(ends):
        for head in range(HEADS):
            expected, total = naive(queries[token, head], latents, end)
            assert torch.allclose(mixed[token, head], torch.tensor(expected), atol=1e-5)
            assert torch.allclose(sums[token, head], torch.tensor(total), atol=1e-5)


@given(seed=st.integers(0, 1000), ranks=st.integers(1, 5), interleave=st.integers(1, 4), tokens=st.integers(1, 3))
@examples(16)
def test_parts_of_any_ranks_are_the_whole(seed: int, ranks: int, interleave: int, tokens: int) -> None:
    """Row i is on rank (i // interleave) % ranks. A query's end there is not the last query's less the difference."""
    queries, latents = made(seed, tokens, 13)
    ends = torch.arange(13 - tokens + 1, 14)
    owner = torch.arange(13) // interleave % ranks
    parts = []
    for rank in range(ranks):
        local = torch.tensor([int((owner[:end] == rank).sum()) for end in ends.tolist()])
        parts.append(attend_part(queries, latents[owner == rank], local, RANK))
    mixed, sums = merge(torch.stack([part[0] for part in parts]), torch.stack([part[1] for part in parts]))
    expected = attend_part(queries, latents, ends, RANK)
    assert torch.allclose(mixed, expected[0], atol=1e-5) and torch.allclose(sums, expected[1], atol=1e-5)


def test_a_part_that_saw_nothing_counts_nothing_whatever_it_holds() -> None:
    queries, latents = made(0, 2, 5)
    mixed, sums = attend_part(queries, latents, torch.tensor([5, 0]), RANK)
    empty = torch.full_like(mixed, math.nan), torch.full_like(sums, -math.inf)
    both = merge(torch.stack((mixed, empty[0])), torch.stack((sums, empty[1])))
    assert torch.equal(both[0][0], mixed[0]) and torch.equal(both[1], sums)
    assert not both[0][1].any() and both[1][1].eq(-math.inf).all()
    none = attend_part(queries, latents[:0], torch.tensor([0, 0]), RANK)
    assert not none[0].any() and none[1].eq(-math.inf).all()


def test_sums_in_bfloat16_would_be_five_times_less_exact() -> None:
    """As vLLM 0.33's Triton backend stores them; with the parts themselves in bfloat16 in both cases."""
    generator = torch.Generator().manual_seed(0)
    # Normal scores with a deviation of 2, over 8 shards of 512 rows: the one number of a latent that is not zero.
    sums, mixed = [], []
    values = torch.randn(8, 512, 64, generator=generator)
    scores = torch.randn(8, 32, 512, generator=generator) * 2
    for shard in range(8):
        sums.append(scores[shard].logsumexp(-1)[None])
        mixed.append((scores[shard].softmax(-1) @ values[shard])[None])
    parts, exact = torch.stack(mixed).bfloat16().float(), torch.stack(sums)
    truth = merge(torch.stack(mixed), exact)[0]
    error = [(merge(parts, kept)[0] - truth).norm() / truth.norm() for kept in (exact, exact.bfloat16().float())]
    assert error[1] > 5 * error[0]
