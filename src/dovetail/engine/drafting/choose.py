"""How a draft token is picked from the logits of a draft model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail.engine.request import Request
from dovetail.engine.settings import DraftSampling


class Chooser:
    """Picks draft tokens as ids of the target. `target_ids` maps the draft model's ids; None if both are the same.

    "probabilistic": for a sampled request, draw at its temperature; verification accepts the draft as often as the two
    distributions overlap. "greedy": always the likeliest.
    """

    def __init__(self, vocab_size: int, target_ids: Tensor | None, sampling: DraftSampling) -> None:
        self._vocab_size = vocab_size
        self._target_ids = target_ids
        self._greedy = sampling == "greedy"

    def __call__(self, logits: Tensor, requests: Sequence[Request], probs: Sequence[list[Tensor]]) -> list[int]:
        """One draft for each row of `logits`, float32 [n, draft vocabulary], in the order of `requests`.

        Appends the distribution that a draft was drawn from to its `probs`, and nothing for a certain draft.
        """
        chosen = logits.argmax(-1)
        for i, request in enumerate(requests):
            if request.greedy or self._greedy:
                continue
            distribution = (logits[i] / request.sampling.temperature).softmax(-1)
            chosen[i : i + 1] = torch.multinomial(distribution, 1, generator=request.generator)
            probs[i].append(self._over_target_vocabulary(distribution))
        if self._target_ids is not None:
            chosen = self._target_ids[chosen]
        ids: list[int] = chosen.tolist()
        return ids

    def _over_target_vocabulary(self, distribution: Tensor) -> Tensor:
        if self._target_ids is None:
            return distribution
        full = torch.zeros(self._vocab_size)
        return full.index_copy_(0, self._target_ids, distribution)
