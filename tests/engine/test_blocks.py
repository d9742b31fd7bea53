"""The block pool and its tables under random use: invariants, sharing, eviction, and the places of blocks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dovetail.engine.cache.blocks import BlockPool
from dovetail.engine.cache.tables import BlockTable, Tables
from dovetail.errors import EngineError

SIZE = 4


class Cache(RuleBasedStateMachine):
    """Sequences over a small alphabet come, grow, publish and go. Rows hold what was last written there: a sequence
    must always read its own tokens, whichever sequences share or reuse the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables(BlockPool(12, SIZE), lookahead=self.lookahead)
        self.rows: list[tuple[int, ...] | None] = [None] * (12 * SIZE)
        self.sequences: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.number = 0

    lookahead = 0

    def written(self, tokens: list[int], position: int) -> tuple[int, ...]:
        """What a row depends on: every token up to its own, and those that are looked ahead to."""
        return tuple(tokens[: position + 1 + self.lookahead])

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20), limit=st.none() | st.integers(0, 20))
    def begin(self, tokens: list[int], limit: int | None) -> None:
        self.number += 1
        name = str(self.number)
        prefix, idle, _ = self.tables.find_cached(name, tokens)
        free = self.tables.pool.free
        cached = self.tables.begin(name, tokens, limit)
        assert cached % SIZE == 0 and cached < len(tokens)
        assert cached <= prefix and (limit is None or cached <= limit)
        if limit is None:
            assert cached == prefix and self.tables.pool.free == free - idle
        self.sequences[name], self.computed[name] = tokens, cached

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), max_size=6))
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        name = data.draw(st.sampled_from(sorted(self.sequences)))
        tokens = self.sequences[name]
        tokens += more
        end = len(tokens) - self.lookahead
        table = self.tables[name]
        blocks, free = list(table.blocks), self.tables.pool.free
        if not self.tables.reserve(name, len(tokens)):
            assert table.blocks == blocks and -(-len(tokens) // SIZE) - len(blocks) > free
            return
        for position, row in enumerate(table.of(self.computed[name], max(end, self.computed[name]))):
            at = position + self.computed[name]
            self.rows[row] = self.written(tokens, at)
        self.computed[name] = max(end, self.computed[name])
        self.tables.publish(name, tokens, self.computed[name])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.sequences)))
        del self.sequences[name], self.computed[name]
        self.tables.release(name)

    @invariant()
    def reads_its_own(self) -> None:
        self.tables.check_integrity(set(self.sequences))
        for name, tokens in self.sequences.items():
            table, computed = self.tables[name], self.computed[name]
            rows = table.up_to(computed)
            index = list(range(12 * SIZE))[rows] if isinstance(rows, slice) else rows.tolist()
            assert index == table.of(0, computed)
            assert [self.rows[row] for row in index] == [self.written(tokens, i) for i in range(computed)]


class CacheThatLooksAhead(Cache):
    lookahead = 1


TestCache = Cache.TestCase
TestCacheThatLooksAhead = CacheThatLooksAhead.TestCase


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_the_cached_prefix_is_the_common_beginning(first: list[int], second: list[int]) -> None:
    for lookahead in (0, 1):
        tables = Tables(BlockPool(32, SIZE), lookahead=lookahead)
        tables.begin("a", first)
        assert tables.reserve("a", len(first))
        tables.publish("a", first, len(first) - lookahead)
        common = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        common = min(len(first), len(second)) if common is None else common
        usable = min(common - lookahead, len(second) - 1)
        assert tables.begin("b", second) == max(0, usable) // SIZE * SIZE


@pytest.mark.parametrize("lookahead", [0, 1])
def test_prompts_with_different_salts_share_nothing(lookahead: int) -> None:
    """Neither prompts nor outputs, however short the prompt, and nobody waits for another one's."""
    tables = Tables(BlockPool(64, SIZE), lookahead=lookahead)
    whole = [1] * 13
    for salt in (b"", b"a", b"b"):
        prompt, name = whole[:3], f"short {salt!r}"
        assert tables.begin(name, prompt, salt=salt) == 0
        assert tables.reserve(name, len(whole))
        assert tables.find_cached(f"{name} 2", whole, salt=salt) == (0, 0, False)
        tables.publish(name, whole, len(whole))
        tables.hash(f"{name} 3", whole, salt)
        assert tables.find_cached(f"{name} 3", whole, salt=salt) == (12, 0, False)
        assert tables.begin(f"{name} 3", whole, salt=salt) == 12
    assert tables.find_cached("c", whole, salt=b"c") == (0, 0, False)


