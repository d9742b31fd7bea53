"""The contract of a drafter: it proposes the next tokens of sequences.

A drafter may be wrong: verification makes the output what it is without drafts. It keeps what it needs of a sequence
under the request's id, in its own cache. For a request that drafts at all, the engine calls

1. `start` when the request is admitted, again after every preemption;
2. `observe` after each step of the target, with what the step computed, in order and without gaps;
3. `propose` at the start of a step for the requests that may draft, any subset of them in any step;
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
    """Proposed tokens of one sequence.

    `probs`: the distributions they were drawn from, float32 [len(tokens), vocab] over the target's vocabulary; None if
    the drafter was certain of each token, as it is for a greedy request. `forced`: how many of the first tokens the
    request's constraint forces.
    """

    tokens: list[int]
    probs: Tensor | None = None
    forced: int = 0


NO_DRAFT = Draft([])


@dataclass(frozen=True, slots=True)
class Observed:
    """The positions ``start:start + count`` of one sequence, which the target computed. The token after each is known.

    `features`: the joined auxiliary hidden states [count, width]; None when the drafter reads none.
    """

    request: Request
    start: int
    count: int
    features: Tensor | None


class Drafter(Protocol):
    """A drafter. `aux_layers`: the residual streams of the target that it reads, in the order they are joined."""

    aux_layers: tuple[int, ...]

    def start(self, request: Request, cached: int) -> int:
        """Begin `request`, whose first `cached` tokens are in the target's cache and will not be computed.

        Returns for how many of these tokens the drafter needs no features, in whole blocks of the target's cache. The
        target computes the other tokens again.
        """

    def observe(self, observed: Sequence[Observed]) -> None:
        """Take in what the target computed in a step."""

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        """Drafts of at most ``counts[i]`` tokens (at least 1 each) to follow ``requests[i].tokens``."""

    def release(self, request: Request) -> None:
        """Forget `request`; nothing happens when it never started."""

    def check_integrity(self, requests: set[str]) -> None:
        """Raise `EngineError` when the drafter keeps something for a request that is not in `requests`."""


class DrafterWrapper:
    """A drafter around another one. Every call goes to the inner drafter; subclasses override some."""

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
