"""Log probabilities as OpenAI's JSON: what each token spells beside what the model made of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dovetail.completion import TokenLogprob
from dovetail.tokens import Tokenizer

#: What is said of a token that the model gives no probability at all; JSON has no infinity.
LEAST = -9999.0


class TopLogprob(msgspec.Struct, frozen=True):
    """`token` has U+FFFD for bytes that are no whole character; `bytes` are exact, and null for what spells nothing."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class ContentLogprob(TopLogprob, frozen=True):
    top_logprobs: tuple[TopLogprob, ...] = ()


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """Of every token that was generated: reasoning, calls, markers and the end of the turn too."""

    content: tuple[ContentLogprob, ...]
    refusal: None = None


class Speller:
    """Spells tokens with one tokenizer. What a token spells is remembered."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._spelled: dict[int, tuple[str, tuple[int, ...] | None]] = {}

    def spell(self, entries: Iterable[TokenLogprob]) -> tuple[ContentLogprob, ...]:
        return tuple(
            ContentLogprob(
                *self._entry(entry.token, entry.logprob),
                top_logprobs=tuple(TopLogprob(*self._entry(*likely)) for likely in entry.top),
            )
            for entry in entries
        )

    def _entry(self, token: int, logprob: float) -> tuple[str, float, tuple[int, ...] | None]:
        found = self._spelled.get(token)
        if found is None:
            spelled = self._tokenizer.token_bytes(token)
            found = self._spelled[token] = spelled.decode("utf-8", "replace"), tuple(spelled) or None
        return found[0], max(logprob, LEAST), found[1]
