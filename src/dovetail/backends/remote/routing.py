"""Chooses a server for a request: the one that has the prompt's prefix in its cache, else the least loaded one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

#: Prefixes are remembered in steps of this many tokens. The servers' own cache blocks are smaller.
BLOCK = 128
#: The most prefixes to remember, at about 100 bytes each.
_MOST_BLOCKS = 1 << 17
#: A server that has the prefix is skipped if it runs more than twice as many requests as the least loaded, plus this.
_SLACK = 4

#: The number of requests that run on a server now, and of all that were ever sent to it.
Load = tuple[int, int]


class Affinity:
    """Remembers which server got which prefix: the `most` last used prefixes, in steps of `block` tokens."""

    def __init__(self, most: int = _MOST_BLOCKS, block: int = BLOCK) -> None:
        self._most, self._block = most, block
        self._servers: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._servers)

    def prefixes(self, prompt: Sequence[int]) -> list[int]:
        """A hash for each prefix of `prompt` in whole blocks, from the shortest to the longest."""
        hashes: list[int] = []
        before = 0
        for start in range(0, len(prompt) - self._block + 1, self._block):
            before = hash((before, *prompt[start : start + self._block]))
            hashes.append(before)
        return hashes

    def candidates(self, prefixes: Sequence[int]) -> Iterable[str]:
        """The servers that were last sent a prompt with one of the `prefixes`, the longest prefix first."""
        servers = (self._servers.get(prefix) for prefix in reversed(prefixes))
        return dict.fromkeys(server for server in servers if server is not None)

    def remember(self, prefixes: Sequence[int], server: str) -> None:
        """A prompt with these `prefixes` goes to `server`."""
        # The longest prefix is forgotten first, because the fewest prompts share it.
        for prefix in reversed(prefixes):
            self._servers[prefix] = server
            self._servers.move_to_end(prefix)
        while len(self._servers) > self._most:
            self._servers.popitem(last=False)


def choose(loads: Mapping[str, Load], candidates: Iterable[str]) -> str:
    """The first of `candidates` that is not much fuller than the least loaded server, else the least loaded server.

    `loads`: the servers to choose from; at least one.
    """
    least = min(loads, key=lambda server: loads[server])
    most = 2 * loads[least][0] + _SLACK
    return next((server for server in candidates if server in loads and loads[server][0] <= most), least)
