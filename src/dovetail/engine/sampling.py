"""From logits to the distribution a request asked for, and to a token of it. Pure functions of tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dovetail.completion import Sampling


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution after temperature (above 0), top-k, then top-p: float32 [n, vocab] for logits [n, vocab]."""
    scaled = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        least = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -math.inf)
    probs = scaled.softmax(-1)
    if sampling.top_p < 1.0:
        ordered, index = probs.sort(dim=-1, descending=True)
        # A token stays while those before it have not filled top_p; the first even where top_p is 0 to float32.
        beyond = ordered.cumsum(-1) - ordered >= sampling.top_p
        beyond[:, 0] = False
        ordered[beyond] = 0.0
        probs = torch.zeros_like(probs).scatter_(1, index, ordered)
        probs /= probs.sum(-1, keepdim=True)
    return probs


def draw(probs: Tensor, generator: torch.Generator | None) -> int:
    """One token of the distribution `probs` [vocab], which need not sum to 1."""
    return int(torch.multinomial(probs, 1, generator=generator))
