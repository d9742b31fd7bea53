"""The contract of a drafter: given sequences whose next tokens are wanted, guess some of them.

A drafter is free to be wrong: verification makes the output what it would have been without it. Each step the engine

1. calls `propose` for the sequences that have room for drafts, with how many each may have;
2. after the target ran, appends to `Request.features` the auxiliary hidden states of the tokens that were kept, when
   the drafter reads any (`aux_layers`) and the request drafts at all.
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
    vocabulary, or None where each was certain (always so for a greedy request)."""

    tokens: list[int]
    probs: Tensor | None = None


NO_DRAFT = Draft([])


class Drafter(Protocol):
    """`aux_layers` are the target's residual streams it reads, in the order it wants them joined."""

    aux_layers: tuple[int, ...]

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        """Up to ``counts[i]`` (at least 1) tokens to follow ``requests[i].tokens``."""
