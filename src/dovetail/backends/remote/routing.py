"""Which of several servers gets a request: a consistent hash of how its conversation begins, with bounded load.

Each server has a place in an order that depends on the conversation and on the names of the servers alone (rendezvous
hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). So gateways agree without
talking to each other, and a server that joins or leaves moves only the conversations that it gets or had. The first
server that is not much fuller than the others is taken (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with
Bounded Loads", 2016).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from dovetail.completion import Completion

#: How many of the first tokens count, of a prompt whose conversation is not known.
_BEGINNING = 1024
#: A server is passed over if it runs more requests than this many times the average of all, plus the slack. A lower
#: bound spreads work better, and loses more of what is cached (`python -m benchmarks.fleet`).
_BOUND, _SLACK = 1.5, 2


def key_of(completion: Completion) -> bytes:
    """What prompts that begin alike have in common: their conversation, or else their first tokens."""
    beginning = completion.session or repr((completion.cache_salt, completion.seen[:_BEGINNING]))
    return blake2b(beginning.encode(errors="surrogatepass"), digest_size=16).digest()


def order(key: bytes, servers: Iterable[str]) -> list[str]:
    """The `servers` in the order in which a request with this key prefers them."""
    return sorted(servers, key=lambda server: blake2b(server.encode(), key=key, digest_size=8).digest())


def choose(loads: Mapping[str, float], preferred: Iterable[str]) -> str:
    """The first of the `preferred` servers that is not much fuller than the average.

    `loads`: the number of requests that each of them runs; at least one server.
    """
    most = _BOUND * sum(loads.values()) / len(loads) + _SLACK
    return next(server for server in preferred if loads[server] <= most)
