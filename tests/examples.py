"""How many examples a property gets."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

#: Whether the profile is `fuzz`.
FUZZ = settings().max_examples > 1000


def examples(count: int, *, fuzz: int | None = None, **others: Any) -> settings:
    """The settings of a property that has `count` examples in `make test-slow`.

    `make test` runs a quarter of them, and at least five (or all); the profile `proof` runs five times as many, and the
    profile `fuzz` 50 times as many, or the argument `fuzz`. `others` are Hypothesis's own settings.
    """
    if FUZZ:
        return settings(max_examples=fuzz or 50 * count, **others)
    return settings(max_examples=max(min(count, 5), count * settings().max_examples // 100), **others)


def slow_but(values: Iterable[Any], *quick: Any) -> list[Any]:
    """`values` for `parametrize`: all but the `quick` ones are slow."""
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]


def proof_but(values: Iterable[Any], *kept: Any) -> list[Any]:
    """`values` for the `parametrize` of a slow test: all but those `kept` are proofs, which `.ci/run` leaves out."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.proof) for value in values]


def seeds(count: int, *, quick: int) -> list[Any]:
    """The seeds of a test that draws without Hypothesis, for `parametrize`: all but the first `quick` are slow."""
    return slow_but(range(count), *range(quick))
