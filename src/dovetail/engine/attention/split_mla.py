"""Latent attention where ranks store different positions of a sequence. mla.py has it for one rank.

Each rank writes the latents that it stores, attends to them with the queries of all heads of its group, and merges the
group's results for its own heads. Queries are absorbed, in prompts too: no rank could expand all keys.

Each rank gets what it merges in one collective. The log-sum-exps are float32 (attention/partial.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.engine.attention.latent_rows import LatentRows
from dovetail.engine.attention.partial import attend_part, merge
from dovetail.engine.linear import cast
from dovetail.engine.models.base import ForwardBatch
from dovetail.engine.parallel.group import Context, Group
from dovetail.engine.parallel.split import LocalSpan

# The most scores in memory at once: 16 MiB of float32.
_SCORES = 1 << 22


class SplitLatentCache:
    """One rank's part of one layer's latents. `key_up` [heads, nope, kv_lora_rank] and `value_up` [heads, kv_lora_rank,
    v] belong to this rank's heads; `rows` are the rows of its part."""

    def __init__(self, key_up: Tensor, value_up: Tensor, rows: LatentRows, context: Context) -> None:
        self._key_up = key_up
        self._value_up = value_up
        self._rank = key_up.shape[2]
        self._context = context
        self.rows = rows

    def attend(self, batch: ForwardBatch, queries: Tensor, latents: Tensor) -> Tensor:
        """As `LatentCache.attend`, for this rank's heads."""
        local = self._context.split.of(batch)
        if len(local.stored):
            self.rows.write(local.rows, latents[local.stored])
        tokens, nope = queries.shape[0], self._key_up.shape[1]
        plain, rotary = queries.split_with_sizes([nope, queries.shape[2] - nope], 2)
        absorbed = torch.bmm(cast(plain.transpose(0, 1), self._key_up.dtype), self._key_up).transpose(0, 1)
        own = torch.cat((cast(absorbed), cast(rotary)), -1)
        everyone = self._context.group.joined(own.view(tokens, -1)).view(tokens, -1, own.shape[2])
        parts = [self._span(span, everyone[span.start : span.start + span.length]) for span in local.spans]
        mixed, sums = (torch.cat(part) for part in zip(*parts, strict=True))
        merged = cast(merge_heads(self._context.group, mixed, sums), self._value_up.dtype)
        values = torch.bmm(merged.transpose(0, 1), self._value_up).transpose(0, 1)
        return cast(values.reshape(tokens, -1), queries.dtype)

    def _span(self, span: LocalSpan, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of `queries` to this rank's rows, in parts if the scores would take too much memory."""
        latents = self.rows.read(span.rows)
        step = max(1, _SCORES // (queries.shape[1] * max(1, len(latents))))
        parts = [
            attend_part(queries[start : start + step], latents, span.ends[start : start + step], self._rank)
            for start in range(0, span.length, step)
        ]
        return torch.cat([mixed for mixed, _ in parts]), torch.cat([sums for _, sums in parts])


def merge_heads(group: Group, mixed: Tensor, sums: Tensor) -> Tensor:
    """`mixed` [tokens, size * heads, rank] and `sums` [tokens, size * heads], float32, as `attend_part` gives them.

    Returns [tokens, heads, rank]: the merged latents of this rank's heads.
    """
    tokens, heads, rank = mixed.shape
    by_owner = mixed.view(tokens, group.size, heads // group.size, rank).transpose(0, 1)
    packed = torch.cat((by_owner, sums.view(tokens, group.size, -1, 1).transpose(0, 1)), -1)
    received = group.exchange(packed)
    return merge(received[..., :rank], received[..., rank])[0]
