"""Paged attention over per-head keys and values: grouped queries, and MLA whose heads are cheaper expanded.

The cache is head-major ([kv_heads, rows, width]) so that a sequence whose blocks lie side by side is read in place,
each head contiguous. Key and value widths may differ.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.engine.attention.causal import PREFILL, causal_mask
from dovetail.engine.models.base import ForwardBatch, Span


class HeadCache:
    """Keys and values of one layer. Rows hold whatever was written last; only written rows may be attended to."""

    def __init__(self, heads: int, key_width: int, value_width: int, rows: int, dtype: torch.dtype) -> None:
        self.keys = torch.empty(heads, rows, key_width, dtype=dtype)
        self.values = torch.empty(heads, rows, value_width, dtype=dtype)

    def attend(self, batch: ForwardBatch, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write `keys` and `values`, then let `queries` look at them; all three are [tokens, heads, width].

        Queries are already scaled, and consecutive query heads share a key-value head. Returns [tokens, heads *
        value_width].
        """
        self.keys.index_copy_(1, batch.rows, keys.transpose(0, 1))
        self.values.index_copy_(1, batch.rows, values.transpose(0, 1))
        if len(batch.spans) == 1:
            return self._span(batch.spans[0], queries)
        return torch.cat([self._span(s, queries[s.start : s.start + s.length]) for s in batch.spans])

    def _span(self, span: Span, queries: Tensor) -> Tensor:
        keys, values = self.keys[:, span.rows], self.values[:, span.rows]
        length, heads, width = queries.shape
        kv_heads, context, value_width = values.shape
        if length > PREFILL and length == context:
            return prefill(queries.transpose(0, 1), keys, values)
        if heads == kv_heads:
            grouped = queries.transpose(0, 1)
        else:
            grouped = queries.view(length, kv_heads, -1, width).permute(1, 2, 0, 3).reshape(kv_heads, -1, width)
        scores = torch.bmm(grouped, keys.transpose(1, 2))
        if length > 1:
            scores.view(kv_heads, -1, length, context)[..., context - length :].add_(causal_mask(length))
        mixed = torch.bmm(scores.softmax(-1, dtype=torch.float32).to(values.dtype), values)
        return mixed.view(kv_heads, -1, length, value_width).permute(2, 0, 1, 3).reshape(length, heads * value_width)


def prefill(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of a whole prompt to itself, all [heads, tokens, width]; returns [tokens, heads * value_width].

    The fused kernel never holds the tokens x tokens scores, but wants keys and values of one width.
    """
    value_width = values.shape[-1]
    values = F.pad(values, (0, keys.shape[-1] - value_width))
    mixed = F.scaled_dot_product_attention(
        queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), is_causal=True, scale=1.0, enable_gqa=True
    )
    return mixed[0, :, :, :value_width].transpose(0, 1).reshape(queries.shape[1], -1)
