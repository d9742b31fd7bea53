"""A limit a minute: never exceeded in any span of time, and never a request too few where nothing is reserved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import RateLimited
from dovetail.gateway.limits.keys import Account, duration
from dovetail.gateway.limits.meters import KeyUse, Meter
from tests.gateway.named_keys import Clock, named

#: Seconds that pass, and an amount that is asked for after them.
STEPS = st.lists(st.tuples(st.sampled_from((0, 0.1, 1, 7.5, 90)), st.integers(1, 40)), max_size=20)


def done(work: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as end:
        work.send(None)
    return end.value.value


@given(st.integers(1, 60), STEPS)
def test_no_span_of_time_has_more_than_its_share(limit: int, steps: list[tuple[float, int]]) -> None:
    """The oracle adds up what was let through, over every span between two requests."""
    meter, now = Meter(), 0.0
    through: list[tuple[float, int]] = []
    for seconds, amount in steps:
        now += seconds
        if meter.wait(amount, limit, now) == 0:
            meter.spend(amount, limit, now)
            through.append((now, amount))
    for i, (start, _) in enumerate(through):
        spent = 0
        for at, amount in through[i:]:
            spent += amount
            assert spent <= limit * (1 + (at - start) / 60) + 1e-6


@given(st.integers(1, 60), STEPS, st.floats(0, 30), st.integers(0, 2**20))
def test_clocks_of_gateways_may_differ(limit: int, steps: list[tuple[float, int]], ahead: float, turns: int) -> None:
    """One meter that two gateways use in any order, one of whose clocks is `ahead`: that gives it `ahead` once."""
    meter, now = Meter(), 1000.0
    spent = 0
    for number, (seconds, amount) in enumerate(steps):
        now += seconds
        clock = now + (ahead if turns >> number & 1 else 0.0)
        if meter.wait(amount, limit, clock) == 0:
            meter.spend(amount, limit, clock)
            spent += amount
    assert spent <= limit * (1 + (now - 1000.0 + ahead) / 60) + 1e-6


@given(st.integers(1, 60), STEPS)
def test_after_the_wait_there_is_room(limit: int, steps: list[tuple[float, int]]) -> None:
    meter, now = Meter(), 0.0
    for seconds, asked in steps:
        now += seconds
        amount = min(asked, limit)
        wait = meter.wait(amount, limit, now)
        assert wait <= 60 + 1e-3 and (wait == 0) == (meter.remaining(limit, now) >= amount)
        if wait > 1e-3:
            assert meter.wait(amount, limit, now + wait * 0.99) > 0
        now += wait + 1e-6
        assert meter.wait(amount, limit, now) == 0
        meter.spend(amount, limit, now)
        assert meter.remaining(limit, now + meter.full_in(limit, now) + 1e-6) == limit


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300), st.integers(0, 300)), max_size=60))
def test_what_is_used_is_what_was_reserved_or_delays_what_comes_after(steps: list[tuple[int, int, int]]) -> None:
    """Requests that reserve, use less or more of it, and end in any order; an oracle that knows all of them."""
    limit, clock = 600, Clock()
    account = Account(named("a", tokens_per_minute=limit), KeyUse(clock))
    running = []
    used: list[tuple[float, int]] = []
    level = 0.0  # what the oracle thinks is spent
    for seconds, asked, uses in steps:
        clock.now += seconds
        level = max(0.0, level - seconds * limit / 60)
        context = account.reserved(asked)
        try:
            reservation = done(context.__aenter__())
        except RateLimited as refused:
            assert level + sum(each.left for _, each in running) + min(asked, limit) > limit - 1e-6
            assert refused.retry_after is not None and refused.retry_after >= 1
        else:
            assert level + sum(each.left for _, each in running) + min(asked, limit) <= limit + 1e-6
            running.append((context, reservation))
        if running:
            running[uses % len(running)][1].use(uses // 2, uses - uses // 2)
            used.append((clock.now, uses))
            level += uses
            if uses % 3:
                ended, _ = running.pop(uses % len(running))
                done(ended.__aexit__(None, None, None))
    for ended, _ in running:
        done(ended.__aexit__(None, None, None))
    assert account.prompt_tokens + account.completion_tokens == sum(amount for _, amount in used)
    ((_, _, remaining, full_in),) = account.meters()
    assert remaining == pytest.approx(max(0, limit - level), abs=1)
    assert full_in == pytest.approx(level * 60 / limit, abs=1e-3)


@pytest.mark.anyio
async def test_a_request_for_more_than_a_minutes_tokens_runs_when_nothing_else_does() -> None:
    clock = Clock()
    account = Account(named("a", tokens_per_minute=100), KeyUse(clock))
    async with account.reserved(5000) as whole:
        with pytest.raises(RateLimited, match="100 tokens a minute, and this request asks for up to 1"):
            done(account.reserved(1).__aenter__())
        whole.use(150, 50)
    assert [(unit, left, seconds) for unit, _, left, seconds in account.meters()] == [("tokens", 0, 120.0)]
    clock.now += 60
    with pytest.raises(RateLimited) as refused:
        done(account.reserved(1).__aenter__())
    assert refused.value.retry_after == 1
    clock.now += 60
    async with account.reserved(5000):
        pass
    assert account.refusals == {"tokens": 2}


@pytest.mark.anyio
async def test_a_limit_that_changes_counts_from_then_on() -> None:
    clock = Clock()
    account = Account(named("a"), KeyUse(clock))
    async with account.reserved(1000) as reservation:
        account.key = named("a", tokens_per_minute=100, requests_per_minute=1)
        reservation.use(30, 30)
        assert [left for _, _, left, _ in account.meters()] == [1, 40]
        account.key = named("a", tokens_per_minute=50)
        assert [left for _, _, left, _ in account.meters()] == [0]
    account.key = named("a")
    assert [*account.meters()] == []
    assert account.prompt_tokens == account.completion_tokens == 30


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (90.25, "1m30.25s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (7384.001, "2h3m4.001s"),
    ],
)
def test_durations_are_gos(seconds: float, text: str) -> None:
    assert duration(seconds) == text
