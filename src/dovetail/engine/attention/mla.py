"""Paged multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1): one latent per token.

The cache holds what kv_a_proj_with_mqa made, normed and rotated: [rows, kv_lora_rank + rope], shared by all heads. A
decode window never expands it: W_UK is applied to the query and W_UV to the mixed latents ("absorbed"), so a step reads
each cached latent and not heads x (nope + v) numbers. A whole prompt is cheaper expanded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.engine.attention.causal import PREFILL, causal_mask
from dovetail.engine.attention.gqa import prefill
from dovetail.engine.models.base import ForwardBatch, Span


class LatentCache:
    """The latents of one layer, and the two halves of kv_b_proj that are absorbed around them.

    `key_up` is [heads, nope, kv_lora_rank], `value_up` [heads, kv_lora_rank, v].
    """

    def __init__(self, key_up: Tensor, value_up: Tensor, rope_width: int, rows: int) -> None:
        self._key_up = key_up
        self._value_up = value_up
        self._rank = key_up.shape[2]
        self.latents = torch.empty(rows, self._rank + rope_width, dtype=key_up.dtype)

    def attend(self, batch: ForwardBatch, queries: Tensor, latents: Tensor) -> Tensor:
        """Write `latents` ([tokens, kv_lora_rank + rope]), then let `queries` ([tokens, heads, nope + rope], already
        scaled) look at them. Returns [tokens, heads * v]."""
        self.latents.index_copy_(0, batch.rows, latents)
        if len(batch.spans) == 1:
            return self._span(batch.spans[0], queries)
        return torch.cat([self._span(s, queries[s.start : s.start + s.length]) for s in batch.spans])

    def _span(self, span: Span, queries: Tensor) -> Tensor:
        latents = self.latents[span.rows]
        length, heads, _ = queries.shape
        context = latents.shape[0]
        if length > PREFILL and length == context:
            return self._expanded(queries, latents)
        nope = self._key_up.shape[1]
        absorbed = torch.bmm(queries[..., :nope].transpose(0, 1), self._key_up).transpose(0, 1)
        absorbed = torch.cat((absorbed, queries[..., nope:]), -1).view(length * heads, -1)
        scores = torch.mm(absorbed, latents.t()).view(length, heads, context)
        if length > 1:
            scores[..., context - length :].add_(causal_mask(length).unsqueeze(1))
        weights = scores.softmax(-1, dtype=torch.float32).to(latents.dtype).view(length * heads, context)
        mixed = torch.mm(weights, latents[:, : self._rank]).view(length, heads, self._rank)
        return torch.bmm(mixed.transpose(0, 1), self._value_up).transpose(0, 1).reshape(length, -1)

    def _expanded(self, queries: Tensor, latents: Tensor) -> Tensor:
        compressed, rope = latents[:, : self._rank], latents[:, self._rank :]
        nope_keys = torch.matmul(compressed, self._key_up.transpose(1, 2))
        keys = torch.cat((nope_keys, rope.expand(nope_keys.shape[0], -1, -1)), -1)
        return prefill(queries.transpose(0, 1), keys, torch.matmul(compressed, self._value_up))
