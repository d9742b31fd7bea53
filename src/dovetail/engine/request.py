"""One request: what it asks for, its tokens so far, and how it ends.

`Request.__init__` checks every field; nothing after it checks them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from dovetail.completion import Completion, Constraint, Finish, Sampling, TokenLogprob
from dovetail.engine.sampling import Penalties, check_sampling, logprobs
from dovetail.errors import ContextExceeded, InvalidRequest
from dovetail.gate import LONG_MATCH, Track
from dovetail.tokens import Detokenizer, StopStrings, Tokenizer

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


# Below this temperature a request is greedy: the divided logits would overflow float32 and give the same token anyway.
_COLDEST = 1e-5
# The fewest tokens of a match of middle length, and of a long one. Prose repeats two or three tokens all the time.
_SHORT, _LONG = 4, 8
# Rows of logits of a prompt that are computed at once: 40 MB with a vocabulary of 160,000.
_SCORED_ROWS = 64


class Request:
    """A completion in the engine. `eos_ids`: the tokens with which the model ends an output.

    `tokens`: the prompt and the output so far. `computed`: how many tokens have rows in the target's cache; after the
    prompt, all tokens but the last. `cached_prompt`: how many prompt tokens were in the cache, None before admission
    and 0 after it was reported. `scores`: the log probabilities of the prompt, until they are reported.
    """

    def __init__(
        self,
        request_id: str,
        completion: Completion,
        *,
        context: int,
        vocab_size: int,
        draft_tokens: int,
        eos_ids: Collection[int] = (),
    ) -> None:
        _check(completion, context, vocab_size)
        self.id = request_id
        self.sampling: Sampling = completion.sampling
        self.constraint: Constraint | None = completion.constraint
        self.tokens = list(completion.prompt)
        self.prompt_length = len(completion.prompt)
        self.limit = min(self.prompt_length + completion.max_tokens, context)
        requested = completion.draft_tokens
        self.draft_tokens = draft_tokens if requested is None else min(requested, draft_tokens)
        self.gated = completion.gated
        self.report_drafts = completion.report_drafts
        self.cache_salt = (completion.cache_salt or "").encode()
        self._kind = "constrained" if completion.constraint is not None else completion.kind
        # By kind: for a drafter that continues matches, the kind is the length of the match.
        self._tracks: dict[str, Track] = {}
        self.track = self.track_for(None)
        self.computed = 0
        self.cached_prompt: int | None = None
        self.logprobs = completion.logprobs
        self.scores: PromptScores | None = None
        if completion.prompt_logprobs is not None:
            self.scores = PromptScores(completion.prompt, completion.prompt_logprobs)
        self.penalties = Penalties.of(self.sampling, completion.prompt, vocab_size)
        self.ends = frozenset((*eos_ids, *completion.stop_token_ids))
        self.biases = Biases.of(completion, self.ends, eos_ids)
        self.stop = completion.stop
        self._stop: tuple[Detokenizer, StopStrings] | None = None
        self.generator: torch.Generator | None = None
        if not self.greedy:
            self.generator = torch.Generator()
            if self.sampling.seed is None:
                self.generator.seed()
            else:
                self.generator.manual_seed(self.sampling.seed % 2**63)

    @property
    def pending(self) -> int:
        """How many tokens the target has still to compute."""
        return len(self.tokens) - self.computed

    @property
    def cacheable(self) -> int | None:
        """How many positions may come from the cache; None: all. Log probabilities of a prompt have to be computed."""
        return None if self.scores is None else self.scores.uncomputed

    @property
    def generated(self) -> int:
        """How many tokens the output has so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def greedy(self) -> bool:
        return self.sampling.temperature < _COLDEST

    def draft_cap(self) -> int:
        """The most drafts that a step may verify now. It leaves room for the one token that a step always adds.

        0 until all tokens but the last are computed, which drafts need.
        """
        return min(self.draft_tokens, self.limit - len(self.tokens) - 1) if self.computed else 0

    def track_for(self, matched: int | None) -> Track:
        """What the gate knows about this request's drafts after a match of `matched` tokens. None: after any tokens."""
        kind = self._kind
        if matched is not None:
            kind = LONG_MATCH if matched >= _LONG else "match" if matched >= _SHORT else "short match"
        if kind not in self._tracks:
            self._tracks[kind] = Track(kind)
        return self._tracks[kind]

    def forget_tracks(self) -> None:
        """Begin again with what the gate knows about this request's drafts."""
        self._tracks.clear()
        self.track = self.track_for(None)

    def extend(self, new: list[int], tokenizer: Tokenizer) -> tuple[list[int], Finish | None]:
        """Append `new` tokens up to the one that ends the sequence. Returns these, and why it ended, if it did."""
        if self.stop and self._stop is None:
            self._stop = Detokenizer(tokenizer), StopStrings(self.stop)
        for count, token in enumerate(new, 1):
            self.tokens.append(token)
            if token in self.ends or self._completes_stop(token):
                return new[:count], "stop"
            if len(self.tokens) >= self.limit:
                return new[:count], "length"
        return new, None

    def _completes_stop(self, token: int) -> bool:
        if self._stop is None:
            return False
        detokenizer, stop = self._stop
        stop.feed("".join(segment.text for segment in detokenizer.feed([token])))
        return stop.matched is not None


