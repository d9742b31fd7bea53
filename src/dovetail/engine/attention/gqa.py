"""Paged attention over per-head keys and values: grouped queries, and MLA whose heads are cheaper expanded.

The cache is head-major ([kv_heads, rows, width]), so that a sequence with contiguous blocks is read in place. Keys and
values may have different widths, and cache and queries different types.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.engine.attention.causal import causal_mask, check_cached, fused, fused_attention, query_blocks
from dovetail.engine.linear import cast
from dovetail.engine.models.base import ForwardBatch, Span
from dovetail.engine.settings import AttentionBackend


class HeadCache:
    """Keys and values of one layer. Rows are not initialised: only written rows may be attended to."""

    def __init__(
        self,
        heads: int,
        key_width: int,
        value_width: int,
        rows: int,
        dtype: torch.dtype,
        backend: AttentionBackend = "auto",
    ) -> None:
        check_cached(dtype)
        self.keys = torch.empty(heads, rows, key_width, dtype=dtype)
        self.values = torch.empty(heads, rows, value_width, dtype=dtype)
        self._backend = backend

    def attend(self, batch: ForwardBatch, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write `keys` and `values`, then attend with `queries`; all three are [tokens, heads, width].

        Queries are already scaled, and consecutive query heads share a key-value head. Returns [tokens, heads *
        value_width].
        """
        self.keys.index_copy_(1, batch.rows, cast(keys.transpose(0, 1), self.keys.dtype))
        self.values.index_copy_(1, batch.rows, cast(values.transpose(0, 1), self.values.dtype))
        if len(batch.spans) == 1:
            return self._span(batch.spans[0], queries)
        return torch.cat([self._span(s, queries[s.start : s.start + s.length]) for s in batch.spans])

    def _span(self, span: Span, queries: Tensor) -> Tensor:
        keys, values = self.keys[:, span.rows], self.values[:, span.rows]
        length, heads, _ = queries.shape
        if fused(self._backend, length):
            keys, values = cast(keys, queries.dtype), cast(values, queries.dtype)
            return fused_attention(queries.transpose(0, 1), keys, values)
        # For a few rows, converting bfloat16 to float32 is faster than torch's product in bfloat16.
        keys, values, wide = cast(keys), cast(values), cast(queries)
        blocks = list(query_blocks(length, keys.shape[1], heads))
        if len(blocks) == 1:
            return cast(_products(wide, keys, values), queries.dtype)
        parts = [_products(wide[start:end], keys[:, :seen], values[:, :seen]) for start, end, seen in blocks]
        return cast(torch.cat(parts), queries.dtype)


def _products(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention by plain products: queries [length, heads, width], keys and values [kv_heads, context, …].

    Query heads that share keys are rows of one product, so that the keys are read once.
    """
    length, heads, width = queries.shape
    kv_heads, context, value_width = values.shape
    if length == 1:
        grouped = queries.view(kv_heads, -1, width)
    elif heads == kv_heads:
        grouped = queries.transpose(0, 1)
    else:
        grouped = queries.view(length, kv_heads, -1, width).permute(1, 2, 0, 3).reshape(kv_heads, -1, width)
    scores = torch.bmm(grouped, keys.transpose(1, 2))
    if length > 1:
        by_query = scores if heads == kv_heads else scores.view(kv_heads, -1, length, context)
        by_query[..., context - length :].add_(causal_mask(length))
    mixed = torch.bmm(scores.softmax(-1), values)
    if length == 1:
        return mixed.view(1, heads * value_width)
    if heads == kv_heads:
        return mixed.transpose(0, 1).reshape(length, heads * value_width)
    return mixed.view(kv_heads, -1, length, value_width).permute(2, 0, 1, 3).reshape(length, heads * value_width)
