"""Stop strings over segments: `tokens.StopStrings` for a caller that has to know which pieces are control tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from dovetail.tokens import Segment, StopStrings


class SegmentStop:
    """Cuts a stream of segments at the first stop string, which may extend over several segments.

    A control token is passed on whole or not at all.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._strings = StopStrings(stop)
        self._buffered: deque[Segment] = deque()
        self._safe = 0  # characters at the beginning of `_buffered` that are not part of a stop string

    @property
    def matched(self) -> str | None:
        """The stop string that has come, if one has."""
        return self._strings.matched

    def feed(self, segments: Iterable[Segment]) -> list[Segment]:
        """The segments that cannot be part of a stop string any more. After a match there are none."""
        for segment in segments:
            self._buffered.append(segment)
            self._safe += len(self._strings.feed(segment.text))
        return self._released()

    def finish(self) -> list[Segment]:
        """The segments that are still buffered: the output is over, so nothing can complete a stop string."""
        self._safe += len(self._strings.finish())
        return self._released()

    def _released(self) -> list[Segment]:
        released: list[Segment] = []
        while self._buffered and self._safe:
            text, control = self._buffered.popleft()
            if len(text) <= self._safe:
                self._safe -= len(text)
                released.append(Segment(text, control))
                continue
            if control:
                self._buffered.appendleft(Segment(text, control))
                break
            released.append(Segment(text[: self._safe], False))
            self._buffered.appendleft(Segment(text[self._safe :], False))
            self._safe = 0
        return released