class PromptScores:
    """The log probabilities of a prompt's tokens, collected while the prompt is computed in parts.

    There is an entry for each token of `prompt` after the first, once the positions before it are computed.

    `top`: how many of the likeliest tokens each entry has. `finite`: whether the model computed finite numbers so far.
    """

    def __init__(self, prompt: Sequence[int], top: int) -> None:
        self._prompt = prompt
        self._top = top
        self._entries: list[TokenLogprob] = []
        self.finite = True

    @property
    def uncomputed(self) -> int:
        """The first position whose hidden state is still needed; the cache may supply the positions before it.

        The last position of a prompt is never needed, because the token after it is not part of the prompt.
        """
        return len(self._entries)

    def add(self, start: int, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]) -> None:
        """Take the hidden states [n, size] of the positions from `start` on. States that are not needed are ignored."""
        first, last = self.uncomputed, min(start + len(hidden), len(self._prompt) - 1)
        for row in range(first, last, _SCORED_ROWS):
            end = min(row + _SCORED_ROWS, last)
            logits = logits_of(hidden[row - start : end - start])
            self.finite = self.finite and bool(logits.amax(-1).isfinite().all())
            self._entries += logprobs(logits, self._prompt[row + 1 : end + 1], self._top)

    def entries(self) -> tuple[TokenLogprob, ...]:
        return tuple(self._entries)


def _check(completion: Completion, context: int, vocab_size: int) -> None:
    if not completion.prompt:
        raise InvalidRequest("the prompt is empty", param="prompt")
    if len(completion.prompt) >= context:
        raise ContextExceeded(
            f"the prompt is {len(completion.prompt)} tokens; the context of {context} must also "
            "hold at least one new token",
            param="prompt",
        )
    if not all(type(token) is int and 0 <= token < vocab_size for token in completion.prompt):
        raise InvalidRequest(f"the prompt holds a token id outside the vocabulary of {vocab_size}", param="prompt")
    if completion.max_tokens < 1:
        raise InvalidRequest(f"max_tokens must be at least 1, not {completion.max_tokens}", param="max_tokens")
    if completion.draft_tokens is not None and completion.draft_tokens < 0:
        raise InvalidRequest(
            f"draft_tokens must not be negative, but is {completion.draft_tokens}", param="draft_tokens"
        )
    check_sampling(completion.sampling, completion.logprobs, completion.prompt_logprobs)
    check_biases(completion, vocab_size)
