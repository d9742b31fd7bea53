"""Sampling: from logits to the distribution that a request asks for, to a token, and to log probabilities.

Functions of tensors, and `Penalties`, which counts the tokens of a sequence. Logits are float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dovetail.completion import Sampling, TokenLogprob
from dovetail.errors import InvalidRequest

#: The most `TokenLogprob.top` holds, as in OpenAI's API.
MAX_TOP_LOGPROBS = 20

# The highest temperature. Far above it a masked token, at -inf, would become as likely as any other.
_HOTTEST = 1e30
# The largest repetition penalty, and the inverse of the smallest. Beyond them penalised logits would leave float32.
_HARSHEST = 1e6
# For top_p, this many of the likeliest tokens are tried before all are sorted, which takes a hundred times as long with
# a vocabulary of 100,000.
_HEADS = (64, 512)


def check_sampling(sampling: Sampling, logprobs: int | None = None, prompt_logprobs: int | None = None) -> None:
    """Check the ranges of all fields. Raises `InvalidRequest` that names the field; NaN is out of every range."""
    ranges = (
        ("temperature", sampling.temperature, 0, _HOTTEST),
        ("min_p", sampling.min_p, 0, 1),
        ("presence_penalty", sampling.presence_penalty, -2, 2),
        ("frequency_penalty", sampling.frequency_penalty, -2, 2),
        ("repetition_penalty", sampling.repetition_penalty, 1 / _HARSHEST, _HARSHEST),
        ("logprobs", 0 if logprobs is None else logprobs, 0, MAX_TOP_LOGPROBS),
        ("prompt_logprobs", 0 if prompt_logprobs is None else prompt_logprobs, 0, MAX_TOP_LOGPROBS),
    )
    for name, value, least, most in ranges:
        if not least <= value <= most:
            raise InvalidRequest(f"{name} must be from {least:g} to {most:g}, not {value}", param=name)
    if not 0 < sampling.top_p <= 1:
        raise InvalidRequest(f"top_p must be above 0 and at most 1, not {sampling.top_p}", param="top_p")
    if sampling.top_k is not None and sampling.top_k < 1:
        raise InvalidRequest(f"top_k must be at least 1, not {sampling.top_k}", param="top_k")


class Penalties:
    """The penalties of a sequence, with its counts of tokens. `Penalties.of` makes one if the request has penalties.

    Repetition: Keskar et al. (https://arxiv.org/abs/1909.05858), prompt included. Presence and frequency: OpenAI's API,
    for the output only. The time of a step grows with the number of different tokens, not with the vocabulary.
    """

    @classmethod
    def of(cls, sampling: Sampling, prompt: Sequence[int], vocab_size: int) -> Penalties | None:
        """None where `sampling` penalises nothing."""
        neutral = sampling.presence_penalty == sampling.frequency_penalty == 0 and sampling.repetition_penalty == 1
        return None if neutral else cls(sampling, prompt, vocab_size)

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocab_size: int) -> None:
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        self._repetition = sampling.repetition_penalty
        # Each token that occurred has a slot: its id in `_ids`, and how often the output has it in `_counts`.
        self._slots: dict[int, int] = {}
        self._ids = torch.empty(vocab_size, dtype=torch.int64)
        self._counts = torch.zeros(vocab_size)
        if self._repetition != 1:
            seen = list(dict.fromkeys(prompt))
            self._ids[: len(seen)] = torch.tensor(seen, dtype=torch.int64)
            self._slots = {token: slot for slot, token in enumerate(seen)}

    def add(self, tokens: Sequence[int]) -> None:
        """Count `tokens` as part of the output."""
        for token in tokens:
            slot = self._slots.setdefault(token, len(self._slots))
            self._ids[slot] = token
            self._counts[slot] += 1

    def apply_(self, logits: Tensor, drafts: Sequence[int]) -> None:
        """Penalise `logits` [len(drafts) + 1, vocab] in place, row j as if ``drafts[:j]`` were in the output."""
        known = len(self._slots)
        slots = {token: known + i for i, token in enumerate(dict.fromkeys(d for d in drafts if d not in self._slots))}
        total = known + len(slots)
        if not total:
            return
        self._ids[known:total] = torch.tensor(list(slots), dtype=torch.int64)
        ids = self._ids[:total].expand(len(logits), -1)
        counts = self._counts[:total].repeat(len(logits), 1)
        for j, draft in enumerate(drafts, 1):
            counts[j:, slots[draft] if draft in slots else self._slots[draft]] += 1
        values = logits.gather(1, ids)
        if self._repetition != 1:
            seen = counts > 0
            seen[:, :known] = True
            repeated = torch.where(values < 0, values * self._repetition, values / self._repetition)
            values = torch.where(seen, repeated, values)
        values -= counts * self._frequency + (counts > 0) * self._presence
        logits.scatter_(1, ids, values)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution after temperature (above 0), min-p, top-k, then top-p: [n, vocab] for logits [n, vocab].

    Tokens exactly as likely as the last one that top-k or min-p includes are included too. Penalties are not applied.
    """
    scaled = logits / sampling.temperature
    if sampling.min_p > 0:
        least = scaled.amax(-1, keepdim=True) + math.log(sampling.min_p)
        scaled = scaled.masked_fill(scaled < least, -math.inf)
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        least = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -math.inf)
    probs = scaled.softmax(-1)
    return probs if sampling.top_p == 1 else _top_p(probs, sampling.top_p)


