"""Stop strings over segments: `tokens.StopStrings` for a caller that must know which pieces are control tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from dovetail.tokens import Segment, StopStrings


class SegmentStop:
    """Cuts a stream of segments at the first of some strings, which may run over several of them.

    A control token is passed on whole or not at all.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._strings = StopStrings(stop)
        self._waiting: deque[Segment] = deque()
        self._passed = 0  # characters at the head of `_waiting` that are safe to pass on

    @property
    def matched(self) -> bool:
        return self._strings.matched is not None

    def feed(self, segments: Iterable[Segment]) -> list[Segment]:
        """The segments that no stop string can claim any more; after a match nothing more comes."""
        for segment in segments:
            self._waiting.append(segment)
            self._passed += len(self._strings.feed(segment.text))
        return self._release()

    def finish(self) -> list[Segment]:
        """What was held back, now that nothing can complete a stop string."""
        self._passed += len(self._strings.finish())
        return self._release()

    def _release(self) -> list[Segment]:
        released: list[Segment] = []
        while self._waiting and self._passed:
            text, control = self._waiting.popleft()
            if len(text) <= self._passed:
                self._passed -= len(text)
                released.append(Segment(text, control))
                continue
            if control:
                self._waiting.appendleft(Segment(text, control))
                break
            released.append(Segment(text[: self._passed], False))
            self._waiting.appendleft(Segment(text[self._passed :], False))
            self._passed = 0
        return released
