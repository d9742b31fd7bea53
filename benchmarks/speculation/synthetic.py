"""A drafter with a fixed share of right drafts, which costs as much as a real one.

An EAGLE-3 head of random weights computes what such a head computes, over its own cache, and guesses nothing; each of
its tokens is then replaced by the one that the target will say, or by another. So acceptance is a setting, and at any
of it one can see whether a policy finds out what pays.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from dovetail.engine.drafting.base import Draft, Drafter, DrafterWrapper
from dovetail.engine.request import Request


class Script:
    """Who is drafted what.

    `successors` are the target's own next tokens (`shapes.successors`). A draft at a place of a sequence is right with
    probability `acceptance`, independently of every other place: by lot, but the same lot for everyone who drafts there
    in the same `turn`, so that different numbers of drafts are compared on the same luck.
    """

    def __init__(self, successors: Sequence[int]) -> None:
        self.successors = successors
        self.acceptance = 1.0
        self.turn = 0
        self._lots: dict[tuple[int, str], tuple[random.Random, list[float]]] = {}

    def write(self, request: Request, count: int) -> list[int]:
        """`count` tokens to follow those of `request`."""
        place = len(request.tokens) - request.prompt_length
        token = request.tokens[-1]
        written = []
        for lot in self._drawn(request.id, place + count)[place : place + count]:
            token = self.successors[token]
            # What follows a wrong one is never looked at.
            written.append(token if lot < self.acceptance else self.successors[token])
        return written

    def _drawn(self, request_id: str, count: int) -> list[float]:
        key = (self.turn, request_id)
        if key not in self._lots:
            self._lots[key] = random.Random(f"{self.turn} {request_id}"), []
        draw, lots = self._lots[key]
        while len(lots) < count:
            lots.append(draw.random())
        return lots


class Synthetic(DrafterWrapper):
    """The `Drafter` around the one that is paid for; `script` says what is drafted."""

    def __init__(self, drafter: Drafter, script: Script) -> None:
        super().__init__(drafter)
        self._script = script

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        """As many tokens as the drafter has for each."""
        drafts = super().propose(requests, counts)
        return [
            Draft(self._script.write(request, len(draft.tokens)))
            for request, draft in zip(requests, drafts, strict=True)
        ]
