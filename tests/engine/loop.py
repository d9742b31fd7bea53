"""The naive single-request loop that every schedule must equal: no cache, no batch, no drafts, all of it every time."""

from __future__ import annotations

import math

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


def continuation(model: Model, tokenizer: Tokenizer, completion: Completion, eos_ids: set[int]) -> list[int]:
    """What `completion` must give, greedily."""
    sampling = completion.sampling
    assert sampling.temperature == 0
    tokens, out = list(completion.prompt), list[int]()
    while len(out) < completion.max_tokens:
        logits = last_logits(model, tokens)
        for token in set(tokens):
            value = logits[token]
            logits[token] = value * sampling.repetition_penalty if value < 0 else value / sampling.repetition_penalty
        for token in set(out):
            logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * out.count(token)
        if completion.constraint is not None:
            row = bytearray(4 * -(-len(logits) // 32))
            completion.constraint.fill(memoryview(row))
            logits = [v if row[i // 8] >> i % 8 & 1 else -math.inf for i, v in enumerate(logits)]
        token = max(range(len(logits)), key=logits.__getitem__)
        if completion.constraint is not None:
            assert completion.constraint.advance(token)
        tokens.append(token)
        out.append(token)
        text = tokenizer.decode(out)
        if token in eos_ids or any(stop in text for stop in completion.stop):
            break
    return out
