"""The contract of a model: a flat batch of tokens in, a hidden state per token out.

The tokens of a step are concatenated, sequence by sequence. A sequence may have a whole prompt, one token, or a window
of one token and its drafts. A model

1. embeds `ForwardBatch.tokens` at `positions`,
2. in every layer writes each token's keys and values to `rows` of that layer's cache, then lets each sequence's queries
   attend causally to its own `context` rows,
3. returns ``(hidden, aux)``: `hidden` [tokens, hidden_size] after the final norm, ready for `logits`; `aux` [tokens,
   len(aux_layers) * hidden_size], where auxiliary layer i is the residual stream that enters layer i (the embedding
   for 0, the last layer's output before the final norm for num_hidden_layers, `hidden` itself for one more), or None
   when no layer was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dovetail.engine.cache.tables import BlockTable


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a batch.

    Its queries are tokens ``start:start + length`` of the batch. They attend to `rows` of the cache, in order of
    position, of which the last are the queries' own. `rows` is a slice where the sequence's blocks are contiguous, so
    that keys are read in place: copying 800 rows costs more than attending to them.
    """

    start: int
    length: int
    rows: slice | Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """What one forward pass computes: `tokens`, `positions` and `rows` are int64 [tokens]."""

    tokens: Tensor
    positions: Tensor
    rows: Tensor
    spans: tuple[Span, ...]


class Model(Protocol):
    """A target. `logits` maps hidden states [n, hidden_size] to float32 [n, vocab_size]. `best` maps them to the token
    with the largest logit, int64 [n], the lowest id if several are equal. Ranks exchange far less for `best`."""

    vocab_size: int
    embed_tokens: Tensor

    def forward(self, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def best(self, hidden: Tensor) -> Tensor: ...


def collate(parts: list[tuple[list[int], int, BlockTable]]) -> ForwardBatch:
    """The batch of these sequences: for each, its new tokens, the position of the first, and its block table."""
    tokens: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    spans: list[Span] = []
    for new, position, cache in parts:
        end = position + len(new)
        spans.append(Span(len(tokens), len(new), cache.up_to(end)))
        tokens += new
        positions += range(position, end)
        rows += cache.of(position, end)
    flat = torch.tensor((tokens, positions, rows))
    return ForwardBatch(flat[0], flat[1], flat[2], tuple(spans))
