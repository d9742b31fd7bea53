"""The contract of a drafter: given sequences whose next tokens are wanted, guess some of them.

A drafter is free to be wrong: verification makes the output what it would have been without it. It keeps whatever it
needs of a sequence by the request's id, in its own cache. For a request that drafts at all, the engine calls

1. `start` when the request is admitted, again after every preemption;
2. `observe` after each step of the target, with what the step computed, in order and without gaps;
3. `propose` at the start of a step for those that have room for drafts, any subset of them in any step;
4. `release` when the request ends, is cancelled or is preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dovetail.engine.request import Request


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed `tokens`, and the distributions they were drawn from: float32 [len(tokens), vocab] over the target's
    vocabulary, or None where each was certain (always so for a greedy request). The first `forced` of them are what the
    request's constraint forces."""

    tokens: list[int]
    probs: Tensor | None = None
    forced: int = 0


NO_DRAFT = Draft([])


@dataclass(frozen=True, slots=True)
class Observed:
    """What the target computed of one sequence: positions ``start:start + count``, whose successors are all known.

    `features` is [count, width], the auxiliary hidden states joined; None when the drafter reads none.
    """

    request: Request
    start: int
    count: int
    features: Tensor | None


class Drafter(Protocol):
    """`aux_layers` are the target's residual streams it reads, in the order it wants them joined."""

    aux_layers: tuple[int, ...]

    def start(self, request: Request, cached: int) -> int:
        """`request` begins; the target finds its first `cached` tokens in its cache and need not compute them. Returns
        how many of those the drafter can do without: the target computes the rest again."""

    def observe(self, observed: Sequence[Observed]) -> None:
        """The target computed these."""

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        """Up to ``counts[i]`` (at least 1) tokens to follow ``requests[i].tokens``."""

    def release(self, request: Request) -> None:
        """`request` is gone; nothing happens when it never started."""

    def check_integrity(self, requests: set[str]) -> None:
        """Raise `EngineError` when something is kept for a request that is not of `requests`."""


class DrafterWrapper:
    """A drafter around another, which it leaves all to that it does not do itself."""

    def __init__(self, drafter: Drafter) -> None:
        self.aux_layers = drafter.aux_layers
        self._drafter = drafter

    def start(self, request: Request, cached: int) -> int:
        return self._drafter.start(request, cached)

    def observe(self, observed: Sequence[Observed]) -> None:
        self._drafter.observe(observed)

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        return self._drafter.propose(requests, counts)

    def release(self, request: Request) -> None:
        self._drafter.release(request)

    def check_integrity(self, requests: set[str]) -> None:
        self._drafter.check_integrity(requests)
