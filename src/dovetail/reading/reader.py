"""`Reader`: the stream side of a format. Cuts its input into text and markers; a family's subclass says what they mean.

1. `feed(text)` looks for the family's literals; `feed(text, ids)` goes by ids, where only control tokens are markers.
2. Either way the subclass sees `_text(text)` and `_marker(literal)`, and calls `_emit`.
3. `finish(reason)` ends the output. One-piece parsing is one `feed` and one `finish`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from dovetail.errors import ReaderMisuse
from dovetail.events import Defect, Event
from dovetail.reading.scanner import Scanner
from dovetail.tokens import Detokenizer, Segment, Tokenizer


class Reader(ABC):
    """One output of one model. Not shared, not reused."""

    #: The literals that mean something to this family.
    markers: tuple[str, ...]

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._scanner = Scanner(self.markers)
        self._detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None
        self._events: list[Event] = []
        self._finished = False

    def feed(self, text: str, ids: Sequence[int] | None = None) -> list[Event]:
        """The events that the next piece of output completes.

        With `ids` the text is what the ids spell (`text` is not looked at), and a marker is a control token, never the
        characters of one. Raises `ReaderMisuse` after `finish`, or for ids if the reader was made without a tokenizer.
        """
        if ids is None:
            return self.feed_segments(self._scanner.feed(text))
        if self._detokenizer is None:
            raise ReaderMisuse("this reader was made without a tokenizer, so it cannot read token ids")
        return self.feed_segments([*self._scanner.finish(), *self._detokenizer.feed(ids)])

    def feed_segments(self, segments: Iterable[Segment]) -> list[Event]:
        """As `feed`, for a caller that knows which pieces are control tokens."""
        if self._finished:
            raise ReaderMisuse("this reader has finished; make a new one for the next output")
        for text, control in segments:
            if control:
                self._marker(text)
            elif text:
                self._text(text)
        events, self._events = self._events, []
        return events

    def finish(self, reason: str = "stop") -> list[Event]:
        """The last events. `reason` is the engine's: "stop" when the model ended its turn, "length" when it was cut."""
        ending = self._scanner.finish()
        if self._detokenizer is not None:
            ending += self._detokenizer.finish()
        events = self.feed_segments(ending)
        self._finished = True
        self._end(reason)
        return events + self._events

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def _defect(self, kind: str, detail: str = "") -> None:
        self._events.append(Defect(kind, detail))

    @abstractmethod
    def _text(self, text: str) -> None:
        """Ordinary text, never empty."""

    @abstractmethod
    def _marker(self, literal: str) -> None:
        """A control token, perhaps one that is not among `markers`."""

    @abstractmethod
    def _end(self, reason: str) -> None:
        """The output is over: close or report what is open."""
