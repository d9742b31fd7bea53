"""The result of a run as plain data, in the shape of `--json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from dovetail.client.statistics import Pair, bootstrap, difference, mcnemar
from dovetail.verify.outcome import Failure, Outcome
from dovetail.verify.suites.base import Figure, Suite, share


class SuiteResult(msgspec.Struct, frozen=True):
    """`n`: how many runs of cases have a result. `passed`: in how many of them nothing was wrong."""

    n: int
    passed: int
    figures: Mapping[str, Figure]


class UntestedResult(msgspec.Struct, frozen=True):
    suite: str
    because: str


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one endpoint. `beside`: the result of the second endpoint, if there is one."""

    failures: tuple[Failure, ...]
    suites: Mapping[str, SuiteResult]
    not_tested: tuple[UntestedResult, ...]
    beside: Result | None = None


def results(suites: Sequence[Suite], outcomes: Sequence[Outcome], endpoints: int = 1) -> Result:
    """The result of a run. With two endpoints, the figures of the first have the differences to the second."""
    first, *others = (
        _result(suites, [outcome for outcome in outcomes if outcome.endpoint == number]) for number in range(endpoints)
    )
    if not others:
        return first
    compared = {
        name: msgspec.structs.replace(result, figures={**result.figures, **_differences(name, outcomes)})
        for name, result in first.suites.items()
    }
    return msgspec.structs.replace(first, suites=compared, beside=others[0])


def _result(suites: Sequence[Suite], outcomes: Sequence[Outcome]) -> Result:
    by_suite: dict[str, SuiteResult] = {}
    untested: list[UntestedResult] = []
    for suite in suites:
        of_suite = [outcome for outcome in outcomes if outcome.suite == suite.name]
        tested = [outcome for outcome in of_suite if outcome.untested is None]
        untested += _reasons(suite.name, of_suite)
        if tested:
            passed = sum(outcome.passed for outcome in tested)
            figures = {"passed": share(passed, len(tested)), **suite.figures(tested)}
            by_suite[suite.name] = SuiteResult(len(tested), passed, figures)
            untested += (UntestedResult(suite.name, what) for what in suite.missing(tested))
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    for suite in suites:
        failures += suite.verdicts([each for each in outcomes if each.suite == suite.name and each.untested is None])
    return Result(tuple(failures), by_suite, tuple(untested))


def _reasons(suite: str, outcomes: Sequence[Outcome]) -> list[UntestedResult]:
    """Why cases of a suite have no result; each reason once, with how many cases it is about if not about all."""
    reasons = Counter(outcome.untested.because for outcome in outcomes if outcome.untested is not None)
    return [
        UntestedResult(suite, because if n == len(outcomes) else f"{n} of {len(outcomes)} cases: {because}")
        for because, n in reasons.items()
    ]


def _differences(suite: str, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """The paired difference of the shares of passed cases, with its bootstrap interval, and McNemar's p."""
    tested = {outcome.key: outcome for outcome in outcomes if outcome.suite == suite and outcome.untested is None}
    pairs = [
        Pair(outcome.conversation, outcome.passed, tested[1, *key[1:]].passed)
        for key, outcome in tested.items()
        if key[0] == 0 and (1, *key[1:]) in tested
    ]
    if not pairs:
        return {}
    interval = bootstrap(pairs)
    only = [sum(pair.first > pair.second for pair in pairs), sum(pair.first < pair.second for pair in pairs)]
    return {
        "difference": Figure(difference(pairs), len(pairs), interval.low, interval.high),
        "mcnemar_p": Figure(mcnemar(*only), len(pairs)),
    }


def exit_code(result: Result, outcomes: Sequence[Outcome], *, fail_on: Sequence[str], required: Sequence[str]) -> int:
    """0: nothing failed. 1: something did that is in `fail_on` (names of suites and steps, "any" or "none"). 2: a suite
    of `required` has no result, or the endpoint kept cases from being tested.
    """
    every = [*result.failures, *(result.beside.failures if result.beside else ())]
    if any("any" in fail_on or failure.step in fail_on or failure.suite in fail_on for failure in every):
        return 1
    of_all = [result, *([result.beside] if result.beside else [])]
    missing = any(name not in each.suites for each in of_all for name in required)
    blocked = any(outcome.untested is not None and outcome.untested.blocking for outcome in outcomes)
    return 2 if missing or blocked or not all(each.suites for each in of_all) else 0
