"""Drafting by a small network that reads the target's hidden states and goes on from its own: EAGLE-3 and MTP.

The alignment, which training must share (it is vLLM's and SGLang's):

- Slot t pairs the target's feature at position t with the embedding of token t + 1, at rope position t, and predicts
  token t + 2.
- Chained step j (from 1) follows at rope position t + j: the embedding is the token just drafted, and in place of the
  feature stands the network's own hidden state of the step before.

Keys and values of chained steps are guesses; the slots of those positions, once the target's features are there,
overwrite them before they are read again. A slot depends on the token after its own, hence the tables' lookahead of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dovetail.engine.cache.tables import Tables
from dovetail.engine.drafting.base import NO_DRAFT, Draft, Observed
from dovetail.engine.drafting.choose import Chooser
from dovetail.engine.models.base import ForwardBatch, collate
from dovetail.engine.request import Request

LOOKAHEAD = 1


class Network(Protocol):
    """What is drafted with."""

    aux_layers: tuple[int, ...]

    def enter(self, features: Tensor) -> Tensor:
        """The target's features [n, width] as this network's hidden states [n, hidden]."""

    def run(self, batch: ForwardBatch, hidden: Tensor) -> Tensor:
        """One pass: embeddings of the batch's tokens beside `hidden`, to the hidden state that goes on."""

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [n, draft vocabulary], of hidden states that `run` returned."""


@dataclass(slots=True)
class Slots:
    """How many slots of a sequence are in the cache, and the hidden state of the last, if it was computed here."""

    computed: int
    hidden: Tensor | None = None


class ChainDrafter:
    """The `Drafter` around a `Network`."""

    def __init__(self, network: Network, tables: Tables, choose: Chooser) -> None:
        self.aux_layers = network.aux_layers
        self._network = network
        self._tables = tables
        self._choose = choose
        self._slots: dict[str, Slots] = {}

    def start(self, request: Request, cached: int) -> int:
        """As much as this cache holds too: the features of what the target does not compute are not to be had."""
        found = self._tables.begin(request.id, request.tokens, cached)
        self._slots[request.id] = Slots(found)
        return found

    def observe(self, observed: Sequence[Observed]) -> None:
        """Run the network over the new slots at once: their features are let go, their cache can be shared."""
        parts = []
        features: list[Tensor] = []
        kept: list[tuple[Request, Slots]] = []
        for item in observed:
            request = item.request
            slots = self._slots.get(request.id)
            if slots is None or item.features is None:
                continue
            end = item.start + item.count
            if not self._tables.reserve(request.id, end):
                # No room: this request goes on without drafts, since slots cannot be computed with a gap.
                self.release(request)
                continue
            parts.append((request.tokens[item.start + 1 : end + 1], item.start, self._tables[request.id]))
            features.append(item.features)
            kept.append((request, slots))
        if not parts:
            return
        batch = collate(parts)
        hidden = self._network.run(batch, self._network.enter(joined(features)))
        for (request, slots), span in zip(kept, batch.spans, strict=True):
            slots.computed += span.length
            last = span.start + span.length - 1
            # A copy: a view would keep the whole prompt's hidden states.
            slots.hidden = hidden[last : last + 1].clone()
            self._tables.publish(request.id, request.tokens, slots.computed)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        """A chain for each sequence whose last slot is known and whose guesses have room in the cache."""
        tokens: list[list[int]] = [[] for _ in requests]
        probs: list[list[Tensor]] = [[] for _ in requests]
        alive, states = self._ready(requests, counts)
        step = 0
        while alive:
            hidden = joined(states)
            drafted = self._choose(
                self._network.logits(hidden), [requests[i] for i in alive], [probs[i] for i in alive]
            )
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

    def release(self, request: Request) -> None:
        self._slots.pop(request.id, None)
        self._tables.release(request.id)

    def check_integrity(self, requests: set[str]) -> None:
        """Of `requests`, exactly those with slots hold blocks."""
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


def joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def drafts(tokens: Sequence[list[int]], probs: Sequence[list[Tensor]]) -> list[Draft]:
    """One for each list of `tokens`."""
    return [
        Draft(own, torch.stack(drawn) if drawn else None) if own else NO_DRAFT
        for own, drawn in zip(tokens, probs, strict=True)
    ]
