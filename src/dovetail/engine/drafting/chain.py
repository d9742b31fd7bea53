"""Chained drafting: a small network that reads the target's hidden states and then its own. EAGLE-3 and MTP.

The alignment, which training must share (as in vLLM and SGLang):

- Slot t pairs the target's feature at position t with the embedding of token t + 1, at rope position t, and predicts
  token t + 2.
- Chained step j (from 1) follows at rope position t + j: it pairs the embedding of the token just drafted with the
  network's own hidden state of the step before, in place of a feature.

Keys and values of chained steps are guesses. Before they are read again they are overwritten by the slots of these
positions, with the target's features. A slot depends on the token after its own, so the tables have a lookahead of 1.

P-EAGLE has the same slots, and drafts a whole window in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from dovetail.engine.cache.tables import Tables
from dovetail.engine.drafting.base import NO_DRAFT, Chooser, Draft, Head, Observed
from dovetail.engine.models.base import ForwardBatch, collate
from dovetail.engine.request import Request

LOOKAHEAD = 1


class Network(Head, Protocol):
    """The network of a chained drafter. Its head reads hidden states that `run` returned."""

    aux_layers: tuple[int, ...]

    def enter(self, features: Tensor) -> Tensor:
        """Turn the target's features [n, width] into hidden states of this network [n, hidden]."""

    def run(self, batch: ForwardBatch, hidden: Tensor) -> Tensor:
        """One pass over the embeddings of the batch's tokens and `hidden`: the hidden states for the next step."""


# The most bytes of features that wait for free blocks, over all sequences.
_WAITING_BYTES = 64 << 20


@dataclass(slots=True)
class Slots:
    """The slots of one sequence: how many are in the cache, the hidden state of the last one if this request computed
    it, and the observations that wait because no blocks were free. Nothing is drafted while some wait."""

    computed: int
    hidden: Tensor | None = None
    waiting: list[Observed] = field(default_factory=list)


class ChainDrafter:
    """A `Drafter` that runs a `Network` once per draft token."""

    def __init__(self, network: Network, tables: Tables, choose: Chooser) -> None:
        self.aux_layers = network.aux_layers
        self._network = network
        self._tables = tables
        self._choose = choose
        self._slots: dict[str, Slots] = {}

    def start(self, request: Request, cached: int) -> int:
        """How many tokens are in this cache too. For the others the target has to compute the features again."""
        own = self._tables.begin(request.id, request.tokens, cached, request.cache_salt)
        self._slots[request.id] = Slots(own)
        return own

    def observe(self, observed: Sequence[Observed]) -> None:
        """Run the network over all new slots at once, so that features need not be stored and the cache is shared."""
        parts = []
        features: list[Tensor] = []
        observing: list[tuple[Request, Slots]] = []
        for item in observed:
            request = item.request
            slots = self._slots.get(request.id)
            if slots is None or item.features is None:
                continue
            start = slots.waiting[0].start if slots.waiting else item.start
            end = item.start + item.count
            if not self._tables.reserve(request.id, end):
                self._wait(item, slots)
                continue
            parts.append((request.tokens[start + 1 : end + 1], start, self._tables[request.id]))
            features += [late.features for late in slots.waiting if late.features is not None]
            features.append(item.features)
            slots.waiting.clear()
            observing.append((request, slots))
        if not parts:
            return
        batch = collate(parts)
        hidden = self._network.run(batch, self._network.enter(joined(features)))
        for (request, slots), span in zip(observing, batch.spans, strict=True):
            slots.computed += span.length
            last = span.start + span.length - 1
            # A copy, because a view would keep the hidden states of the whole prompt in memory.
            slots.hidden = hidden[last : last + 1].clone()
            self._tables.publish(request.id, request.tokens, slots.computed)

    def _wait(self, item: Observed, slots: Slots) -> None:
        """Keep `item` until blocks are free. If too much waits already, the request continues without drafts, because
        slots after a gap cannot be computed."""
        assert item.features is not None
        # A copy, because a view would keep the features of the whole step in memory.
        slots.waiting.append(replace(item, features=item.features.clone()))
        slots.hidden = None
        waiting = (late.features for own in self._slots.values() for late in own.waiting)
        if sum(features.nbytes for features in waiting if features is not None) > _WAITING_BYTES:
            self.release(item.request)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        """A chain of drafts for each sequence whose last slot is computed and whose drafts fit into the cache."""
        tokens: list[list[int]] = [[] for _ in requests]
        probs: list[list[Tensor]] = [[] for _ in requests]
        alive, states = self._ready(requests, counts)
        step = 0
        while alive:
            hidden = joined(states)
            drafted = self._choose(self._network, hidden, [requests[i] for i in alive], [probs[i] for i in alive])
            for i, token in zip(alive, drafted, strict=True):
                tokens[i].append(token)
            step += 1
            going_on = [n for n, i in enumerate(alive) if counts[i] > step]
            if len(going_on) < len(alive):
                hidden = hidden[going_on]
                alive = [alive[n] for n in going_on]
            if alive:
                parts = [
                    ([tokens[i][-1]], self._slots[requests[i].id].computed - 1 + step, self._tables[requests[i].id])
                    for i in alive
                ]
                states = [self._network.run(collate(parts), hidden)]
        return drafts(tokens, probs)

    def matched(self, request: Request) -> int | None:
        return None

    def release(self, request: Request) -> None:
        self._slots.pop(request.id, None)
        self._tables.release(request.id)

    def check_integrity(self, requests: set[str]) -> None:
        """As `Drafter.check_integrity`: exactly the requests with slots have blocks."""
        self._tables.check_integrity(set(self._slots) & requests)

    def _ready(self, requests: Sequence[Request], counts: Sequence[int]) -> tuple[list[int], list[Tensor]]:
        """Which of `requests` can be drafted for, and the hidden states of their last slots."""
        ready: list[int] = []
        states: list[Tensor] = []
        for i, (request, count) in enumerate(zip(requests, counts, strict=True)):
            slots = self._slots.get(request.id)
            if slots is None or slots.hidden is None:
                continue
            if self._tables.reserve(request.id, slots.computed + count - 1):
                ready.append(i)
                states.append(slots.hidden)
        return ready, states


