"""A decoder: embeddings, a stack of layers, a norm, a head. All targets are of this form; base.py has the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.engine.casting import cast
from dovetail.engine.config import TargetConfig
from dovetail.engine.models.base import ForwardBatch
from dovetail.engine.models.layers import Options, RMSNorm, rotary_table


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
        self._layers = list(layers)
        self._norm = RMSNorm(weights["model.norm.weight"].to(dtype), config.rms_norm_eps)
        self._ranks = options.ranks.tensor
        head = self._ranks.own(self.embed_tokens) if config.tie_word_embeddings else weights["lm_head.weight"].to(dtype)
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
        return self._ranks.joined(cast(self._lm_head(hidden)))

    def best(self, hidden: Tensor) -> Tensor:
        return self._ranks.best(cast(self._lm_head(hidden)))
