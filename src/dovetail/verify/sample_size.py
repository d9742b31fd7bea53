"""What a run of a given size can show, told before it begins."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.client.statistics import visible_difference, wilson
from dovetail.verify.runner import Plan

#: The share of pairs in which two sound endpoints are taken to differ: that of a model that is asked twice.
_DISAGREEMENT = 0.1


def announced(plan: Plan, endpoints: int) -> Iterator[str]:
    """A line for each suite."""
    for suite in plan.suites:
        cases = suite.cases()
        n, clusters = len(cases) * plan.runs, len({case.cluster for case in cases})
        if endpoints == 1:
            most = 100 * (1 - wilson(clusters, clusters).low)
            shown = f"if all pass, at most {most:.0f} % of conversations like these fail"
        else:
            visible = 100 * visible_difference(clusters, _DISAGREEMENT)
            shown = f"a difference of {visible:.0f} points between the two is seen"
        yield f"{suite.name}: {n} cases from {clusters} conversations; {shown} (95 % level)"
