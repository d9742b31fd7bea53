"""Runs the cases of suites at one endpoint, or at two in turns, and collects their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from dovetail.client.endpoint import Endpoint, Target
from dovetail.client.not_tested import NotTested
from dovetail.client.statistics import visible_difference, wilson
from dovetail.verify.blame import Rerun, blamed
from dovetail.verify.bundle import Bundles
from dovetail.verify.journal import Journal
from dovetail.verify.language import Language
from dovetail.verify.outcome import Failure, Outcome, Untested
from dovetail.verify.probe import Companion, probe
from dovetail.verify.suites.base import Case, Checked, Finding, Suite

#: The share of pairs in which two sound endpoints are taken to differ, as one model does that is asked twice.
_DISAGREEMENT = 0.1


class Plan(msgspec.Struct, frozen=True):
    """What is run: `suites`, `runs` times each case, `concurrency` cases at a time.

    `undrafted`: for some of the endpoints, one that serves the same model without a drafter, for blame.
    """

    suites: Sequence[Suite]
    runs: int = 1
    concurrency: int = 4
    undrafted: Mapping[Endpoint, Companion] = MappingProxyType({})


def announced(plan: Plan, endpoints: int) -> Iterator[str]:
    """What the run can show: a line for each suite, before it begins."""
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


class Job(msgspec.Struct, frozen=True):
    endpoint: int
    suite: Suite
    case: Case
    run: int

    @property
    def key(self) -> tuple[int, str, str, int]:
        return self.endpoint, self.suite.name, self.case.name, self.run


#: Called after each case, with how many are done and how many there are.
Progress = Callable[[int, int], None]


async def run(
    endpoints: Sequence[Endpoint],
    plan: Plan,
    language: Language,
    *,
    journal: Journal,
    bundles: Bundles,
    progress: Progress = lambda done, of: None,
) -> list[Outcome]:
    """The outcomes of all cases at all endpoints. Those that `journal` has are not run again.

    The endpoints take turns, so that the load of an hour meets both alike.
    """
    unreachable = [await _because(endpoint) for endpoint in endpoints]
    jobs = [
        Job(number, suite, case, run)
        for suite in plan.suites
        for case in suite.cases()
        for run in range(plan.runs)
        for number in range(len(endpoints))
    ]
    outcomes: list[Outcome] = []
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            outcome = journal.outcomes.get(job.key)
            if outcome is None:
                endpoint = endpoints[job.endpoint]
                because = unreachable[job.endpoint] or _lacks(endpoint, job.suite)
                if because is None:
                    outcome = await _Run(endpoint, job, language, bundles, plan.undrafted.get(endpoint)).outcome()
                else:
                    outcome = _untested(job, because)
                journal.add(outcome)
            outcomes.append(outcome)
            progress(len(outcomes), len(jobs))

    await asyncio.gather(*(work() for _ in range(plan.concurrency)))
    order = {job.key: i for i, job in enumerate(jobs)}
    return sorted(outcomes, key=lambda outcome: order[outcome.key])


async def _because(endpoint: Endpoint) -> NotTested | None:
    """Why nothing of an endpoint can be tested; None if something can."""
    try:
        await probe(endpoint)
    except NotTested as reason:
        return reason
    return None


def _lacks(endpoint: Endpoint, suite: Suite) -> NotTested | None:
    missing = next((need for need in suite.needs if need in endpoint.features.because), None)
    return None if missing is None else NotTested(endpoint.features.because[missing], blocking=False)


def _untested(job: Job, reason: NotTested) -> Outcome:
    untested = Untested(job.suite.name, reason.because, reason.blocking)
    return _outcome(job, untested=untested)


def _outcome(job: Job, **fields: Any) -> Outcome:
    return Outcome(job.endpoint, job.suite.name, job.case.name, job.run, job.case.cluster, **fields)


class _Run:
    """One run of one case."""

    def __init__(
        self, endpoint: Endpoint, job: Job, language: Language, bundles: Bundles, companion: Companion | None
    ) -> None:
        self._endpoint, self._job, self._language, self._bundles = endpoint, job, language, bundles
        self._companion = companion

    async def outcome(self) -> Outcome:
        target = Target(self._endpoint)
        try:
            checked = await self._check(target)
            failures = await self._failures(checked.findings, target)
        except NotTested as reason:
            return _untested(self._job, reason)
        if failures:
            await self._bundles.write(failures, target, self._language, self._job.run)
        return _outcome(self._job, failures=failures, measures=checked.measures)

    async def _check(self, target: Target) -> Checked:
        return await self._job.suite.check(self._job.case, target, self._language)

    async def _failures(self, findings: Sequence[Finding], target: Target) -> tuple[Failure, ...]:
        if not findings:
            return ()

        async def rerun() -> Sequence[Finding]:
            return (await self._check(Target(self._endpoint))).findings

        suite, case = self._job.suite.name, self._job.case.name
        return await blamed(suite, case, findings, target, self._language, rerun, self._undrafted())

    def _undrafted(self) -> Rerun | None:
        """Runs the case without drafts: at the companion, or where the endpoint can turn them off."""
        companion, off = self._companion, self._endpoint.features.undrafted

        async def there() -> Sequence[Finding]:
            assert companion is not None
            async with companion.asked() as other:
                return (await self._check(Target(other))).findings

        async def here() -> Sequence[Finding]:
            return (await self._check(Target(self._endpoint, off or {}))).findings

        if companion is not None:
            return there
        return None if off is None else here
