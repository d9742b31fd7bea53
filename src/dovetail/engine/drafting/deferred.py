"""What a drafter observes while it does not draft, kept and given to it in one piece.

A pass over one new slot costs a drafter nearly what a pass over hundreds costs, and where the gate has turned drafting
off that would be lost. So behind a prompt nothing is observed before somebody wants drafts, or much has come together.
Coming back costs one longer pass, and no acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from dovetail.engine.drafting.base import Draft, Drafter, DrafterWrapper, Observed
from dovetail.engine.request import Request

# Positions of a sequence: bounds what the pass at the end takes, and what others who go on from this sequence do not
# find. A pass of so many takes the demo drafter 2 ms, of one 0.35 ms.
_KEPT = 256
# Features of all sequences together.
_BYTES = 64 << 20


class Deferred(DrafterWrapper):
    """The `Drafter` around another."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._kept: dict[str, list[Observed]] = {}
        self._bytes = 0

    def observe(self, observed: Sequence[Observed]) -> None:
        """Prompts at once, so that others find their beginnings; what follows them, later."""
        at_once: list[Observed] = []
        for item in observed:
            if item.start < item.request.prompt_length:
                at_once.append(item)
            else:
                # A copy: a view would keep the hidden states of the whole step, with prompts of hundreds of tokens.
                features = None if item.features is None else item.features.clone()
                kept = Observed(item.request, item.start, item.count, features)
                self._kept.setdefault(item.request.id, []).append(kept)
                self._bytes += _size(kept)
        full = self._bytes >= _BYTES
        at_once += self._taken([name for name, items in self._kept.items() if full or _length(items) >= _KEPT])
        self._observe(at_once)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        self._observe(self._taken([request.id for request in requests if request.id in self._kept]))
        return super().propose(requests, counts)

    def release(self, request: Request) -> None:
        if request.id in self._kept:
            self._taken([request.id])
        super().release(request)

    def _taken(self, ids: Sequence[str]) -> list[Observed]:
        """What was kept of these, no longer kept."""
        taken = [_joined(self._kept.pop(request_id)) for request_id in ids]
        self._bytes -= sum(map(_size, taken))
        return taken

    def _observe(self, observed: list[Observed]) -> None:
        if not observed:
            return
        with ExitStack() as undo:
            # After a failure the drafter would draft from a sequence with a gap, so it releases these requests.
            for item in observed:
                undo.callback(self._drafter.release, item.request)
            self._drafter.observe(observed)
            undo.pop_all()


def _size(item: Observed) -> int:
    return 0 if item.features is None else item.features.nbytes


def _length(items: Sequence[Observed]) -> int:
    return items[-1].start + items[-1].count - items[0].start


def _joined(items: Sequence[Observed]) -> Observed:
    first = items[0]
    if len(items) == 1:
        return first
    features = [item.features for item in items if item.features is not None]
    count = sum(item.count for item in items)
    return Observed(first.request, first.start, count, torch.cat(features) if features else None)
