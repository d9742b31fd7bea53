"""EAGLE-3 drafting (https://arxiv.org/abs/2503.01840): one Llama layer fed by three hidden states of the target.

The alignment, which training must share (it is vLLM's `llama_eagle3`):

- Slot t pairs the target's feature at index t with the embedding of token t + 1, at rope position t, and predicts token
  t + 2. A feature is ``fc`` of the residual streams that enter the target's layers `aux_layers`, joined.
- The layer sees ``cat(input_layernorm(embedding), hidden_norm(feature))``. Its residual is the feature, or the normed
  feature when `norm_before_residual`.
- Chained step j (from 1) follows at rope position t + j: the embedding is the token just drafted, and in place of the
  feature (without `fc`) stands the previous step's hidden state before the final norm.

Keys and values of chained steps are guesses; the real features of those positions overwrite them before they are read
again. The drafter's cache uses the same rows as the target's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.engine.attention.gqa import HeadCache
from dovetail.engine.config import DrafterConfig
from dovetail.engine.drafting.base import Draft
from dovetail.engine.linear import Linear
from dovetail.engine.models.base import ForwardBatch, collate
from dovetail.engine.models.layers import MLP, RMSNorm, interleave, rotary_table, rotate_
from dovetail.engine.request import Request
from dovetail.errors import CheckpointError


class Eagle3:
    """The drafter. `embed_tokens` is the target's table, for checkpoints that bring none of their own."""

    def __init__(
        self,
        config: DrafterConfig,
        weights: Mapping[str, Tensor],
        *,
        embed_tokens: Tensor,
        rows: int,
        context: int,
        dtype: torch.dtype,
    ) -> None:
        def weight(name: str) -> Tensor:
            return weights[name].to(dtype)

        def norm(name: str) -> RMSNorm:
            return RMSNorm(weight(name), config.rms_norm_eps)

        layer = "layers.0."
        heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.aux_layers = config.aux_layers
        self._vocab_size = config.vocab_size
        self._heads, self._kv_heads, self._width = heads, kv_heads, width
        self._normed_residual = config.norm_before_residual
        own = weights.get("embed_tokens.weight")
        self._embed = embed_tokens if own is None else own.to(dtype)
        self._fc = Linear(weight("fc.weight"))
        self._input_norm = norm(layer + "input_layernorm.weight")
        self._hidden_norm = norm(layer + "hidden_norm.weight")
        q = interleave(weights[layer + "self_attn.q_proj.weight"].float() * width**-0.5, heads).to(dtype)
        k = interleave(weight(layer + "self_attn.k_proj.weight"), kv_heads)
        self._qkv = Linear(torch.cat((q, k, weight(layer + "self_attn.v_proj.weight"))))
        self._o = Linear(weight(layer + "self_attn.o_proj.weight"))
        self._post_norm = norm(layer + "post_attention_layernorm.weight")
        self._mlp = MLP(*(weight(f"{layer}mlp.{part}_proj.weight") for part in ("gate", "up", "down")))
        self._norm = norm("norm.weight")
        self._lm_head = Linear(weight("lm_head.weight"))
        self._target_ids: Tensor | None = None
        if "d2t" in weights:
            self._target_ids = weights["d2t"] + torch.arange(config.draft_vocab_size)
            if not bool(((self._target_ids >= 0) & (self._target_ids < config.vocab_size)).all()):
                raise CheckpointError(f"d2t points outside the target's vocabulary of {config.vocab_size}")
        self._table = rotary_table(config.rope, width, context)
        self._cache = HeadCache(kv_heads, width, width, rows, dtype)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        """Take in the features since last time, then draft a chain for each sequence."""
        hidden = self._take_in(requests)
        tokens: list[list[int]] = [[] for _ in requests]
        probs: list[list[Tensor]] = [[] for _ in requests]
        alive = list(range(len(requests)))
        for step in range(max(counts)):
            if step:
                hidden = self._chain([requests[i] for i in alive], [tokens[i][-1] for i in alive], hidden, step)
            logits = self._lm_head(self._norm(hidden)).float()
            drafted = self._choose(logits, [requests[i] for i in alive], [probs[i] for i in alive])
            for i, token in zip(alive, drafted, strict=True):
                tokens[i].append(token)
            going_on = [n for n, i in enumerate(alive) if counts[i] > step + 1]
            if going_on and len(going_on) < len(alive):
                hidden = hidden[going_on]
            alive = [alive[n] for n in going_on]
        return [Draft(t, torch.stack(p) if p else None) for t, p in zip(tokens, probs, strict=True)]

    def _take_in(self, requests: Sequence[Request]) -> Tensor:
        """Run the layer over every pending feature; returns the hidden state of each sequence's last slot."""
        parts = []
        features: list[Tensor] = []
        for request in requests:
            start, end = request.drafter_computed, len(request.tokens) - 1
            parts.append((request.tokens[start + 1 :], start, request.rows))
            features += request.features
            request.features = []
            request.drafter_computed = end
        batch = collate(parts)
        hidden = self._layer(batch, self._fc(torch.cat(features) if len(features) > 1 else features[0]))
        return hidden[[span.start + span.length - 1 for span in batch.spans]]

    def _chain(self, requests: Sequence[Request], drafted: Sequence[int], hidden: Tensor, step: int) -> Tensor:
        parts = [
            ([token], request.drafter_computed - 1 + step, request.rows)
            for token, request in zip(drafted, requests, strict=True)
        ]
        return self._layer(collate(parts), hidden)

    def _layer(self, batch: ForwardBatch, hidden: Tensor) -> Tensor:
        tokens, rotated = hidden.shape[0], self._heads + self._kv_heads
        normed = self._hidden_norm(hidden)
        embedded = self._input_norm(F.embedding(batch.tokens, self._embed))
        qkv = self._qkv(torch.cat((embedded, normed), -1)).view(tokens, -1, self._width)
        rotate_(qkv[:, :rotated], self._table[batch.positions].unsqueeze(1))
        mixed = self._cache.attend(batch, qkv[:, : self._heads], qkv[:, self._heads : rotated], qkv[:, rotated:])
        stream = self._o(mixed).add_(normed if self._normed_residual else hidden)
        return self._mlp.add(self._post_norm(stream), stream)

    def _choose(self, logits: Tensor, requests: Sequence[Request], probs: Sequence[list[Tensor]]) -> list[int]:
        """A draft for each row: the likeliest for a greedy request, drawn at its temperature for one that samples."""
        chosen = logits.argmax(-1)
        for i, request in enumerate(requests):
            if request.greedy:
                continue
            distribution = (logits[i] / request.sampling.temperature).softmax(-1)
            chosen[i : i + 1] = torch.multinomial(distribution, 1, generator=request.generator)
            probs[i].append(self._over_target_vocabulary(distribution))
        if self._target_ids is not None:
            chosen = self._target_ids[chosen]
        ids: list[int] = chosen.tolist()
        return ids

    def _over_target_vocabulary(self, distribution: Tensor) -> Tensor:
        if self._target_ids is None:
            return distribution
        return torch.zeros(self._vocab_size).index_copy_(0, self._target_ids, distribution)
