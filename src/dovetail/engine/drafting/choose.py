"""How a draft token is picked from what a draft model computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from dovetail.engine.request import Request
from dovetail.engine.sampling import draw
from dovetail.engine.settings import DraftSampling


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
