"""P-EAGLE (https://arxiv.org/abs/2602.01469): an EAGLE-3 network that drafts a whole window in one pass.

The slots and the first draft are EAGLE-3's (chain.py). Drafts 2 to K come from K - 1 masked slots at the next rope
positions. Each masked slot pairs the embedding of one trained token with one trained feature, and attends to the slots
and masked slots before it. Drafted tokens are never an input.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dovetail.engine.cache.tables import Tables
from dovetail.engine.drafting.base import Chooser, Draft
from dovetail.engine.drafting.chain import ChainDrafter, Network, drafts, joined
from dovetail.engine.models.base import collate
from dovetail.engine.request import Request


class ParallelDrafter(ChainDrafter):
    """A `Drafter` for P-EAGLE. `mask_token` and `mask_feature` [1, width] fill the masked slots."""

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
