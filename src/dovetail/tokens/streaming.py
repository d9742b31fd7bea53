"""Streams of text: `Detokenizer` turns token ids into text, and `StopStrings` ends a text at a stop string."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Sequence

from dovetail.tokens.prompt import Segment
from dovetail.tokens.tokenizer import Tokenizer


class Detokenizer:
    """Turns the token ids of one output into text, in time linear in their number and without half characters.

    The ids continue a prompt, so a space at the beginning is part of the text, as in vLLM.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text_cache = tokenizer.text_cache
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._between_characters = True

    def feed(self, ids: Sequence[int]) -> list[Segment]:
        """The segments that `ids` complete. The bytes of an unfinished character wait for the next call."""
        if self._between_characters:
            texts = list(map(self._text_cache.get, ids))
            if None not in texts:  # the usual case: one look-up per token and no decoding
                text = "".join(texts)  # type: ignore[arg-type]  # None was just ruled out
                return [Segment(text, False)] if text else []
        return self._decode(ids)

    def _decode(self, ids: Sequence[int]) -> list[Segment]:
        segments: list[Segment] = []
        pending: list[bytes] = []
        control = self._tokenizer.control_literals
        for token in ids:
            literal = control.get(token)
            if literal is None:
                pending.append(self._tokenizer.token_bytes(token))
                self._cache_text(token, pending[-1])
                continue
            if text := self._decoder.decode(b"".join(pending), True):
                segments.append(Segment(text, False))
            pending.clear()
            segments.append(Segment(literal, True))
        if pending and (text := self._decoder.decode(b"".join(pending))):
            segments.append(Segment(text, False))
        self._between_characters = not self._decoder.getstate()[0]
        return segments

    def _cache_text(self, token: int, text: bytes) -> None:
        with contextlib.suppress(UnicodeDecodeError):
            self._text_cache[token] = text.decode()

    def finish(self) -> list[Segment]:
        """The end of the text: U+FFFD if the last character is unfinished, else nothing."""
        text = self._decoder.decode(b"", True)
        return [Segment(text, False)] if text else []


class StopStrings:
    """Ends a stream of text before the first stop string. It delays only text that may be the start of one.

    `matched` is the stop string that ended the stream, or None.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._buffered = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that may be passed on now; nothing more after a match."""
        if self.matched is not None:
            return ""
        text = self._buffered + text
        matches = [(start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if matches:
            # If stop strings overlap, the one that ends first counts, so that the result does not depend on the splits.
            start, self.matched = min(matches, key=lambda match: (match[0] + len(match[1]), match[0]))
            self._buffered = ""
            return text[:start]
        safe = len(text) - _partial_match(text, self._stop)
        self._buffered = text[safe:]
        return text[:safe]

    def finish(self) -> str:
        """The delayed text, which no stop string can begin with any more."""
        buffered, self._buffered = self._buffered, ""
        return buffered


def _partial_match(text: str, literals: Sequence[str]) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of one of `literals`."""
    longest = max(map(len, literals), default=1) - 1
    for start in range(max(0, len(text) - longest), len(text)):
        tail = text[start:]
        if any(len(s) > len(tail) and s.startswith(tail) for s in literals):
            return len(tail)
    return 0
