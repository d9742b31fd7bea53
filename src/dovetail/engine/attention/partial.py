"""Attention over a part of a context, and how parts become the whole: the kernel's oracle, and what ranks exchange.

A part gives two values for each query and head: the mixed latents of the rows that it read, and the log-sum-exp of
their scores. Parts are merged by these log-sum-exps, which are float32 here and everywhere: with bfloat16, merged
attention is 8 to 10 times less exact (docs/mla.md).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attend_part(queries: Tensor, latents: Tensor, ends: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Attention of `queries` [tokens, heads, rank + rope], absorbed and scaled, to `latents` [rows, rank + rope].

    Query i sees the first ``ends[i]`` rows (int64 [tokens]). Returns float32 [tokens, heads, rank] and [tokens, heads]:
    zeros and -inf for a query that sees none.
    """
    scores = torch.einsum("thw,nw->thn", queries.float(), latents.float())
    hidden = torch.arange(len(latents), device=ends.device) >= ends.view(-1, 1, 1)
    scores = scores.masked_fill(hidden, -math.inf)
    sums = scores.logsumexp(-1) if len(latents) else scores.new_full(scores.shape[:2], -math.inf)
    weights = (scores - _finite(sums).unsqueeze(-1)).exp()
    return torch.einsum("thn,nw->thw", weights, latents[:, :rank].float()), sums


def query_ends(starts: Tensor, lengths: Tensor, tokens: int) -> Tensor:
    """How many rows of its own sequence each of `tokens` queries sees, int32 [tokens], without waiting for the device.

    Tokens ``starts[s]`` to ``starts[s + 1]`` are the last tokens of sequence s, which has ``lengths[s]`` rows, these
    tokens included (int32 [sequences + 1] and [sequences]). Tokens after the last sequence are padding and see no row.
    """
    token = torch.arange(tokens, dtype=starts.dtype, device=starts.device)
    stops = starts[1:]
    sequence = torch.searchsorted(stops, token, right=True).clamp_max_(len(stops) - 1)
    after = stops[sequence] - 1 - token
    ends = (lengths[sequence] - after).clamp_min_(0)
    return ends.masked_fill_(after < 0, 0).to(torch.int32)


def merge(mixed: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Merge parts [parts, tokens, heads, rank] by their log-sum-exps [parts, tokens, heads], both float32."""
    total = sums.logsumexp(0)
    weights = (sums - _finite(total)).exp().unsqueeze(-1)
    # A part that saw nothing may hold anything, and 0 times NaN is NaN.
    return (weights * mixed.masked_fill(weights == 0, 0.0)).sum(0), total


def _finite(sums: Tensor) -> Tensor:
    """`sums` with 0 in place of -inf, because -inf minus -inf would be NaN."""
    return sums.masked_fill(sums == -math.inf, 0.0)
