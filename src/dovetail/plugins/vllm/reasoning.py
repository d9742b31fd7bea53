"""Where reasoning begins and ends in token ids, without reading them: what vLLM's engine asks at each of its steps."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.formats.base import Format
from dovetail.tokens import Detokenizer, Prompt, Tokenizer

#: Tokens behind the last turn's beginning are looked at, and no more than so many where no turn begins.
_TAIL = 4096


class Spans:
    """Of one format. Without a tokenizer nothing is known, and reasoning is taken to be over."""

    def __init__(self, fmt: Format, tokenizer: Tokenizer | None) -> None:
        self._format = fmt
        self._tokenizer = tokenizer
        control = tokenizer.control if tokenizer is not None else {}
        markers = fmt.reasoning_markers  # none in Harmony too, where reasoning is a channel of its own
        self.opener = markers[0] if markers else None
        self.closer = markers[1] if markers else None
        self._opens = control.get(self.opener) if self.opener else None
        self._closes = control.get(self.closer) if self.closer else None
        self._ends = frozenset(control[literal] for literal in fmt.end_of_turn if literal in control)
        self._controls = frozenset(control.values())

    def left_open(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends inside a reasoning block."""
        if self._tokenizer is None:
            return self._format.reasoning == "opened"
        return self._format.left_open(Prompt(Detokenizer(self._tokenizer).feed(self._last_turn(prompt))))

    def over(self, ids: Sequence[int]) -> bool:
        """Whether no reasoning comes (any more) behind these ids, a prompt or a prompt and its output."""
        if self._format.reasoning == "written" and self._closes is not None:
            return self._closes in self._last_turn(ids)
        return self._tokenizer is None or not self.left_open(ids)

    def closes(self, ids: Sequence[int], latest: Sequence[int]) -> bool:
        """Whether reasoning ends in the `latest` of `ids`."""
        if self._closes is not None:
            return self._closes in latest
        return not self._controls.isdisjoint(latest) and self.over(ids)

    def behind(self, ids: list[int]) -> list[int]:
        """The ids behind the end of reasoning."""
        if self._closes is None or self._closes not in ids:
            return []
        return ids[len(ids) - ids[::-1].index(self._closes) :]

    def parted(self, text: str, thinking: bool) -> tuple[str, str]:
        """An output up to the end of its reasoning, markers and all, and what stands behind it."""
        if self.opener is None or self.closer is None or not (thinking or text.lstrip().startswith(self.opener)):
            return "", text
        reasoning, found, content = text.partition(self.closer)
        return reasoning + found, content

    def count(self, ids: Sequence[int], thinking: bool) -> int:
        """How many of an output's tokens are reasoning; 0 for families in which no single token closes it."""
        if self._closes is None:
            return 0
        number = 0
        for token in ids:
            if token == self._opens:
                thinking = True
            elif token == self._closes or token in self._ends:
                thinking = False
            else:
                number += thinking
        return number

    def _last_turn(self, ids: Sequence[int]) -> Sequence[int]:
        for back in range(1, min(len(ids), _TAIL) + 1):
            if ids[-back] in self._ends:
                return ids[-back:]
        return ids[-_TAIL:] if not self._ends else ids
