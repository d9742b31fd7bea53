"""Statistics of shares and of pairs: small, exact where that is affordable, and without a library.

Each statistic has a slower, obvious twin in `tests/verify/test_statistics.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from statistics import NormalDist

import msgspec

_NORMAL = NormalDist()
_RESAMPLES = 2000


class Interval(msgspec.Struct, frozen=True):
    low: float
    high: float


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """The Wilson score interval of a share (Wilson 1927). It is [0, 1] without trials."""
    if n == 0:
        return Interval(0.0, 1.0)
    z = _NORMAL.inv_cdf(0.5 + level / 2)
    share, spread = successes / n, z * z / n
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    low = 0.0 if successes == 0 else max(centre - half, 0.0)
    high = 1.0 if successes == n else min(centre + half, 1.0)
    return Interval(low, high)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p value of McNemar's test, from the pairs in which one of two endpoints passed alone."""
    n, k = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    tail = ways = 1
    for i in range(k):
        ways = ways * (n - i) // (i + 1)
        tail += ways
    return float(min(Fraction(1), Fraction(2 * tail, 1 << n)))  # a float has no room for 2**n


class Pair(msgspec.Struct, frozen=True):
    """What two endpoints made of one case. `cluster`: pairs of one conversation are drawn together."""

    cluster: str
    first: float
    second: float


def difference(pairs: Sequence[Pair]) -> float:
    """The mean of first minus second."""
    return sum(pair.first - pair.second for pair in pairs) / len(pairs)


def bootstrap(
    pairs: Sequence[Pair],
    statistic: Callable[[Sequence[Pair]], float] = difference,
    *,
    level: float = 0.95,
    resamples: int = _RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap interval of a statistic of `pairs`. Whole clusters are drawn, with replacement.

    The same `seed` gives the same interval. Raises `ValueError` without pairs.
    """
    clusters: dict[str, list[Pair]] = {}
    for pair in pairs:
        clusters.setdefault(pair.cluster, []).append(pair)
    if not clusters:
        raise ValueError("a bootstrap needs at least one pair")
    groups, draw = [*clusters.values()], random.Random(seed)
    values = sorted(
        statistic([pair for group in draw.choices(groups, k=len(groups)) for pair in group]) for _ in range(resamples)
    )
    return Interval(quantile(values, (1 - level) / 2), quantile(values, (1 + level) / 2))


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's interval of a mean: wide enough for the few values for which a bootstrap is too narrow.

    Raises `ValueError` with fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError("an interval of a mean needs at least two values")
    mean = sum(values) / n
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = _student(0.5 + level / 2, n - 1) * error
    return Interval(mean - half, mean + half)


def _student(share: float, freedom: int) -> float:
    """The quantile of Student's t: exact for one and two degrees of freedom, else 0.2 % off at 0.975 (Abramowitz and
    Stegun, 26.7.5)."""
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) / math.sqrt(2 * share * (1 - share))
    z = _NORMAL.inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**i for i, term in enumerate(terms, 1))


def percentiles(
    groups: Sequence[Sequence[float]], shares: Sequence[float], *, level: float = 0.95, resamples: int = 400
) -> list[tuple[float, Interval]]:
    """The quantiles of all values, each with its percentile bootstrap interval. Whole groups are drawn.

    Raises `ValueError` without values.
    """
    values = sorted(value for group in groups for value in group)
    if not values:
        raise ValueError("percentiles need at least one value")
    filled, draw = [group for group in groups if group], random.Random(0)
    drawn = [
        sorted(value for group in draw.choices(filled, k=len(filled)) for value in group) for _ in range(resamples)
    ]
    ends = (1 - level) / 2, (1 + level) / 2
    results = []
    for share in shares:
        resampled = sorted(quantile(each, share) for each in drawn)
        results.append((quantile(values, share), Interval(*(quantile(resampled, end) for end in ends))))
    return results


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile of sorted values, with linear interpolation."""
    at = share * (len(values) - 1)
    below = math.floor(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (at - below)


def pairs_needed(effect: float, disagreement: float, *, level: float = 0.95, power: float = 0.8) -> int:
    """How many pairs McNemar's test needs to see a difference of `effect` between two shares (Connor 1987).

    `disagreement`: the share of pairs in which the two differ, at least `effect`.
    """
    alpha, beta = _NORMAL.inv_cdf(0.5 + level / 2), _NORMAL.inv_cdf(power)
    disagreement = max(disagreement, effect)
    root = alpha * math.sqrt(disagreement) + beta * math.sqrt(max(disagreement - effect * effect, 0.0))
    return math.ceil(root * root / (effect * effect))


def visible_difference(n: int, disagreement: float, *, level: float = 0.95, power: float = 0.8) -> float:
    """The smallest difference that `n` pairs can show; 1 if they can show none. The inverse of `pairs_needed`."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if pairs_needed(middle, disagreement, level=level, power=power) <= n:
            high = middle
        else:
            low = middle
    return high


def permutation(groups: Sequence[tuple[Sequence[str], Sequence[str]]], *, rounds: int = 999, seed: int = 0) -> float:
    """The p value of the hypothesis that in each group both samples come from one distribution of texts.

    The statistic is the squared maximum mean discrepancy with the kernel "share of equal first words", summed over
    groups; labels are exchanged within groups only (arXiv 2410.20247). The same `seed` gives the same value.
    """
    if all(len({*first, *second}) == 1 for first, second in groups):
        return 1.0  # every order of the labels is as good as the observed one
    draw = random.Random(seed)
    kernels = [_kernel([*first, *second]) for first, second in groups]
    sizes = [len(first) for first, _ in groups]
    orders = [list(range(len(kernel))) for kernel in kernels]

    def statistic() -> float:
        return sum(
            _discrepancy(kernel, order, size) for kernel, order, size in zip(kernels, orders, sizes, strict=True)
        )

    observed, as_large = statistic(), 0
    for _ in range(rounds):
        for order in orders:
            draw.shuffle(order)
        as_large += statistic() >= observed - 1e-12
    return (as_large + 1) / (rounds + 1)


def _kernel(texts: Sequence[str]) -> list[list[float]]:
    words = [text.split() for text in texts]
    return [[_alike(a, b) for b in words] for a in words]


def _alike(first: Sequence[str], second: Sequence[str]) -> float:
    """The length of the common beginning of two lists of words, as a share of the longer one."""
    longer = max(len(first), len(second))
    return common(first, second) / longer if longer else 1.0


def common(first: Sequence[object], second: Sequence[object]) -> int:
    """How many items both sequences begin with."""
    shorter = min(len(first), len(second))
    return next((i for i in range(shorter) if first[i] != second[i]), shorter)


def _discrepancy(kernel: Sequence[Sequence[float]], order: Sequence[int], size: int) -> float:
    first, second = order[:size], order[size:]

    def mean(rows: Sequence[int], columns: Sequence[int]) -> float:
        return sum(kernel[i][j] for i in rows for j in columns) / (len(rows) * len(columns))

    return mean(first, first) + mean(second, second) - 2 * mean(first, second)
