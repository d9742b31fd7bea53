"""The contract of a drafter, which proposes the next tokens of sequences, and how a draft model picks them.

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
from dovetail.engine.sampling import draw
from dovetail.engine.settings import DraftSampling


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

    def matched(self, request: Request) -> int | None:
        """How many of the last tokens of `request` occurred before too, if the drafter can only continue such a match.

        0: it has no draft. None: it drafts by something else.
        """

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

    def matched(self, request: Request) -> int | None:
        return self._drafter.matched(request)

    def release(self, request: Request) -> None:
        self._drafter.release(request)

    def check_integrity(self, requests: set[str]) -> None:
        self._drafter.check_integrity(requests)


class Head(Protocol):
    """The head of a draft model: it turns hidden states into logits."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits, float32 [n, draft vocabulary]."""

    def best(self, hidden: Tensor) -> Tensor:
        """The id of the largest logit, int64 [n]; the lowest id if several are equal."""


class Chooser:
    """Picks draft tokens as ids of the target. `target_ids` maps the draft model's ids; None if both are the same.

    "probabilistic": for a sampled request, draw at its temperature; verification accepts the draft as often as the two
    distributions overlap. "greedy": always the likeliest.
    """

    def __init__(self, vocab_size: int, target_ids: Tensor | None, sampling: DraftSampling) -> None:
        self._vocab_size = vocab_size
        self._target_ids = target_ids
        self._greedy = sampling == "greedy"

    def __call__(
        self, head: Head, hidden: Tensor, requests: Sequence[Request], probs: Sequence[list[Tensor]]
    ) -> list[int]:
        """One draft for each row of `hidden`, in the order of `requests`.

        Appends the distribution that a draft was drawn from to its `probs`, and nothing for a certain draft. If all
        drafts are certain, ``head.best`` chooses them, and ranks exchange 8 bytes a row in place of logits.
        """
        drawn = [i for i, request in enumerate(requests) if not (self._greedy or request.greedy)]
        if not drawn:
            return self._ids(head.best(hidden))
        logits = head.logits(hidden)
        chosen = logits.argmax(-1)
        for i in drawn:
            request = requests[i]
            distribution = (logits[i] / request.sampling.temperature).softmax(-1)
            chosen[i] = draw(distribution, request.generator)
            probs[i].append(self._over_target_vocabulary(distribution))
        return self._ids(chosen)

    def _ids(self, chosen: Tensor) -> list[int]:
        """The target's ids."""
        ids: list[int] = (chosen if self._target_ids is None else self._target_ids[chosen]).tolist()
        return ids

    def _over_target_vocabulary(self, distribution: Tensor) -> Tensor:
        if self._target_ids is None:
            return distribution
        full = distribution.new_zeros(self._vocab_size)
        return full.index_copy_(0, self._target_ids, distribution)
