"""Endpoints that are broken in one step are found, and that step is blamed and no other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dovetail.verify.language import Language
from dovetail.verify.outcome import STEPS
from dovetail.verify.suites import SUITES
from tests.verify.broken import BROKEN, Broken
from tests.verify.confusion import NOTHING, matrix, table
from tests.verify.harness import Only, endpoint, kimi, verified

#: What is blamed too where nothing constrains answers.
FREE = ("schema", "model")
DOCS = Path(__file__).parents[2] / "docs" / "verify.md"


@pytest.mark.parametrize("broken", BROKEN, ids=[broken.name for broken in BROKEN])
def test_the_broken_step_is_blamed(broken: Broken) -> None:
    outcomes = verified(endpoint(broken.make()), suites=[Only(suite(), *broken.cases) for suite in SUITES.values()])
    steps = Counter(failure.step for outcome in outcomes for failure in outcome.failures)
    evidence = [failure for outcome in outcomes for failure in outcome.failures]
    assert set(steps) == {broken.step}, evidence


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("language", [kimi(), Language()], ids=["a format", "no format"])
def test_the_documented_matrix_is_that_of_every_suite(language: Language) -> None:
    made = matrix(language)
    assert table(made) in DOCS.read_text(encoding="utf-8"), f"now it is\n{table(made)}"
    if language.format is not None:
        for step in STEPS:
            endpoints = [broken for broken in BROKEN if broken.step == step]
            for broken, blame in zip(endpoints, made[step], strict=True):
                assert {step} <= blame <= {step, *(FREE if broken.free else ())}, broken.name
        assert made[NOTHING] == [frozenset()]
