"""Which drafts stand, and what comes after them. Pure functions; law 12 lives here.

Greedy: a draft stands while it is what the target would have said. Sampled: Leviathan et al.
(https://arxiv.org/abs/2211.17192, algorithm 1): draft d stands with probability min(1, p(d) / q(d)); the first that
falls is replaced by a token of max(p - q, 0), normalised. Either way the output is distributed as without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail.engine.sampling import draw


def verify_greedy(best: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """New tokens: the drafts that stand, then the target's own. `best` has the target's choice at each of
    ``len(drafts) + 1`` positions."""
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == best[accepted]:
        accepted += 1
    return list(best[: accepted + 1])


def verify_sampled(
    target: Tensor, drafts: Sequence[int], drafter: Tensor | None, generator: torch.Generator | None
) -> list[int]:
    """New tokens: the drafts that stand, then one drawn.

    `target` is p, [k + 1, vocab]; `drafter` is q, [k, vocab], or [k + 1, vocab] when a further draft was refused before
    it could be verified (p gives it nothing): its row makes the last draw the residual, as if it had been verified and
    had fallen. None with drafts means that the drafter was certain of each (q is one at the draft).
    """
    count = len(drafts)
    if count:
        index = torch.tensor(drafts).unsqueeze(1)
        p = target[:count].gather(1, index).squeeze(1)
        q = torch.ones(count) if drafter is None else drafter[:count].gather(1, index).squeeze(1)
        stands: list[bool] = (torch.rand(count, generator=generator) * q < p).tolist()
        if not all(stands):
            fallen = stands.index(False)
            p, draft = target[fallen], drafts[fallen]
            rest = _without(p, draft) if drafter is None else _residual(p, drafter[fallen])
            return [*drafts[:fallen], draw(rest, generator)]
    last = target[count]
    if drafter is not None and len(drafter) > count:
        last = _residual(last, drafter[count])
    return [*drafts, draw(last, generator)]


def _residual(p: Tensor, q: Tensor) -> Tensor:
    rest = (p - q).clamp_(min=0)
    # p below q everywhere can only be rounding of p = q, where a draft falls with probability 0; p itself is right
    # there.
    return rest if float(rest.sum()) > 0 else p


def _without(p: Tensor, draft: int) -> Tensor:
    """The residual where q is one at the draft, which then falls with p below one: something is left."""
    rest = p.clone()
    rest[draft] = 0.0
    return rest
