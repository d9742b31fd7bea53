"""Conversations as batches of token ids with loss weights."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.tokens import Tokenizer
from training.corpus import Sample, sample

FORMAT = KimiK25()
PAD_WEIGHT = 0.0
PROMPT_WEIGHT = 0.1  # what the user and the tools say is mostly noise to a language model, but teaches it to copy
HELD_OUT = 1_000_000_000  # seeds from here on are never trained on


def encode(s: Sample, tokenizer: Tokenizer) -> tuple[list[int], list[float]]:
    """Ids of prompt and answers of the sample's last turns, and each token's weight as something to predict."""
    ids: list[int] = []
    weights: list[float] = []
    for index in range(s.turn, len(s.messages)):
        if s.messages[index]["role"] != "assistant":
            continue
        prompt = FORMAT.render(s.messages[:index], s.tools, thinking=s.thinking).ids(tokenizer)
        if prompt[: len(ids)] != ids:
            raise ValueError("a turn's prompt does not continue the turn before it")
        weights += [PROMPT_WEIGHT] * (len(prompt) - len(ids))
        answer = FORMAT.write(s.answer_at(index), thinking=s.thinking).ids(tokenizer)
        ids = prompt + answer
        weights += [1.0] * len(answer)
    return ids, weights


def batches(tokenizer: Tokenizer, tokens: int, seed: int, longest: int = 1024) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of about `tokens` tokens: ids and weights, both [sequences, length], padded on the right.

    Sequences of like length share a batch. No conversation comes twice.
    """
    rng = random.Random(seed)
    pad = tokenizer.control["[PAD]"]
    while True:
        pool = [encode(sample(s), tokenizer) for s in range(seed, seed + 512)]
        seed += 512
        pool = sorted((p for p in pool if len(p[0]) <= longest), key=lambda p: len(p[0]))
        groups: list[list[tuple[list[int], list[float]]]] = [[]]
        for item in pool:
            if (len(groups[-1]) + 1) * len(item[0]) > tokens:
                groups.append([])
            groups[-1].append(item)
        rng.shuffle(groups)
        for group in filter(None, groups):
            width = max(len(ids) for ids, _ in group)
            yield (
                torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in group]),
                torch.tensor([w + [PAD_WEIGHT] * (width - len(w)) for _, w in group]),
            )
