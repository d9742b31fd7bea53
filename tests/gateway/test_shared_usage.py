"""Limits of keys that workers share: what all of them use counts as if one process used it."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import RateLimited
from dovetail.gateway.limits.keys import Account, Keyring
from dovetail.gateway.limits.shared_usage import SharedUsage
from tests.gateway.named_keys import Clock, named

LIMITS = {"requests_per_minute": 12, "tokens_per_minute": 600, "concurrent_requests": 3}

#: Seconds that pass, the worker, what it does, and a number that this needs.
STEPS = st.lists(
    st.tuples(
        st.sampled_from((0, 0.5, 7, 90)),
        st.integers(0, 2),
        st.sampled_from(("begin", "reserve", "use", "end")),
        st.integers(0, 400),
    ),
    max_size=40,
)


@contextmanager
def workers(count: int) -> Iterator[list[SharedUsage]]:
    """The books of `count` workers: copies, as fork makes them, of one that has shared memory."""
    book = SharedUsage(count, 1)
    with closing(book):
        books = [copy.copy(book) for _ in range(count)]
        for number, each in enumerate(books):
            each.begin(number)
        yield books


@pytest.fixture
def two() -> Iterator[list[SharedUsage]]:
    with workers(2) as books:
        yield books


class Client:
    """The requests of one worker's clients, in the order in which they began."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.running: list[tuple[ExitStack, list[Any]]] = []

    def do(self, what: str, number: int) -> object:
        """What the account says to one step: whether it takes it, and in how many seconds it would."""
        if what == "begin":
            stack = ExitStack()
            try:
                stack.enter_context(self.account.request())
            except RateLimited as refused:
                return refused.message, refused.retry_after
            self.running.append((stack, []))
        elif self.running:
            stack, reservations = self.running[number % len(self.running)]
            if what == "reserve":
                try:
                    reservations.append(stack.enter_context(self.account.reserved(number)))
                except RateLimited as refused:
                    return refused.message, refused.retry_after
            elif what == "use" and reservations:
                reservations[0].use(number // 2, number - number // 2)
            elif what == "end":
                self.running.remove((stack, reservations))
                stack.close()
        return self.account.meters()


@given(STEPS)
def test_three_workers_count_like_one_process(steps: list[tuple[float, int, str, int]]) -> None:
    clock, key = Clock(), named("a", **LIMITS)
    alone = Account(key, clock)
    one = [Client(alone) for _ in range(3)]
    with workers(3) as books:
        three = [Client(Account(key, clock, book.usage("a"))) for book in books]
        for seconds, worker, what, number in steps:
            clock.now += seconds
            assert three[worker].do(what, number) == one[worker].do(what, number)
        for client in (*one, *three):
            for stack, _ in client.running:
                stack.close()
        assert three[0].account.meters() == alone.meters()


def test_what_a_dead_worker_had_reserved_is_free_again_and_what_it_used_is_not(
    two: list[SharedUsage],
) -> None:
    clock, key = Clock(), named("a", **LIMITS)
    first, second = two
    dead, alive = Account(key, clock, first.usage("a")), Account(key, clock, second.usage("a"))
    dead._begin()
    dead._reserve(500).use(100, 100)
    assert [left for _, _, left, _ in alive.meters()] == [11, 100]
    copy.copy(first).begin(0)
    assert [left for _, _, left, _ in alive.meters()] == [11, 400]
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(alive.request())
        with pytest.raises(RateLimited, match="3 requests run at a time"):
            Account(key, clock, first.usage("a"))._begin()


def test_every_name_has_a_slot_of_its_own_and_keeps_it(two: list[SharedUsage]) -> None:
    clock, keys = Clock(), [named(f"key{i}", requests_per_minute=5) for i in range(300)]
    rings = [Keyring(keys, clock, book) for book in two]
    for i, account in enumerate(rings[0].accounts):
        for _ in range(i % 5):
            account._begin()
    rings[1].replace([*reversed(keys)])
    left = {account.name: account.meters()[0][2] for account in rings[1].accounts}
    assert left == {f"key{i}": 5 - i % 5 for i in range(300)}


def test_names_beyond_the_memory_count_in_each_worker_by_themselves(two: list[SharedUsage]) -> None:
    clock, slots = Clock(), two[0].slots
    keys = [named(f"key{i}", requests_per_minute=1) for i in range(slots + 1)]
    rings = [Keyring(keys, clock, book) for book in two]
    for account in rings[0].accounts:
        account._begin()
    left = [account.meters()[0][2] for account in rings[1].accounts]
    assert left == [0] * slots + [1]


def _spends(book: SharedUsage, worker: int, times: int) -> None:
    book.begin(worker)
    account = Account(named("a", tokens_per_minute=10**9), Clock(), book.usage("a"))
    for _ in range(times):
        with account.request(), account.reserved(3) as reservation:
            reservation.use(1, 1)


def test_processes_that_count_at_once_lose_nothing() -> None:
    book, fork = SharedUsage(2, 1), multiprocessing.get_context("fork")
    work: Callable[..., None] = _spends
    children = [fork.Process(target=work, args=(book, number, 2_000)) for number in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    with closing(book), book.usage("a") as usage:
        assert (usage.tokens.spent, usage.tokens.reserved, usage.running) == (8_000, 0, 0)
