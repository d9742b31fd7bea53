"""Which prompt an engine dies of: pure bookkeeping of who was there when it died.

All who are there at a death are suspected, and a prompt that is answered no longer is. Who was there at two deaths is
sent `alone` among such, so that a third shows who did it: whoever was there at more of them than any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

_ENOUGH = 3  # two can be chance, or an operator's doing
_MOST = 1024  # prompts that are remembered


class Suspects:
    """Prompts by whatever they are equal by."""

    def __init__(self) -> None:
        self._deaths: dict[Hashable, int] = {}
        self._convicted: dict[Hashable, None] = {}
        self._there: Counter[Hashable] = Counter()

    def enter(self, prompt: Hashable) -> None:
        """It is sent to the engine; once for each request."""
        self._there[prompt] += 1

    def leave(self, prompt: Hashable, *, answered: bool) -> None:
        """It is there no longer, and the engine has lived through it if it was `answered`."""
        self._there -= Counter({prompt: 1})
        if answered:
            self._deaths.pop(prompt, None)

    def died(self) -> bool:
        """The engine did. Whether one who is there was there at a death before, and so is perhaps its only cause."""
        for prompt in self._there:
            self._deaths[prompt] = self._deaths.pop(prompt, 0) + 1
        there = Counter({prompt: self._deaths[prompt] for prompt in self._there}).most_common(2)
        if there and there[0][1] >= _ENOUGH and (len(there) == 1 or there[0][1] > there[1][1]):
            self._convicted[there[0][0]] = None
        for kept in (self._deaths, self._convicted):
            for prompt in list(kept)[:-_MOST]:
                del kept[prompt]
        return any(deaths > 1 for _, deaths in there)

    def convicted(self, prompt: Hashable) -> bool:
        return prompt in self._convicted

    def alone(self, prompt: Hashable) -> bool:
        """Whether it was there at two deaths, and is sent only while no other such prompt is there."""
        return self._deaths.get(prompt, 0) > 1
