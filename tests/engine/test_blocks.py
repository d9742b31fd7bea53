"""The block pool's invariants under random use, and the scheduler's order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.completion import Completion
from dovetail.engine.cache.blocks import BlockPool
from dovetail.engine.request import Request
from dovetail.engine.scheduler import Scheduler
from dovetail.errors import EngineError


@given(st.lists(st.one_of(st.integers(1, 90), st.none()), max_size=40))
def test_pool(actions: list[int | None]) -> None:
    """Integers allocate so many tokens; None releases somebody."""
    pool = BlockPool(12, 16)
    owners: dict[str, tuple[int, ...]] = {}
    for number, tokens in enumerate(actions):
        if tokens is None:
            if owners:
                name = sorted(owners)[number % len(owners)]
                del owners[name]
                pool.release(name)
        else:
            free = pool.free
            table = pool.allocate(str(number), tokens)
            assert (table is None) == (-(-tokens // 16) > free)
            if table is not None:
                owners[str(number)] = table
                assert len(table) == -(-tokens // 16)
        pool.check_integrity(set(owners))
    assert pool.free == 12 - sum(map(len, owners.values()))


def test_runs_are_preferred() -> None:
    pool = BlockPool(8, 16)
    for name in "abcd":
        pool.allocate(name, 32)
    pool.release("a")
    pool.allocate("e", 16)
    pool.release("c")
    table = pool.allocate("f", 32)
    assert table is not None and all(b - a == 1 for a, b in pairwise(table))
    pool.release("d")
    assert pool.allocate("g", 48) == (1, 6, 7)


def test_integrity_notices() -> None:
    pool = BlockPool(4, 16)
    pool.allocate("a", 40)
    with pytest.raises(EngineError, match="are running"):
        pool.check_integrity(set())
    pool._free.append(0)
    with pytest.raises(EngineError, match="not the pool's 4"):
        pool.check_integrity({"a"})


def request(name: str, prompt: int, tokens: int) -> Request:
    completion = Completion(tuple(range(prompt)), tokens)
    return Request(name, completion, context=256, vocab_size=97, draft_tokens=3)


def test_first_come_first_served() -> None:
    """Nobody overtakes the first in line, however little room they need; a waiting request can be cancelled."""
    scheduler = Scheduler(BlockPool(4, 16), max_batch=2)
    for name, prompt, tokens in [("a", 20, 12), ("b", 30, 34), ("c", 3, 3), ("d", 1, 1)]:
        scheduler.add(request(name, prompt, tokens))
    assert [r.id for r in scheduler.schedule()] == ["a"]
    assert scheduler.remove("a") and [r.id for r in scheduler.schedule()] == ["b"]
    assert scheduler.remove("c") and scheduler.remove("b") and not scheduler.remove("b")
    assert [r.id for r in scheduler.schedule()] == ["d"]
    scheduler.check_integrity()
