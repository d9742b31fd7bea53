"""Levels of reasoning effort, the nearest of a model's own, and budgets of reasoning."""

from __future__ import annotations

from dovetail.formats.efforts import EFFORTS, budget_of, effort_of, nearest_effort


def test_an_effort_and_its_budget_are_each_other_s() -> None:
    budgets = {effort: budget_of(effort) for effort in EFFORTS}
    assert [effort for effort, budget in budgets.items() if budget is None] == ["xhigh", "max"]
    for effort, budget in budgets.items():
        if budget is not None:
            assert effort_of(budget) == effort_of(budget - 1) == effort
            assert effort_of(budget + 1) != effort


def test_the_nearest_effort() -> None:
    assert nearest_effort("medium", ("low", "high")) == "high"
    assert nearest_effort("max", ("low", "high")) == "high"
    assert nearest_effort("minimal", ()) == "minimal"
    assert nearest_effort(None, ("low",)) is None
