"""Drafters for tests, without weights, and how to put one into a core."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.base import NO_DRAFT, Draft, Drafter, Observed
from dovetail.engine.drafting.lookup import Lookup
from dovetail.engine.request import Request
from dovetail.errors import EngineError


def use(core: LLMCore, drafter: Drafter) -> LLMCore:
    """Let `core`, which must have been made with draft_tokens, draft with `drafter` instead."""
    core.scheduler.drafter = drafter
    return core


class Nothing(Lookup):
    """A drafter that proposes nothing."""

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        return [NO_DRAFT] * len(requests)


class Oracle:
    """A drafter that knows the true continuations and gets each token wrong with a given probability.

    It holds the engine to its side of the contract: every request is started before it is observed or asked about, what
    is observed has no gaps and no overlaps, and drafts are asked for where all but the last token is computed.
    """

    aux_layers: tuple[int, ...] = ()

    def __init__(self, truth: dict[str, list[int]], wrong: float, seed: int = 0, block_size: int = 16) -> None:
        self._truth = truth
        self._wrong = wrong
        self._block_size = block_size
        self._random = random.Random(seed)
        self._computed: dict[str, int] = {}

    def start(self, request: Request, cached: int) -> int:
        assert request.id not in self._computed and 0 <= cached < len(request.tokens)
        known = self._random.choice((cached, cached, cached // 2, 0))
        self._computed[request.id] = known // self._block_size * self._block_size
        return self._computed[request.id]

    def observe(self, observed: Sequence[Observed]) -> None:
        for item in observed:
            assert item.start == self._computed[item.request.id] and item.count > 0
            self._computed[item.request.id] += item.count
            assert self._computed[item.request.id] == item.request.computed < len(item.request.tokens)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        return [self._guess(request, count) for request, count in zip(requests, counts, strict=True)]

    def release(self, request: Request) -> None:
        self._computed.pop(request.id, None)

    def matched(self, request: Request) -> int | None:
        return None

    def check_integrity(self, requests: set[str]) -> None:
        if not self._computed.keys() <= requests:
            raise EngineError(f"{sorted(self._computed.keys() - requests)} are gone and were not released")

    def _guess(self, request: Request, count: int) -> Draft:
        assert 0 < self._computed[request.id] == len(request.tokens) - 1 and count > 0
        done = len(request.tokens) - request.prompt_length
        true = self._truth[request.id][done : done + count]
        if self._wrong:
            true = [*true, *range(count)][:count]
        count = self._random.randint(0, len(true))
        if not count:
            return NO_DRAFT
        return Draft([(t + 1) % 97 if self._random.random() < self._wrong else t for t in true[:count]])


class Peaked:
    """A drafter that always draws from the same few tokens, so that much of what it drafts falls."""

    aux_layers: tuple[int, ...] = ()

    def __init__(self, shares: dict[int, float], vocab_size: int = 97) -> None:
        self._probs = torch.zeros(vocab_size)
        for token, share in shares.items():
            self._probs[token] = share

    def start(self, request: Request, cached: int) -> int:
        return cached

    def observe(self, observed: Sequence[Observed]) -> None: ...

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        return [
            Draft(
                torch.multinomial(self._probs, count, replacement=True, generator=request.generator).tolist(),
                self._probs.repeat(count, 1),
            )
            for request, count in zip(requests, counts, strict=True)
        ]

    def release(self, request: Request) -> None: ...

    def matched(self, request: Request) -> int | None:
        return None

    def check_integrity(self, requests: set[str]) -> None: ...