def _top_p(probs: Tensor, top_p: float) -> Tensor:
    """The likeliest tokens of `probs` [n, vocab] whose probabilities add up to `top_p`, normalised."""
    for head in _HEADS:
        ordered, index = probs.topk(min(head, probs.shape[-1]), dim=-1)
        if bool((ordered.sum(-1) >= top_p).all()):
            break
    else:
        ordered, index = probs.sort(dim=-1, descending=True)
    # A token is included while those before it add up to less than top_p. The first is included always, because top_p
    # may be 0 in float32.
    beyond = ordered.cumsum(-1) - ordered >= top_p
    beyond[:, 0] = False
    ordered[beyond] = 0.0
    ordered /= ordered.sum(-1, keepdim=True)
    return torch.zeros_like(probs).scatter_(1, index, ordered)


def draw(probs: Tensor, generator: torch.Generator | None) -> int:
    """One token drawn from `probs` [vocab], which may sum to any number above 0."""
    # In float64, so that the point is below the total. The first sum above the point is above the sum before it, so the
    # token has a probability above 0.
    sums = probs.cumsum(-1, dtype=torch.float64)
    point = torch.rand(1, dtype=torch.float64, generator=generator) * sums[-1]
    return int(torch.searchsorted(sums, point, right=True))


def logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> tuple[TokenLogprob, ...]:
    """The log probability of each of `tokens` at its row of the raw `logits` [at least len(tokens), vocab].

    With the `top` likeliest tokens of each row, best first; of equally likely tokens the lower id comes first.
    """
    if not tokens:
        return ()
    rows = logits[: len(tokens)]
    totals = rows.logsumexp(-1, keepdim=True)
    own = (rows.gather(1, torch.tensor(tokens).unsqueeze(1)) - totals).squeeze(1).tolist()
    if not top:
        return tuple(map(TokenLogprob, tokens, own))
    ids = _ordered(rows).topk(min(top, rows.shape[-1]), dim=-1).indices
    values = rows.gather(1, ids) - totals
    likeliest = (tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True))
    return tuple(map(TokenLogprob, tokens, own, likeliest))


def _ordered(rows: Tensor) -> Tensor:
    """Different integers in the order of `rows` [n, vocab]: of equal values the lower id gets the larger integer.

    On equal values the order of topk is not defined.
    """
    bits = (rows + 0.0).view(torch.int32)  # -0.0 becomes 0.0, its equal
    # The bits of negative floats are in descending order.
    upward = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    return (upward << 32) - torch.arange(rows.shape[-1])
