"""Finds where reasoning begins and ends in token ids, without a reader; vLLM's engine asks at every step."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.formats.base import Format
from dovetail.tokens import Detokenizer, Prompt, Tokenizer

#: How many of the last tokens are searched for the beginning of the last turn.
_TAIL = 4096


class ReasoningSpans:
    """The reasoning blocks of one format. Without a tokenizer, reasoning counts as ended."""

    def __init__(self, fmt: Format, tokenizer: Tokenizer | None) -> None:
        self._format = fmt
        self._tokenizer = tokenizer
        control = tokenizer.control if tokenizer is not None else {}
        tags = fmt.reasoning_tags  # None for Harmony and others, where reasoning is a message
        self.opener = tags[0] if tags else None
        self.closer = tags[1] if tags else None
        tag = self.opener or ""
        first = next((literal for literal in control if tag.startswith(literal)), tag)
        self._opens = control.get(first)
        #: How many tokens of ordinary text follow the control token in the opening tag.
        self._opens_with = len(tokenizer.encode(tag.removeprefix(first))) if tokenizer is not None else 0
        self._closes = control.get(self.closer) if self.closer else None
        #: The closing tag of a family whose tags are ordinary text.
        self._closing_text = self.closer if fmt.reasoning_markers is None and self._closes is None else None
        self._ends = frozenset(control[literal] for literal in fmt.end_of_turn if literal in control)
        self._controls = frozenset(control.values())

    def left_open(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends inside a reasoning block."""
        if self._tokenizer is None:
            return self._format.reasoning == "opened"
        return self._format.left_open(Prompt(Detokenizer(self._tokenizer).feed(self._last_turn(prompt))))

    def ended(self, ids: Sequence[int]) -> bool:
        """Whether no reasoning follows `ids`: a prompt, or a prompt and its output so far."""
        if self._format.reasoning == "written" and self._closes is not None:
            return self._closes in self._last_turn(ids)
        if self._closing_text is not None and self._tokenizer is not None:
            return self._closing_text in self._tokenizer.decode(self._last_turn(ids))
        return self._tokenizer is None or not self.left_open(ids)

    def ends_in(self, ids: Sequence[int], latest: Sequence[int]) -> bool:
        """Whether reasoning ends within `latest`, the last of `ids`."""
        if self._closes is not None:
            return self._closes in latest
        if self._closing_text is not None and self._tokenizer is not None:  # it has at most a token for each byte
            return self._closing_text in self._tokenizer.decode(ids[-len(latest) - len(self._closing_text) :])
        return not self._controls.isdisjoint(latest) and self.ended(ids)

    def after(self, ids: list[int]) -> list[int]:
        """The ids after the end of the reasoning; none if it has not ended."""
        if self._closing_text is not None and self._tokenizer is not None:
            return _after_text(ids, self._closing_text.encode(), self._tokenizer)
        if self._closes is None or self._closes not in ids:
            return []
        return ids[len(ids) - ids[::-1].index(self._closes) :]

    def split(self, text: str, thinking: bool) -> tuple[str, str]:
        """An output's reasoning with its markers, and the text after it."""
        if self.opener is None or self.closer is None or not (thinking or text.lstrip().startswith(self.opener)):
            return "", text
        reasoning, closer, content = text.partition(self.closer)
        return reasoning + closer, content

    def count(self, ids: Sequence[int], thinking: bool) -> int:
        """How many of an output's tokens are reasoning; 0 for families in which no single token ends it."""
        if self._closes is None:
            return 0
        number = layout = 0
        for token in ids:
            if token == self._opens:
                thinking, layout = True, self._opens_with
            elif token == self._closes or token in self._ends:
                thinking = False
            elif layout:
                layout -= 1
            else:
                number += thinking
        return number

    def _last_turn(self, ids: Sequence[int]) -> Sequence[int]:
        for back in range(1, min(len(ids), _TAIL) + 1):
            if ids[-back] in self._ends:
                return ids[-back:]
        return ids[-_TAIL:] if not self._ends else ids


def _after_text(ids: list[int], closing: bytes, tokenizer: Tokenizer) -> list[int]:
    text, after = b"", len(ids)
    for at, token in enumerate(ids):
        text = text[-len(closing) :] + tokenizer.token_bytes(token)
        if closing in text:
            text, after = b"", at + 1
    return ids[after:]
