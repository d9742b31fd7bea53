"""Which of several servers gets a request: the one that has its prompt's beginning in its cache, or the least loaded.

Nothing here knows what a server is, but for its name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

#: Tokens of a prompt that are remembered as one; a server's own blocks are smaller, and conversations longer.
BLOCK = 128
#: How many of them are remembered: some 100 bytes each.
_MOST_BLOCKS = 1 << 17
#: A server that has the prompt is passed over when it runs more than twice what the least loaded runs, and this.
_SLACK = 4

#: Requests that run on a server now, and all that it ever got.
Load = tuple[int, int]


class Affinity:
    """Where prompts went, by the blocks they begin with; the `most` of them that were used last."""

    def __init__(self, most: int = _MOST_BLOCKS, block: int = BLOCK) -> None:
        self._most, self._block = most, block
        self._servers: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._servers)

    def prefixes(self, prompt: Sequence[int]) -> list[int]:
        """What stands for each beginning of `prompt` in whole blocks, from the shortest to the longest."""
        found: list[int] = []
        before = 0
        for start in range(0, len(prompt) - self._block + 1, self._block):
            before = hash((before, *prompt[start : start + self._block]))
            found.append(before)
        return found

    def candidates(self, prefixes: Sequence[int]) -> Iterable[str]:
        """The servers that were last sent a prompt with such a beginning, the longest first."""
        found = (self._servers.get(prefix) for prefix in reversed(prefixes))
        return dict.fromkeys(server for server in found if server is not None)

    def remember(self, prefixes: Sequence[int], server: str) -> None:
        """A prompt that begins so goes to `server`."""
        # The longest is the first to be forgotten: fewest have it.
        for prefix in reversed(prefixes):
            self._servers[prefix] = server
            self._servers.move_to_end(prefix)
        while len(self._servers) > self._most:
            self._servers.popitem(last=False)


def choose(loads: Mapping[str, Load], candidates: Iterable[str]) -> str:
    """One of the servers in `loads`, of which there is at least one: the first of `candidates` that is not much fuller
    than the least loaded, or else that one."""
    least = min(loads, key=lambda server: loads[server])
    most = 2 * loads[least][0] + _SLACK
    return next((server for server in candidates if server in loads and loads[server][0] <= most), least)
