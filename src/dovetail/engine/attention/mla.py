"""Paged multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1): one latent per token.

The cache stores the output of kv_a_proj_with_mqa, normed and rotated: [rows, kv_lora_rank + rope], shared by all heads
(`latent_rows.py`).
A decode window does not expand it: W_UK is applied to the query and W_UV to the mixed latents ("absorbed"), so a step
reads each cached latent and not heads x (nope + v) numbers. For a long prompt, expanding once is cheaper.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from dovetail.engine.attention.causal import (
    PREFILL,
    causal_mask,
    fused,
    fused_attention,
    head_blocks,
    query_blocks,
)
from dovetail.engine.attention.latent_rows import LatentRows
from dovetail.engine.linear import cast
from dovetail.engine.models.base import ForwardBatch, Span
from dovetail.engine.settings import AttentionBackend


class LatentCache:
    """The latents of one layer, and the two halves of kv_b_proj that are absorbed around them.

    `key_up` is [heads, nope, kv_lora_rank], `value_up` [heads, kv_lora_rank, v], both of the type that they are
    multiplied in.
    """

    def __init__(self, key_up: Tensor, value_up: Tensor, rows: LatentRows, backend: AttentionBackend = "auto") -> None:
        self._key_up = key_up
        self._value_up = value_up
        self._rank = key_up.shape[2]
        self._backend = backend
        # Expanding a row costs rank * (nope + v) multiplications per head. It saves each query the difference between
        # attending to the latent and to a key and value.
        nope, value = key_up.shape[1], value_up.shape[2]
        saved = 2 * self._rank - nope - value
        self._limit = max(PREFILL, self._rank * (nope + value) // saved) if saved > 0 else sys.maxsize
        self.rows = rows

    def attend(self, batch: ForwardBatch, queries: Tensor, latents: Tensor) -> Tensor:
        """Write `latents` [tokens, kv_lora_rank + rope], then attend with `queries` [tokens, heads, nope + rope].

        The queries are scaled already. Returns [tokens, heads * v].
        """
        self.rows.write(batch.rows, latents)
        if len(batch.spans) == 1:
            return self._span(batch.spans[0], queries)
        return torch.cat([self._span(s, queries[s.start : s.start + s.length]) for s in batch.spans])

    def _span(self, span: Span, queries: Tensor) -> Tensor:
        latents = self.rows.read(span.rows)
        length = queries.shape[0]
        if fused(self._backend, length, self._limit):
            return self._expanded(queries, cast(latents, self._key_up.dtype))
        nope = self._key_up.shape[1]
        plain, rotary = queries.split_with_sizes([nope, queries.shape[2] - nope], 2)
        absorbed = torch.bmm(cast(plain.transpose(0, 1), self._key_up.dtype), self._key_up).transpose(0, 1)
        mixed = cast(self._mixed(cast(torch.cat((absorbed, rotary), -1)), cast(latents)), self._value_up.dtype)
        values = torch.bmm(mixed.transpose(0, 1), self._value_up).transpose(0, 1)
        return cast(values.reshape(length, -1), queries.dtype)

    def _mixed(self, queries: Tensor, latents: Tensor) -> Tensor:
        """Mixed latents [length, heads, kv_lora_rank], in parts where the scores would take too much memory."""
        blocks = list(query_blocks(queries.shape[0], latents.shape[0], queries.shape[1]))
        if len(blocks) == 1:
            return self._products(queries, latents)
        return torch.cat([self._products(queries[start:end], latents[:seen]) for start, end, seen in blocks])

    def _products(self, queries: Tensor, latents: Tensor) -> Tensor:
        """Causal attention by plain products: mixed latents [length, heads, kv_lora_rank]."""
        length, heads, width = queries.shape
        context = latents.shape[0]
        scores = torch.mm(queries.view(length * heads, width), latents.t()).view(length, heads, context)
        if length > 1:
            scores[..., context - length :].add_(causal_mask(length).unsqueeze(1))
        mixed = torch.mm(scores.softmax(-1).view(length * heads, context), latents[:, : self._rank])
        return mixed.view(length, heads, self._rank)

    def _expanded(self, queries: Tensor, latents: Tensor) -> Tensor:
        compressed, rope = latents[:, : self._rank], latents[:, self._rank :]
        parts = []
        starts = head_blocks(queries.shape[1], latents.shape[0], queries.shape[2] + self._value_up.shape[2])
        for start in starts:
            heads = slice(start, start + starts.step)
            nope_keys = torch.matmul(compressed, self._key_up[heads].mT)
            keys = torch.cat((nope_keys, rope.expand(nope_keys.shape[0], -1, -1)), -1).to(queries.dtype)
            values = torch.matmul(compressed, self._value_up[heads]).to(queries.dtype)
            parts.append(fused_attention(queries[:, heads].transpose(0, 1), keys, values))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
