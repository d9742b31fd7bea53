"""Logits that a request shifts whatever the text: its `logit_bias`, and the tokens that must not end the answer yet."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from dovetail.completion import Completion
from dovetail.errors import InvalidRequest

#: The largest bias, as in OpenAI's API.
MOST = 100.0

# Subtracted from the logit of a token that must not end the answer yet. It is finite, so that the token is still chosen
# where a constraint allows no other, and small enough to stay finite when a temperature of 1e-5 divides it.
_LAST_RESORT = 1e32


class Biases:
    """The biases of one sequence. `Biases.of` makes one if the request has any."""

    @classmethod
    def of(cls, completion: Completion, ends: Collection[int], eos_ids: Collection[int]) -> Biases | None:
        """`ends`: the tokens that end the output; `eos_ids`: the model's own among them. None without any bias."""
        neutral = not (completion.sampling.logit_bias or completion.min_tokens or completion.ignore_eos)
        return None if neutral else cls(completion, ends, eos_ids)

    def __init__(self, completion: Completion, ends: Collection[int], eos_ids: Collection[int]) -> None:
        bias = completion.sampling.logit_bias
        self._ids = torch.tensor(list(bias), dtype=torch.int64)
        self._values = torch.tensor(list(bias.values()), dtype=torch.float32)
        self._least = completion.min_tokens
        self._ends = torch.tensor(sorted(ends), dtype=torch.int64)
        self._ignored = torch.tensor(sorted(eos_ids) if completion.ignore_eos else [], dtype=torch.int64)

    def apply_(self, logits: Tensor, generated: int) -> None:
        """Shift `logits` [n, vocab] in place. Row j is for the token after ``generated + j`` new ones."""
        if len(self._ids):
            logits[:, self._ids] += self._values
        if len(self._ignored):
            logits[:, self._ignored] = -_LAST_RESORT
        if (early := self._least - generated) > 0:
            logits[:early, self._ends] = -_LAST_RESORT


def check_biases(completion: Completion, vocab_size: int) -> None:
    """Check the ranges of all fields. Raises `InvalidRequest` that names the field."""
    if not 0 <= completion.min_tokens <= completion.max_tokens:
        raise InvalidRequest(
            f"min_tokens must be from 0 to max_tokens, which is {completion.max_tokens}, not {completion.min_tokens}",
            param="min_tokens",
        )
    bias = completion.sampling.logit_bias
    for name, tokens in (("logit_bias", bias), ("stop_token_ids", completion.stop_token_ids)):
        if (unknown := next((token for token in tokens if not 0 <= token < vocab_size), None)) is not None:
            message = f"{name} has the token id {unknown}, which is outside the vocabulary of {vocab_size}"
            raise InvalidRequest(message, param=name)
    if (wrong := next((value for value in bias.values() if not -MOST <= value <= MOST), None)) is not None:
        raise InvalidRequest(f"logit_bias must be from {-MOST:g} to {MOST:g}, not {wrong}", param="logit_bias")
