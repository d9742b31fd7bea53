"""The naive single-request loop that every schedule must equal: no cache, no batch, no drafts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dovetail.completion import Completion
from dovetail.engine.cache.tables import BlockTable
from dovetail.engine.models.base import Model, collate
from dovetail.tokens import Tokenizer


def last_logits(model: Model, tokens: list[int]) -> list[float]:
    """The logits after `tokens`, of at most 256; writes over the first rows of the model's cache."""
    table = BlockTable(256)
    table.append(0)
    with torch.inference_mode():
        hidden, _ = model.forward(collate([(tokens, 0, table)]))
        logits: list[float] = model.logits(hidden[-1:])[0].tolist()
    return logits


def prompt_logprobs(model: Model, prompt: Sequence[int]) -> list[list[float]]:
    """For each token of `prompt` after the first: the log probability of every token of the vocabulary in its place."""
    rows = (torch.tensor(last_logits(model, list(prompt[:end]))) for end in range(1, len(prompt)))
    return [row.log_softmax(-1).tolist() for row in rows]


def continuation(model: Model, tokenizer: Tokenizer, completion: Completion, eos_ids: set[int]) -> list[int]:
    """What `completion` must give, greedily."""
    sampling = completion.sampling
    assert sampling.temperature == 0
    tokens, out = list(completion.prompt), list[int]()
    ends = eos_ids.union(completion.stop_token_ids)
    while len(out) < completion.max_tokens:
        logits = last_logits(model, tokens)
        for token in set(tokens):
            value = logits[token]
            logits[token] = value * sampling.repetition_penalty if value < 0 else value / sampling.repetition_penalty
        for token in set(out):
            logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * out.count(token)
        for token, bias in sampling.logit_bias.items():
            logits[token] += bias
        if completion.constraint is not None:
            row = bytearray(4 * -(-len(logits) // 32))
            completion.constraint.fill(memoryview(row))
            logits = [v if row[i // 8] >> i % 8 & 1 else -math.inf for i, v in enumerate(logits)]
        held_back = ends if len(out) < completion.min_tokens else eos_ids if completion.ignore_eos else set()
        allowed = [token for token, value in enumerate(logits) if value > -math.inf]
        # In the order of ids, because of equals the first one counts.
        candidates = [token for token in allowed if token not in held_back] or allowed[:1]
        token = max(candidates, key=logits.__getitem__)
        if completion.constraint is not None:
            assert completion.constraint.advance(token)
        tokens.append(token)
        out.append(token)
        text = tokenizer.decode(out)
        if token in ends or any(stop in text for stop in completion.stop):
            break
    return out
