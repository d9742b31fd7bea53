"""A decoder: embeddings, a stack of layers, a norm, a head. All targets are of this form; base.py has the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.engine.config import TargetConfig
from dovetail.engine.linear import cast
from dovetail.engine.models.base import ForwardBatch
from dovetail.engine.models.layers import Options, RMSNorm, rotary_table
from dovetail.engine.parallel.group import Group


class Attention(Protocol):
    """Attention of one layer, with the cache it writes to and reads from."""

    def add(self, batch: ForwardBatch, x: Tensor, table: Tensor, residual: Tensor) -> Tensor:
        """``residual + attention(x)``; `table` holds the batch's rotations, [tokens, 1, rotated width / 2]."""


class FeedForward(Protocol):
    """The MLP or the experts of one layer."""

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """``residual + f(x)``."""


Layer = tuple[RMSNorm, Attention, RMSNorm, FeedForward]


class Decoder:
    """A target. `layers` is consumed one by one; `context` is the highest position plus one."""

    def __init__(
        self,
        config: TargetConfig,
        weights: Mapping[str, Tensor],
        layers: Iterable[Layer],
        context: int,
        dtype: torch.dtype,
        aux_layers: Sequence[int],
        options: Options,
    ) -> None:
        self.vocab_size = config.vocab_size
        self.embed_tokens = weights["model.embed_tokens.weight"].to(dtype)
        self._aux_layers = tuple(aux_layers)
        self._table = rotary_table(config.rope, config.rotary_width, context).unsqueeze(1)
        self._ranks = None if options.ranks is None else options.ranks.tensor
        self._layers = list(layers if self._ranks is None else (_summed(layer, self._ranks) for layer in layers))
        self._norm = RMSNorm(weights["model.norm.weight"].to(dtype), config.rms_norm_eps)
        head = self.embed_tokens if config.tie_word_embeddings else weights["lm_head.weight"].to(dtype)
        if config.tie_word_embeddings and self._ranks is not None:
            head = self._ranks.own(head)
        self._lm_head = options.linear(head)

    def forward(self, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        table = self._table[batch.positions]
        stream = F.embedding(batch.tokens, self.embed_tokens)
        entering: dict[int, Tensor] = {}
        for i, (input_norm, attention, post_norm, mlp) in enumerate(self._layers):
            if i in self._aux_layers:  # to keep all of them would take memory for each layer
                entering[i] = stream
            stream = attention.add(batch, input_norm(stream), table, stream)
            stream = mlp.add(post_norm(stream), stream)
        hidden = self._norm(stream)
        entering |= {len(self._layers): stream, len(self._layers) + 1: hidden}
        aux = torch.cat([entering[i] for i in self._aux_layers], -1) if self._aux_layers else None
        return hidden, aux

    def logits(self, hidden: Tensor) -> Tensor:
        logits = cast(self._lm_head(hidden))
        return logits if self._ranks is None else self._ranks.joined(logits)

    def best(self, hidden: Tensor) -> Tensor:
        logits = cast(self._lm_head(hidden))
        return logits.argmax(-1) if self._ranks is None else self._ranks.best(logits)


class SummedAttention:
    """Attention whose heads are divided over `group`. Rank 0 adds the residual, and the ranks' results are summed."""

    def __init__(self, attention: Attention, group: Group) -> None:
        self._attention = attention
        self._group = group

    def add(self, batch: ForwardBatch, x: Tensor, table: Tensor, residual: Tensor) -> Tensor:
        return self._group.sum_(self._attention.add(batch, x, table, self._group.once(residual)))


class SummedFeedForward:
    """An MLP or experts whose widths are divided over `group`, summed as in `SummedAttention`."""

    def __init__(self, part: FeedForward, group: Group) -> None:
        self._part = part
        self._group = group

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._group.sum_(self._part.add(x, self._group.once(residual)))


def _summed(layer: Layer, group: Group) -> Layer:
    input_norm, attention, post_norm, mlp = layer
    return input_norm, SummedAttention(attention, group), post_norm, SummedFeedForward(mlp, group)
