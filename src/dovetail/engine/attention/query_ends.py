"""Where each query of a batch ends in its own sequence's cache, from lengths that are on the device."""

from __future__ import annotations

import torch
from torch import Tensor


def query_ends(starts: Tensor, lengths: Tensor, tokens: int) -> Tensor:
    """How many rows each of `tokens` queries sees, int32 [tokens], without waiting for the device.

    Tokens ``starts[s]`` to ``starts[s + 1]`` are the last ones of sequence s, which has ``lengths[s]`` rows with them
    (int32 [sequences + 1] and [sequences]). Tokens after the last sequence's, which pad a batch, see none.
    """
    token = torch.arange(tokens, dtype=starts.dtype, device=starts.device)
    stops = starts[1:]
    sequence = torch.searchsorted(stops, token, right=True).clamp_max_(len(stops) - 1)
    after = stops[sequence] - 1 - token
    ends = (lengths[sequence] - after).clamp_min_(0)
    return ends.masked_fill_(after < 0, 0).to(torch.int32)
