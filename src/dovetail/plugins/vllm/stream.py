"""One output as vLLM hands it over, text and token ids side by side, read by a format's reader.

vLLM's text is what counts: it may lag behind the ids (where a stop string could begin), and it ends where one was
found. The ids say which of its characters are control tokens. Where the two do not go together, markers are what
spells them.
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
        """`reader` was made with the same tokenizer, or none."""
        self._reader = reader
        self._detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None
        self._spelled: deque[Segment] = deque()  # by ids of which the text has not come
        self._begun = ""  # what came of a control token's literal so far

    def feed(self, text: str, ids: Sequence[int]) -> list[Event]:
        """The events that the next piece completes. `ids` may be empty if all of the output comes without them."""
        if self._detokenizer is None:
            return self._reader.feed(text) if text else []
        self._spelled += self._detokenizer.feed(ids)
        segments, rest = self._told_apart(text)
        events = self._reader.feed_segments(segments) if segments else []
        if rest:
            _log.debug("text and token ids do not go together: %r", rest[:80])
            self._detokenizer = None
            events += self._reader.feed(rest)
        return events

    def finish(self, reason: str) -> list[Event]:
        """As `Reader.finish`."""
        events: list[Event] = []
        if self._detokenizer is not None:
            # Half a character at the very end, which vLLM leaves out of its text or not.
            events = self._reader.feed_segments([Segment(self._begun, False)]) if self._begun else []
        return events + self._reader.finish(reason)

    def _told_apart(self, text: str) -> tuple[list[Segment], str]:
        """`text` as segments, and the rest of it that the ids do not spell."""
        segments: list[Segment] = []
        text = self._begun + text
        self._begun = ""
        while text and self._spelled:
            expected, control = self._spelled[0]
            if control:
                if not text.startswith(expected):
                    if expected.startswith(text):
                        self._begun, text = text, ""
                    break
                segments.append(self._spelled.popleft())
                text = text[len(expected) :]
                continue
            length = min(len(text), len(expected))
            if text[:length] != expected[:length]:
                break
            segments.append(Segment(text[:length], False))
            text = text[length:]
            self._spelled.popleft()
            if length < len(expected):
                self._spelled.appendleft(Segment(expected[length:], False))
        return segments, text
