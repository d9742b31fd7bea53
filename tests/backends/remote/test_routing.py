"""Affinity against a list of everything that was ever sent; the choice by what must hold of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dovetail.backends.remote.engine import Affinity, choose
from dovetail.completion import Completion, Picture

BLOCK = 2
SERVERS = ["a", "b", "c"]
_prompts = st.lists(st.integers(0, 1), max_size=9)


def naive(sent: Sequence[tuple[list[int], str]], prompt: list[int]) -> list[str]:
    """For each length in whole blocks, from the longest: who was last sent a prompt that begins so."""
    servers_in_order: list[str] = []
    for blocks in range(len(prompt) // BLOCK, 0, -1):
        start = prompt[: blocks * BLOCK]
        servers = [server for earlier, server in sent if earlier[: blocks * BLOCK] == start]
        if servers and servers[-1] not in servers_in_order:
            servers_in_order.append(servers[-1])
    return servers_in_order


@given(st.lists(st.tuples(_prompts, st.sampled_from(SERVERS)), max_size=20), _prompts)
def test_the_longest_beginning_decides(sent: list[tuple[list[int], str]], prompt: list[int]) -> None:
    affinity = Affinity(block=BLOCK)
    for earlier, server in sent:
        affinity.remember(affinity.prefixes(earlier), server)
    assert list(affinity.candidates(affinity.prefixes(prompt))) == naive(sent, prompt)


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=40), st.sampled_from(SERVERS))), st.integers(0, 10))
def test_its_memory_is_bounded(sent: list[tuple[list[int], str]], most: int) -> None:
    affinity = Affinity(most, BLOCK)
    for prompt, server in sent:
        affinity.remember(affinity.prefixes(prompt), server)
        assert len(affinity) <= most


def test_the_most_recently_used_prefixes_stay() -> None:
    affinity = Affinity(2, BLOCK)
    for prompt, server in [([1, 1], "a"), ([2, 2], "b"), ([1, 1], "a"), ([3, 3], "c")]:
        affinity.remember(affinity.prefixes(prompt), server)
    servers_in_order = [list(affinity.candidates(affinity.prefixes([each, each]))) for each in (1, 2, 3)]
    assert servers_in_order == [["a"], [], ["c"]]


_loads = st.dictionaries(
    st.sampled_from(SERVERS), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=3
)


@given(_loads, st.lists(st.sampled_from(SERVERS), unique=True))
def test_the_choice(loads: dict[str, tuple[int, int]], candidates: list[str]) -> None:
    chosen = choose(loads, candidates)
    least = min(loads.values())
    fit = [server for server in candidates if server in loads and loads[server][0] <= 2 * least[0] + 4]
    assert chosen == fit[0] if fit else loads[chosen] == least


def test_idle_servers_take_turns() -> None:
    loads = dict.fromkeys(SERVERS, (0, 0))
    order = []
    for _ in range(6):
        server = choose(loads, [])
        order.append(server)
        loads[server] = (0, loads[server][1] + 1)
    assert order == SERVERS * 2


def test_a_prompt_with_another_picture_is_another_prefix() -> None:
    def prefixes(data: bytes) -> list[int]:
        picture = Picture(data, "image/png", hashlib.sha256(data).hexdigest())
        return affinity.prefixes(Completion((1, 9, 2, 3), 1, pictures=(picture,), picture_token=9).seen)

    affinity = Affinity(block=2)
    assert prefixes(b"a") == prefixes(b"a")
    assert not set(prefixes(b"a")) & set(prefixes(b"b"))


def test_a_place_that_the_model_wrote_has_no_picture() -> None:
    picture = Picture(b"a", "image/png", "digest")
    assert Completion((9, 1, 9), 1, pictures=(picture,), picture_token=9).seen == ("digest", 1, 9)
