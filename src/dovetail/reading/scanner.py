"""Splits a stream of characters at literals, holding back only what could still become one.

Each character is looked at a bounded number of times, however the stream is cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dovetail.tokens import Segment


class Scanner:
    """Finds `literals` in a stream. No literal may be a prefix of another."""

    def __init__(self, literals: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, literals)))
        self._beginnings = frozenset(literal[:n] for literal in literals for n in range(1, len(literal)))
        self._longest = max(map(len, self._beginnings), default=0)
        self._held = ""

    def feed(self, text: str) -> list[Segment]:
        """The texts and literals that `text` completes, in order."""
        text = self._held + text
        segments: list[Segment] = []
        at = 0
        for match in self._pattern.finditer(text):
            if match.start() > at:
                segments.append(Segment(text[at : match.start()], False))
            segments.append(Segment(match.group(), True))
            at = match.end()
        end = len(text) - self._open_ending(text, at)
        self._held = text[end:]
        if end > at:
            segments.append(Segment(text[at:end], False))
        return segments

    def finish(self) -> list[Segment]:
        """What was held back, as text: nothing can complete it any more."""
        held, self._held = self._held, ""
        return [Segment(held, False)] if held else []

    def _open_ending(self, text: str, at: int) -> int:
        for start in range(max(at, len(text) - self._longest), len(text)):
            if text[start:] in self._beginnings:
                return len(text) - start
        return 0
