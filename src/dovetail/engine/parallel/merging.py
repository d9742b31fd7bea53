"""Partial attention of ranks that hold different parts of a context becomes attention over the whole.

Every rank has a part for all heads of the group, and gets the whole for its own heads. Two exchanges give the same:
"gather" sends log-sum-exps to all, scales, and sums over ranks; "all_to_all" sends each rank what it merges, which is
one collective in place of two and sends no fewer bytes. The log-sum-exps are float32 in both (attention/partial.py).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dovetail.engine.attention.partial import merge, shares
from dovetail.engine.parallel.group import Group

Exchange = Literal["gather", "all_to_all"]


def merge_heads(group: Group, mixed: Tensor, sums: Tensor, exchange: Exchange) -> Tensor:
    """`mixed` [tokens, size * heads, rank] and `sums` [tokens, size * heads], float32, as `attend_part` gives them.

    Returns [tokens, heads, rank]: the merged latents of this rank's heads.
    """
    tokens, heads, rank = mixed.shape
    by_owner = mixed.view(tokens, group.size, heads // group.size, rank).transpose(0, 1)
    if exchange == "gather":
        everyone = group.gather(sums)
        share = shares(everyone, everyone.logsumexp(0))[group.rank].view(by_owner.shape[1], group.size, -1)
        share = share.transpose(0, 1).unsqueeze(-1)
        return group.scatter_sum(share * by_owner.masked_fill(share == 0, 0.0))
    packed = torch.cat((by_owner, sums.view(tokens, group.size, -1, 1).transpose(0, 1)), -1)
    received = group.exchange(packed)
    return merge(received[..., :rank], received[..., rank])[0]
