"""Each statistic equals a slow and obvious twin, and has the values that were published for it."""

from __future__ import annotations

import itertools
import math
import random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.statistics import (
    Interval,
    Pair,
    bootstrap,
    difference,
    mcnemar,
    mean_interval,
    pairs_needed,
    permutation,
    visible_difference,
    wilson,
)


@given(st.integers(1, 60), st.data())
def test_wilson_has_the_shares_that_a_score_test_does_not_refuse(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    z = NormalDist().inv_cdf(0.975)
    shares = [i / 2_000 for i in range(1, 2_000)]
    inside = [p for p in shares if abs(k / n - p) <= z * math.sqrt(p * (1 - p) / n)]
    interval = wilson(k, n)
    assert interval.low == pytest.approx(0 if k == 0 else inside[0], abs=1e-3)
    assert interval.high == pytest.approx(1 if k == n else inside[-1], abs=1e-3)


def test_wilson_has_published_values() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    for k, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        interval = wilson(k, n)
        assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)
    assert wilson(0, 0) == Interval(0, 1)


@given(st.integers(0, 6), st.integers(0, 6))
def test_mcnemar_counts_the_outcomes_of_fair_coins(b: int, c: int) -> None:
    n = b + c
    as_far = [sum(coins) for coins in itertools.product((0, 1), repeat=n) if abs(2 * sum(coins) - n) >= abs(b - c)]
    assert mcnemar(b, c) == pytest.approx(len(as_far) / 2**n)


def test_mcnemar_of_many_pairs_is_a_number() -> None:
    assert mcnemar(5000, 5000) == 1
    assert 0 <= mcnemar(10_000, 0) < 1e-300


def _pairs(draws: random.Random, clusters: int, size: int) -> list[Pair]:
    """Pairs that are equal within a cluster."""
    return [
        Pair(str(c), *values)
        for c in range(clusters)
        for values in [(draws.random(), draws.random())]
        for _ in range(size)
    ]


def test_a_bootstrap_of_all_resamples_is_that_of_the_enumeration() -> None:
    pairs = [Pair("a", 1, 0), Pair("b", 0, 1), Pair("c", 1, 1)]
    exact = sorted(difference(each) for each in itertools.product(pairs, repeat=3))
    interval = bootstrap(pairs, resamples=4000, level=0.5)
    assert interval.low == pytest.approx(exact[round(0.25 * 26)], abs=0.01)
    assert interval.high == pytest.approx(exact[round(0.75 * 26)], abs=0.01)


def test_copies_of_a_pair_within_a_conversation_do_not_narrow_the_interval() -> None:
    once, often = _pairs(random.Random(1), 12, 1), _pairs(random.Random(1), 12, 7)
    one, many = bootstrap(once), bootstrap(often)
    assert (one.low, one.high) == pytest.approx((many.low, many.high))
    alone = [Pair(str(i), pair.first, pair.second) for i, pair in enumerate(often)]
    assert bootstrap(alone).high - bootstrap(alone).low < 0.6 * (bootstrap(once).high - bootstrap(once).low)


def test_a_bootstrap_needs_a_pair() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        bootstrap([])


def test_the_number_of_pairs_is_that_of_a_simulation() -> None:
    effect, disagreement = 0.2, 0.4
    n = pairs_needed(effect, disagreement)
    draws = random.Random(2)
    seen = 0
    for _ in range(400):
        kinds = draws.choices(("first", "second", "same"), weights=(0.3, 0.1, 0.6), k=n)
        seen += mcnemar(kinds.count("first"), kinds.count("second")) < 0.05
    assert 0.72 < seen / 400 < 0.88  # the exact test is a little weaker than the formula's 0.8


@given(st.integers(5, 5000), st.floats(0.01, 0.5))
def test_the_visible_difference_is_the_smallest_that_the_pairs_suffice_for(n: int, disagreement: float) -> None:
    visible = visible_difference(n, disagreement)
    if visible < 1:
        assert pairs_needed(visible, disagreement) <= n
        assert pairs_needed(visible * 0.99, disagreement) >= n
    else:
        assert pairs_needed(0.999, disagreement) > n


def test_a_permutation_test_counts_the_orders_that_are_as_far_apart() -> None:
    first, second = ["a b", "a c", "a b"], ["d", "d e", "d"]

    def statistic(one: tuple[str, ...], two: tuple[str, ...]) -> float:
        def alike(x: str, y: str) -> float:
            a, b = x.split(), y.split()
            same = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))])
            return same / max(len(a), len(b))

        def mean(x: tuple[str, ...], y: tuple[str, ...]) -> float:
            return sum(alike(i, j) for i in x for j in y) / 9

        return mean(one, one) + mean(two, two) - 2 * mean(one, two)

    orders = [*itertools.permutations([*first, *second])]
    observed = statistic(tuple(first), tuple(second))
    exact = sum(statistic(order[:3], order[3:]) >= observed - 1e-12 for order in orders) / len(orders)
    assert permutation([(first, second)], rounds=3000) == pytest.approx(exact, abs=0.02)


def test_a_permutation_test_sees_what_differs_and_nothing_else() -> None:
    draws = random.Random(3)
    alike = [[draws.choice(("one two", "one three", "four")) for _ in range(10)] for _ in range(2)]
    assert permutation([(alike[0], alike[1])]) > 0.05
    assert permutation([(["one two"] * 10, ["one three"] * 10)] * 2) <= 0.001
    assert permutation([([""], [""])]) == 1
    assert permutation([(["", "a"], ["", "a"])]) > 0.05


def test_an_interval_of_a_mean_has_its_share_of_students_t() -> None:
    """The density of t, added up between the ends, has the level."""
    for n in (2, 3, 4, 6, 12, 40):
        values = [math.sin(7 * i) for i in range(n)]
        mean, freedom = sum(values) / n, n - 1
        error = math.sqrt(sum((value - mean) ** 2 for value in values) / freedom / n)
        interval = mean_interval(values)
        assert mean - interval.low == pytest.approx(interval.high - mean)
        end, steps = (interval.high - mean) / error, 20_000
        scale = math.gamma(n / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
        places = ((i + 0.5) * end / steps for i in range(steps))
        inside = 2 * sum(scale * (1 + t * t / freedom) ** (-n / 2) for t in places) * end / steps
        assert inside == pytest.approx(0.95, abs=2e-4)
    with pytest.raises(ValueError, match="two values"):
        mean_interval([1.0])
