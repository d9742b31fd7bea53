"""Verification: which drafts are accepted, and the token after them. Pure functions; law 12 depends on them.

Greedy: a draft is accepted if it is the target's own choice. Sampled: Leviathan et al.
(https://arxiv.org/abs/2211.17192, algorithm 1): draft d is accepted with probability min(1, p(d) / q(d)); the first
rejected draft is replaced by a token drawn from max(p - q, 0), normalised. So the output has the same distribution as
without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail.engine.sampling import draw


def verify_greedy(best: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """The new tokens: the accepted drafts, then the target's own choice.

    `best`: the target's choice at each of ``len(drafts) + 1`` positions.
    """
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == best[accepted]:
        accepted += 1
    return list(best[: accepted + 1])


def verify_sampled(
    target: Tensor, drafts: Sequence[int], drafter: Tensor | None, generator: torch.Generator | None
) -> list[int]:
    """The new tokens: the accepted drafts, then one token that is drawn.

    `target` is p, [k + 1, vocab]. `drafter` is q, [k, vocab]; None means that the drafter was certain of each draft (q
    is 1 there). When the constraint refused draft k + 1, so that p is 0 there, `drafter` has a row for it too, and the
    last token is drawn from the residual, as after a rejection.
    """
    count = len(drafts)
    if count:
        index = torch.tensor(drafts).unsqueeze(1)
        p = target[:count].gather(1, index).squeeze(1)
        q = torch.ones(count) if drafter is None else drafter[:count].gather(1, index).squeeze(1)
        accepted: list[bool] = (torch.rand(count, generator=generator) * q < p).tolist()
        if not all(accepted):
            rejected = accepted.index(False)
            p, draft = target[rejected], drafts[rejected]
            rest = _without(p, draft) if drafter is None else _residual(p, drafter[rejected])
            return [*drafts[:rejected], draw(rest, generator)]
    last = target[count]
    if drafter is not None and len(drafter) > count:
        last = _residual(last, drafter[count])
    return [*drafts, draw(last, generator)]


def _residual(p: Tensor, q: Tensor) -> Tensor:
    rest = (p - q).clamp_(min=0)
    # Only rounding of p = q makes p - q zero everywhere. There a draft is rejected with probability 0, and p is right.
    return rest if float(rest.sum()) > 0 else p


def _without(p: Tensor, draft: int) -> Tensor:
    """The residual if q is 1 at the draft. The draft was rejected, so p is below 1 there and the residual is not
    empty."""
    rest = p.clone()
    rest[draft] = 0.0
    return rest
