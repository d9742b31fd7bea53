"""Reads one output of vLLM, which comes as text and token ids, with a format's reader.

The text decides what the answer is: it may come later than the ids (while a stop string may begin), and it ends at a
stop string. The ids decide which parts of the text are control tokens. If text and ids do not match, the rest is read
as text alone, and text that spells a marker is the marker.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from dovetail.events import Event
from dovetail.reading import Reader
from dovetail.tokens import Detokenizer, Segment, Tokenizer

_log = logging.getLogger("vllm.dovetail")


class Stream:
    def __init__(self, reader: Reader, tokenizer: Tokenizer | None) -> None:
        """`reader` was made with the same `tokenizer`, or with none."""
        self._reader = reader
        self._detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None
        self._expected: deque[Segment] = deque()  # decoded from ids whose text has not come yet
        self._partial = ""  # the beginning of a control token's literal

    def feed(self, text: str, ids: Sequence[int]) -> list[Event]:
        """Feed the next piece and return its events. `ids` may be empty if the whole output comes without ids."""
        if self._detokenizer is None:
            return self._reader.feed(text) if text else []
        self._expected += self._detokenizer.feed(ids)
        segments, rest = self._match(text)
        events = self._reader.feed_segments(segments) if segments else []
        if rest:
            _log.debug("text and token ids do not match: %r", rest[:80])
            self._detokenizer = None
            events += self._reader.feed(rest)
        return events

    def finish(self, reason: str) -> list[Event]:
        """As `Reader.finish`."""
        events: list[Event] = []
        if self._detokenizer is not None:
            events = self._reader.feed_segments([Segment(self._partial, False)]) if self._partial else []
        return events + self._reader.finish(reason)

    def _match(self, text: str) -> tuple[list[Segment], str]:
        """Split `text` into the segments that the ids spell, and the rest that does not match them."""
        segments: list[Segment] = []
        text = self._partial + text
        self._partial = ""
        while text and self._expected:
            expected, control = self._expected[0]
            if control:
                if not text.startswith(expected):
                    if expected.startswith(text):
                        self._partial, text = text, ""
                    break
                segments.append(self._expected.popleft())
                text = text[len(expected) :]
                continue
            length = min(len(text), len(expected))
            if text[:length] != expected[:length]:
                break
            segments.append(Segment(text[:length], False))
            text = text[length:]
            self._expected.popleft()
            if length < len(expected):
                self._expected.appendleft(Segment(expected[length:], False))
        return segments, text
