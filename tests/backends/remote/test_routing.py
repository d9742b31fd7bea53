"""The choice of a server: stable, the same in all gateways, and bounded."""

from __future__ import annotations

import hashlib
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dovetail.backends.remote.routing import choose, key_of, order
from dovetail.completion import Completion, Picture

SERVERS = [f"10.0.0.{i}:8000" for i in range(8)]
_sets = st.sets(st.sampled_from(SERVERS), min_size=1)
_keys = st.binary(min_size=1, max_size=16)


@given(_keys, _sets, st.randoms())
def test_the_order_is_that_of_any_gateway(key: bytes, servers: set[str], random: object) -> None:
    shuffled = sorted(servers, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert order(key, shuffled) == order(key, servers)
    assert set(order(key, servers)) == servers


@given(_keys, _sets, st.sampled_from(SERVERS))
def test_a_server_that_leaves_changes_nothing_for_the_others(key: bytes, servers: set[str], gone: str) -> None:
    assert order(key, servers - {gone}) == [server for server in order(key, servers) if server != gone]


def test_conversations_are_spread_evenly() -> None:
    counts = Counter(order(str(number).encode(), SERVERS)[0] for number in range(8000))
    assert min(counts.values()) > 850 and max(counts.values()) < 1150


@given(st.dictionaries(st.sampled_from(SERVERS), st.floats(0, 1e6), min_size=1), _keys)
def test_the_first_that_is_not_much_fuller_than_the_average(loads: dict[str, float], key: bytes) -> None:
    preferred = order(key, loads)
    average = sum(loads.values()) / len(loads)
    assert choose(loads, preferred) == next(each for each in preferred if loads[each] <= 1.5 * average + 2)


def completion(*prompt: int, **fields: object) -> Completion:
    return Completion(prompt, 1, **fields)  # type: ignore[arg-type]


def test_a_session_decides_alone() -> None:
    assert key_of(completion(1, session="a")) == key_of(completion(2, session="a"))
    assert key_of(completion(1, session="a")) != key_of(completion(1, session="b"))


def test_without_a_session_the_first_tokens_decide() -> None:
    long = range(1024)
    assert key_of(completion(*long, 5)) == key_of(completion(*long, 6, 7))
    assert key_of(completion(1)) != key_of(completion(2))
    assert key_of(completion(1)) != key_of(completion(1, cache_salt="a"))


def test_another_picture_is_another_beginning() -> None:
    def key(data: bytes) -> bytes:
        picture = Picture(data, "image/png", hashlib.sha256(data).hexdigest())
        return key_of(completion(1, 9, 2, pictures=(picture,), picture_token=9))

    assert key(b"a") == key(b"a") != key(b"b")


def test_a_place_that_the_model_wrote_has_no_picture() -> None:
    picture = Picture(b"a", "image/png", "digest")
    assert Completion((9, 1, 9), 1, pictures=(picture,), picture_token=9).seen == ("digest", 1, 9)
