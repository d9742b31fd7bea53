"""The nearest level of effort, and those that a template takes."""

from __future__ import annotations

from itertools import combinations

import pytest

from dovetail.formats.efforts import EFFORTS, budget_of, effort_of, nearest_effort
from tests.formats.chat_templates import of_source


def test_the_nearest_is_known_and_none_is_nearer() -> None:
    for size in range(1, len(EFFORTS) + 1):
        for known in combinations(EFFORTS, size):
            for level, effort in enumerate(EFFORTS):
                nearest = nearest_effort(effort, known)
                distances = {other: abs(EFFORTS.index(other) - level) for other in known}
                least = [other for other in known if distances[other] == min(distances.values())]
                assert nearest == least[-1]
    assert nearest_effort(None, EFFORTS) is None
    assert nearest_effort("high", ()) == "high"


@pytest.mark.parametrize(
    ("source", "efforts"),
    [
        ("{{ messages[0].content }}", ()),
        ("{{ messages[0].content }}{{ reasoning_effort }}", EFFORTS),
        (
            "{{ messages[0].content }}"
            "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'high', 'no_think'] %}"
            "{{ raise_exception('unknown effort') }}{% endif %}",
            ("low", "high"),
        ),
    ],
)
def test_the_levels_of_a_template(source: str, efforts: tuple[str, ...]) -> None:
    assert of_source(source).efforts == efforts


def test_an_effort_and_its_budget_are_each_other_s() -> None:
    budgets = {effort: budget_of(effort) for effort in EFFORTS}
    assert [effort for effort, budget in budgets.items() if budget is None] == ["xhigh", "max"]
    for effort, budget in budgets.items():
        if budget is not None:
            assert effort_of(budget) == effort_of(budget - 1) == effort
            assert effort_of(budget + 1) != effort
