"""Which prompt servers die of: pure bookkeeping of who was there when one did.

All who are there at a death are suspected, and a prompt that is answered no longer is. Who was there at two deaths is
sent `alone` among such, and only to `places` where it was at a death before, so that no other dies of it; a third shows
who did it: whoever was there at more of them than any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

_ENOUGH = 3  # two can be chance, or an operator's doing
_MOST = 1024  # prompts that are remembered


class Suspects:
    """Prompts by whatever they are equal by, servers by name."""

    def __init__(self) -> None:
        #: Prompt -> the servers at whose deaths it was there, one after the other.
        self._deaths: dict[Hashable, tuple[str, ...]] = {}
        self._convicted: dict[Hashable, None] = {}
        self._there: dict[str, Counter[Hashable]] = {}
        self._died: Counter[str] = Counter()

    def enter(self, prompt: Hashable, server: str) -> None:
        """It is sent there; once for each request."""
        self._there.setdefault(server, Counter())[prompt] += 1

    def leave(self, prompt: Hashable, server: str, *, answered: bool) -> None:
        """It is there no longer, and the server has lived through it if it was `answered`."""
        self._there[server] -= Counter({prompt: 1})
        if answered:
            self._deaths.pop(prompt, None)

    def deaths(self, server: str) -> int:
        """How often it died: by which those who all see one death know whether it was told."""
        return self._died[server]

    def died(self, server: str) -> bool:
        """The server did. Whether one who is there was there at a death before, and so is perhaps its only cause."""
        self._died[server] += 1
        there = self._there.get(server, Counter())
        for prompt in there:
            self._deaths[prompt] = (*self._deaths.pop(prompt, ()), server)
        most = Counter({prompt: len(self._deaths[prompt]) for prompt in there}).most_common(2)
        if most and most[0][1] >= _ENOUGH and (len(most) == 1 or most[0][1] > most[1][1]):
            self._convicted[most[0][0]] = None
        for kept in (self._deaths, self._convicted):
            for prompt in list(kept)[:-_MOST]:
                del kept[prompt]
        return any(deaths > 1 for _, deaths in most)

    def convicted(self, prompt: Hashable) -> bool:
        return prompt in self._convicted

    def alone(self, prompt: Hashable) -> bool:
        """Whether it was there at two deaths, and is sent only while no other such prompt is there."""
        return len(self._deaths.get(prompt, ())) > 1

    def places(self, prompt: Hashable) -> frozenset[str] | None:
        """The servers that it may be sent to; None: any."""
        return frozenset(self._deaths[prompt]) if self.alone(prompt) else None
