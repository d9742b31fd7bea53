"""Refuses prompts that were running each time that a server died."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable

from dovetail.errors import InvalidRequest

#: A prompt is refused after this many deaths within `WINDOW_S` seconds. vLLM is given up after more of them
#: (`backends.supervised.engine`), so one prompt alone never ends Dovetail.
MOST_DEATHS = 3
WINDOW_S = 1800.0
#: The most prompts to remember; the oldest death is forgotten first.
_MOST_PROMPTS = 1024


class CrashSuspects:
    """Counts the server deaths at which each prompt was running.

    The bound: a prompt is sent to a server only while it was running at fewer than `MOST_DEATHS` deaths in the last
    `WINDOW_S` seconds, and an answer sets its count to zero. A prompt that kills servers therefore ends at most three
    processes in half an hour, however many clients send it. A harmless prompt that was running at the same time is
    counted too; it is refused only if it was there three times and was never answered in between.

    A prompt is any hashable value. `server` is one run of a server process; a server that comes back is another one.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, Counter[Hashable]] = {}
        self._deaths: dict[Hashable, deque[float]] = {}

    def check(self, prompt: Hashable, now: float) -> None:
        """Raise `InvalidRequest` for a prompt that may not be sent at time `now`."""
        deaths = self._deaths.get(prompt, deque())
        while deaths and deaths[0] <= now - WINDOW_S:
            deaths.popleft()
        if len(deaths) >= MOST_DEATHS:
            # Status 400, because clients send a request again after a 5xx.
            raise InvalidRequest(
                f"the engine died {len(deaths)} times while it ran this prompt, so it is refused for half an hour"
            )

    def begin(self, prompt: Hashable, server: Hashable) -> None:
        """A request with `prompt` is about to be sent to `server`."""
        self._running.setdefault(server, Counter())[prompt] += 1

    def end(self, prompt: Hashable, server: Hashable, *, answered: bool) -> None:
        """The request has ended. `answered`: the server completed it."""
        if server in self._running:
            self._running[server] -= Counter({prompt: 1})
        if answered:
            self._deaths.pop(prompt, None)

    def died(self, server: Hashable, now: float) -> None:
        """`server` died at time `now`. Every request that was running there may report it; the first report counts."""
        for prompt in self._running.pop(server, Counter()):
            deaths = self._deaths.pop(prompt, deque(maxlen=MOST_DEATHS))
            deaths.append(now)
            self._deaths[prompt] = deaths
        for prompt in list(self._deaths)[:-_MOST_PROMPTS]:
            del self._deaths[prompt]
