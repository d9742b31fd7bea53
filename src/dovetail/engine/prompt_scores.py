"""The log probabilities of one prompt's tokens, collected while the prompt is computed in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from dovetail.completion import TokenLogprob
from dovetail.engine.sampling import logprobs

#: Rows of logits that are computed at once: 40 MB with a vocabulary of 160,000.
_ROWS = 64


class PromptScores:
    """Has an entry for each token of `prompt` after the first, once the positions before it are computed.

    `top`: how many of the likeliest tokens each entry has. `finite`: whether the model computed finite numbers so far.
    """

    def __init__(self, prompt: Sequence[int], top: int) -> None:
        self._prompt = prompt
        self._top = top
        self._entries: list[TokenLogprob] = []
        self.finite = True

    @property
    def uncomputed(self) -> int:
        """The first position whose hidden state is still needed: the cache may supply those before it.

        The last position of a prompt is never needed, because the token after it is not part of the prompt.
        """
        return len(self._entries)

    def add(self, start: int, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]) -> None:
        """Take the hidden states [n, size] of the positions from `start` on; those that are not needed are ignored."""
        first, last = self.uncomputed, min(start + len(hidden), len(self._prompt) - 1)
        for row in range(first, last, _ROWS):
            end = min(row + _ROWS, last)
            logits = logits_of(hidden[row - start : end - start])
            self.finite = self.finite and bool(logits.amax(-1).isfinite().all())
            self._entries += logprobs(logits, self._prompt[row + 1 : end + 1], self._top)

    def entries(self) -> tuple[TokenLogprob, ...]:
        return tuple(self._entries)
