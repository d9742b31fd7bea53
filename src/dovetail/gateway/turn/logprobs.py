"""Log probabilities in OpenAI's shape: what each token spells, and how likely the model found it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dovetail.completion import TokenLogprob
from dovetail.events import Content, Event
from dovetail.tokens import Tokenizer

#: The log probability that stands for minus infinity, which JSON does not have.
LEAST = -9999.0


class TopLogprob(msgspec.Struct, frozen=True):
    """A token and its log probability.

    `token` has U+FFFD in place of bytes that are not a whole character. `bytes` are exact, and None for a token that
    spells nothing.
    """

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class ContentLogprob(TopLogprob, frozen=True):
    """A generated token, with the likeliest tokens at its place."""

    top_logprobs: tuple[TopLogprob, ...] = ()


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """The log probabilities of every generated token: reasoning, calls, markers and the end of the turn too."""

    content: tuple[ContentLogprob, ...]
    refusal: None = None


class ContentTokens:
    """Finds the tokens that spell the content, among all tokens of an answer.

    A reader may hold text back, so a token waits until an event shows what it was part of.
    """

    def __init__(self) -> None:
        self._waiting: list[ContentLogprob] = []
        self._content: list[ContentLogprob] = []

    def add(self, token: ContentLogprob, events: Sequence[Event], *, marker: bool) -> None:
        """`events` are those that reading `token` made. `marker`: it is markup, or ends some."""
        if not marker:
            self._waiting.append(token)
        self.finish(events)
        if events or marker:
            self._waiting.clear()

    def finish(self, events: Sequence[Event]) -> None:
        """The tokens that wait are content if there is content in `events`."""
        if any(isinstance(event, Content) for event in events):
            self._content += self._waiting
            self._waiting.clear()

    def take(self) -> tuple[ContentLogprob, ...]:
        """The tokens of the content since the last call."""
        content, self._content = self._content, []
        return tuple(content)


class Speller:
    """Spells tokens with one tokenizer, and caches what each token spells."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._spellings: dict[int, tuple[str, tuple[int, ...] | None]] = {}

    def spell(self, logprobs: Iterable[TokenLogprob]) -> tuple[ContentLogprob, ...]:
        """`logprobs` with texts and bytes in place of token ids."""
        return tuple(
            ContentLogprob(
                *self._spelled(entry.token, entry.logprob),
                top_logprobs=tuple(TopLogprob(*self._spelled(*likely)) for likely in entry.top),
            )
            for entry in logprobs
        )

    def _spelled(self, token: int, logprob: float) -> tuple[str, float, tuple[int, ...] | None]:
        spelling = self._spellings.get(token)
        if spelling is None:
            raw = self._tokenizer.token_bytes(token)
            spelling = self._spellings[token] = raw.decode("utf-8", "replace"), tuple(raw) or None
        return spelling[0], max(logprob, LEAST), spelling[1]