def test_without_sharing_nothing_is_found() -> None:
    tables = Tables(BlockPool(8, SIZE), share=False)
    for name in "ab":
        assert tables.begin(name, [1] * 9) == 0
        tables.reserve(name, 9)
        tables.publish(name, [1] * 9, 9)
    tables.check_integrity({"a", "b"})


def test_a_request_with_the_prefix_of_a_running_one_waits() -> None:
    tables = Tables(BlockPool(16, SIZE))
    prompt = list(range(9))
    tables.begin("a", prompt)
    tables.reserve("a", 9)
    assert tables.find_cached("b", prompt) == (0, 0, True)
    assert tables.find_cached("c", [7, *prompt]) == (0, 0, False)
    tables.publish("a", prompt, 4)
    assert tables.find_cached("b", prompt) == (4, 0, True)
    tables.publish("a", prompt, 9)
    assert tables.find_cached("b", prompt) == (8, 0, False)
    tables.release("a")
    assert tables.find_cached("b", prompt) == (8, 2, False)


def test_the_least_recently_used_block_is_evicted_first() -> None:
    tables = Tables(BlockPool(4, SIZE))
    for name, prompt in {"old": [1] * 9, "new": [2] * 9}.items():
        tables.begin(name, prompt)
        tables.reserve(name, 8)
        tables.publish(name, prompt, 8)
        tables.release(name)
    tables.begin("x", [3])
    assert tables.reserve("x", 1)
    assert tables.find_cached("a", [1] * 9)[0] == 0
    assert tables.find_cached("b", [2] * 9)[0] == 8


def test_a_beginning_outlives_what_follows_it() -> None:
    pool = BlockPool(2, SIZE)
    tables = Tables(pool)
    tables.begin("a", [1] * 9)
    tables.reserve("a", 8)
    tables.publish("a", [1] * 9, 8)
    tables.release("a")
    assert list(pool._cached) == [1, 0]


def test_sequences_grow_side_by_side() -> None:
    """As long as there is room: each reads its cache in place."""
    tables = Tables(BlockPool(64, SIZE))
    for name in "abcd":
        tables.begin(name, [ord(name)] * 5)
    for length in range(5, 60, 3):
        for name in "abcd":
            assert tables.reserve(name, length)
    for name in "abcd":
        assert all(b - a == 1 for a, b in pairwise(tables[name].blocks))
        assert isinstance(tables[name].up_to(50), slice)


def test_a_scattered_table() -> None:
    table = BlockTable(SIZE)
    for block in (7, 3, 5):
        table.append(block)
    index = table.up_to(10)
    assert isinstance(index, torch.Tensor) and index.tolist() == [28, 29, 30, 31, 12, 13, 14, 15, 20, 21]
    assert table.of(3, 6) == [31, 12, 13]
    table.append(4)
    grown = table.up_to(13)
    assert isinstance(grown, torch.Tensor) and grown[-1] == 16


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda pool: pool._users.__setitem__(0, 2), "users"),
        (lambda pool: pool._keys.__setitem__(0, b"x"), "key of another block"),
        (lambda pool: pool._map.__setitem__(3, 1), "listed as free"),
        (lambda pool: pool._by_key.__setitem__(b"x", 3), "does not have it"),
    ],
)
def test_integrity_notices(break_it: object, message: str) -> None:
    tables = Tables(BlockPool(4, SIZE))
    tables.begin("a", [1] * 9)
    tables.reserve("a", 9)
    tables.check_integrity({"a"})
    with pytest.raises(EngineError, match="are running"):
        tables.check_integrity(set())
    break_it(tables.pool)  # type: ignore[operator]
    with pytest.raises(EngineError, match=message):
        tables.check_integrity({"a"})


def test_integrity_notices_unpublished_sharing() -> None:
    pool = BlockPool(4, SIZE)
    assert pool.take(None) == 0
    pool.share(0)
    with pytest.raises(EngineError, match="is shared and not published"):
        pool.check_integrity([[0], [0]])
