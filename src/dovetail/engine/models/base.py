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

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from dovetail.engine.attention.causal import PREFILL
from dovetail.engine.cache.tables import BlockTable
from dovetail.engine.parallel.sizes import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a batch.

    Its queries are tokens ``start:start + length`` of the batch. They attend to `rows` of the cache, in order of
    position, of which the last are the queries' own. `rows` is a slice where the sequence's blocks are contiguous, so
    that keys are read in place: copying 800 rows costs more than attending to them. `blocks` are those of its table,
    which may have grown since; `end` is the position after its last token.
    """

    start: int
    length: int
    rows: slice | Tensor
    blocks: Sequence[int] = ()
    end: int = 0


@dataclass(frozen=True, slots=True)
class Paged:
    """The windows at the beginning of a batch, for the kernel that decodes on a GPU (`attention/gpu_mla.py`).

    `table` int32 [windows, blocks]; `starts` int32 [windows + 1] counts tokens; `ends` int32 [tokens] is the position
    after each token. `longest`: the most rows of a window's sequence, `most_queries` the most tokens of a window.
    """

    table: Tensor
    starts: Tensor
    ends: Tensor
    longest: int
    most_queries: int

    @property
    def windows(self) -> int:
        return self.table.shape[0]

    @property
    def tokens(self) -> int:
        return self.ends.shape[0]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """What one forward pass computes: `tokens`, `positions` and `rows` are int64 [tokens]."""

    tokens: Tensor
    positions: Tensor
    rows: Tensor
    spans: tuple[Span, ...]
    paged: Paged | None = None

    def on(self, device: torch.device) -> ForwardBatch:
        """This batch for models on `device`, copied in one piece; on a GPU with `paged`, if it begins with windows."""
        if device == self.tokens.device:
            return self
        windows = list(itertools.takewhile(lambda span: span.length <= PREFILL, self.spans))
        size = len(self.tokens)
        flat = [*self.tokens.tolist(), *self.positions.tolist(), *self.rows.tolist()]
        starts = [*(span.start for span in windows), windows[-1].start + windows[-1].length] if windows else []
        width = max((-(-span.end // BLOCK_SIZE) for span in windows), default=0)
        for span in windows:
            own = span.blocks[: -(-span.end // BLOCK_SIZE)]
            flat += [*own, *[0] * (width - len(own))]
        there = torch.tensor(flat + starts).pin_memory().to(device, non_blocking=True)
        tokens, positions, rows = there[: 3 * size].view(3, size)
        batch = ForwardBatch(tokens, positions, rows, self.spans)
        if not windows:
            return batch
        narrow = there[3 * size :].to(torch.int32)
        paged = Paged(
            narrow[: len(windows) * width].view(len(windows), width),
            narrow[len(windows) * width :],
            (positions[: starts[-1]] + 1).to(torch.int32),
            max(span.end for span in windows),
            max(span.length for span in windows),
        )
        return replace(batch, paged=paged)


class Model(Protocol):
    """A target. `logits` maps hidden states [n, hidden_size] to float32 [n, vocab_size], and `best` to the token of the
    largest, int64 [n], the first one of equals: for ranks that is much less to exchange."""

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
        spans.append(Span(len(tokens), len(new), cache.up_to(end), cache.blocks, end))
        tokens += new
        positions += range(position, end)
        rows += cache.of(position, end)
    flat = torch.tensor((tokens, positions, rows))
    return ForwardBatch(flat[0], flat[1], flat[2], tuple(spans))