class ParallelDrafter(ChainDrafter):
    """A `Drafter` for P-EAGLE (https://arxiv.org/abs/2602.01469): an EAGLE-3 network that drafts a window in one pass.

    The slots and the first draft are EAGLE-3's. Drafts 2 to K come from K - 1 masked slots at the next rope positions.
    Each masked slot pairs the embedding of one trained token, `mask_token`, with one trained feature, `mask_feature`
    [1, width], and attends to the slots and masked slots before it. Drafted tokens are never an input.
    """

    def __init__(
        self, network: Network, tables: Tables, choose: Chooser, mask_token: int, mask_feature: Tensor
    ) -> None:
        super().__init__(network, tables, choose)
        self._mask_token = mask_token
        self._mask_hidden = network.enter(mask_feature)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        tokens: list[list[int]] = [[] for _ in requests]
        probs: list[list[Tensor]] = [[] for _ in requests]
        ready, states = self._ready(requests, counts)
        if not ready:
            return drafts(tokens, probs)
        owners = list(ready)
        parts = []
        for i in ready:
            masked = counts[i] - 1
            if masked:
                slots = self._slots[requests[i].id]
                parts.append(([self._mask_token] * masked, slots.computed, self._tables[requests[i].id]))
                owners += [i] * masked
        if parts:
            batch = collate(parts)
            states.append(self._network.run(batch, self._mask_hidden.expand(len(batch.tokens), -1)))
        own = [requests[i] for i in owners], [probs[i] for i in owners]
        chosen = self._choose(self._network, joined(states), *own)
        for i, token in zip(owners, chosen, strict=True):
            tokens[i].append(token)
        return drafts(tokens, probs)


def joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def drafts(tokens: Sequence[list[int]], probs: Sequence[list[Tensor]]) -> list[Draft]:
    """A `Draft` for each list of tokens."""
    return [
        Draft(own, torch.stack(drawn) if drawn else None) if own else NO_DRAFT
        for own, drawn in zip(tokens, probs, strict=True)
    ]
