"""Suite `calls`: the metrics of Moonshot's K2 vendor verifier, over its own data format.

Each line of `samples.jsonl` is the body of a request; BFCL v4 is a second corpus (bfcl.py). Definitions
(github.com/MoonshotAI/K2-Vendor-Verifier):

- An answer *triggers* if its finish_reason is "tool_calls". Against a reference run, TP: both trigger; FP: only the
  endpoint; FN: only the reference. precision TP / (TP + FP), recall TP / (TP + FN), F1 their harmonic mean.
- schema_accuracy: of the answers that trigger, those with calls that all name a tool of the request and validate.

A model that samples disagrees with itself. So the reference is run twice, and a difference is a failure only beyond
what the reference makes of itself. With one recorded run nothing is judged.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.client.endpoint import Endpoint, Exchange, Target
from dovetail.client.not_tested import NotTested
from dovetail.client.statistics import Pair, bootstrap
from dovetail.errors import SchemaRefused
from dovetail.grammar.schemas.check import checker
from dovetail.verify.language import Language
from dovetail.verify.outcome import Failure, Outcome
from dovetail.verify.probe import Companion
from dovetail.verify.suites.base import Case, Checked, Figure, Finding, Suite, load_cases, share
from dovetail.verify.suites.bfcl import right
from dovetail.verify.suites.recorded import Run

_TRIGGERED = "tool_calls"
#: Keywords whose values are no schemas.
_VALUES = ("enum", "const", "default", "examples")


class Confusion:
    """Triggers of an endpoint against the triggers of a reference, counted."""

    def __init__(self, pairs: Sequence[tuple[bool, bool]]) -> None:
        counts = Counter(pairs)
        self.tp, self.fp, self.fn = counts[True, True], counts[True, False], counts[False, True]

    @property
    def precision(self) -> float | None:
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else None

    @property
    def recall(self) -> float | None:
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else None

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall; None if nobody triggers."""
        return 2 * self.tp / (2 * self.tp + self.fp + self.fn) if self.tp + self.fp + self.fn else None


class Reference:
    """What triggers are compared with: an endpoint, which is asked twice, or recorded runs.

    `recorded`: for each run, its answers by the number of a sample's line.
    """

    def __init__(self, endpoint: Endpoint | None = None, recorded: Sequence[Mapping[int, Run]] = ()) -> None:
        self.companion = None if endpoint is None else Companion(endpoint, "reference")
        self._recorded = recorded

    async def runs(self, case: Case) -> list[Run]:
        """The reference's answers: two of an endpoint, one of each recording that has the sample."""
        if self.companion is None:
            line = case.expect.get("line", 0)
            return [run[line] for run in self._recorded if line in run]
        async with self.companion.asked() as endpoint:
            return [_run(await sent(Target(endpoint), case)) for _ in range(2)]


class Calls(Suite):
    """`samples`: bodies of requests. `corpus`: cases of BFCL. Without both, the suite's own samples are taken.
    `reference`: what triggers are compared with."""

    name = "calls"
    needs = ("tools",)

    def __init__(
        self,
        samples: Sequence[Mapping[str, Any]] | None = None,
        reference: Reference | None = None,
        corpus: Sequence[Case] = (),
    ) -> None:
        if samples is None:
            samples = () if corpus else [case.request for case in load_cases("calls.json")]
        self._cases = [*(_case(line, sample) for line, sample in enumerate(samples, 1)), *corpus]
        self._reference = reference

    def cases(self) -> Sequence[Case]:
        return self._cases

    async def check(self, case: Case, target: Target, language: Language) -> Checked:
        exchange = await sent(target, case)
        finish, valid = _run(exchange)
        measures: dict[str, Any] = {"finish": finish, "valid": valid}
        if "category" in case.expect:
            measures["category"] = case.expect["category"]
            measures["called"] = [bool(exchange.answer.message.calls), case.expect["calls"]]
            measures["right"] = right(case, exchange.answer.message.calls)
        if self._reference is not None:
            measures["reference"] = await self._reference.runs(case)
        if valid is not False:
            return Checked((), measures)
        what = (
            f"a call does not validate: {[(call.name, call.arguments[:80]) for call in exchange.answer.message.calls]}"
        )
        return Checked((Finding(what, "reader", exchange, "model"),), measures)

    def figures(self, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
        n = len(outcomes)
        stop, triggered, others, invalid, valid = _counts([_own(outcome) for outcome in outcomes])
        figures = {
            "finish_stop": Figure(stop, n),
            "finish_tool_calls": Figure(triggered, n),
            "finish_others": Figure(others, n),
            "successful_tool_call_count": Figure(valid, triggered),
            "schema_validation_error_count": Figure(invalid, triggered),
            "schema_accuracy": share(valid, triggered),
        }
        return {**figures, **_against_reference(outcomes), **_against_labels(outcomes)}

    def verdicts(self, outcomes: Sequence[Outcome]) -> tuple[Failure, ...]:
        """A failure if the endpoint agrees less with the reference than the reference with itself."""
        twice = _pairs(outcomes, self_too=True)
        if not twice:
            return ()
        interval = bootstrap(twice, lambda pairs: (_f1(pairs, "first") or 0) - (_f1(pairs, "again") or 0))
        if interval.high >= 0:
            return ()
        ours, own = _f1(twice, "first"), _f1(twice, "again")
        evidence = (
            f"F1 of triggers against the reference is {ours:.4f}, and the reference's against itself {own:.4f}: "
            f"between {-interval.high:.4f} and {-interval.low:.4f} less (n {len(twice)}, 95 % bootstrap)"
        )
        return (Failure(self.name, "trigger", "model", evidence),)

    def missing(self, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
        """What a recorded reference is too short for."""
        runs = [len(outcome.measures["reference"]) for outcome in outcomes if "reference" in outcome.measures]
        if not runs or max(runs) > 1:
            return ()
        if max(runs) == 0:
            return ("the reference has none of the samples",)
        return (
            "the reference has one run: nothing shows how far it agrees with itself, so F1 has no band, and a "
            "difference is no failure; give a second run (--reference FILE --reference FILE2)",
        )


def _run(exchange: Exchange) -> Run:
    finish = exchange.answer.finish
    return Run(finish, valid_calls(exchange) if finish == _TRIGGERED else None)


def _own(outcome: Outcome) -> Run:
    return Run(outcome.measures["finish"], outcome.measures["valid"])


def _counts(runs: Sequence[Run]) -> tuple[int, int, int, int, int]:
    """Moonshot's counts: finish_reason stop, tool_calls, others; and of those with tool_calls, invalid and valid."""
    finishes = Counter(run.finish for run in runs)
    stop, triggered = finishes["stop"], finishes[_TRIGGERED]
    valid = sum(run.finish == _TRIGGERED and run.valid is True for run in runs)
    return stop, triggered, len(runs) - stop - triggered, triggered - valid, valid


def similarity(ours: Sequence[Run], theirs: Sequence[Run]) -> float:
    """Moonshot's first measure (tables until September 2025), of as many answers on both sides: 1 less the Euclidean
    distance of the two counts as shares of the answers."""
    return 1 - math.dist(_counts(ours), _counts(theirs)) / len(ours)


async def sent(target: Target, case: Case) -> Exchange:
    """The answer to a case. A sample is sent as it is, but for the model. Raises `NotTested` if it is refused."""
    exchange = await target.chat(case.request, as_it_is="line" in case.expect)
    if exchange.answer.error is not None:
        raise NotTested(f"it refused a sample: {exchange.answer.error}", blocking=False)
    return exchange


def valid_calls(exchange: Exchange) -> bool:
    """Whether there are calls, and each names a tool of the request that has a schema, and validates against it."""
    functions = [tool.get("function") or {} for tool in exchange.request.get("tools") or ()]
    schemas = {function.get("name"): function.get("parameters") for function in reversed(functions)}
    calls = exchange.answer.message.calls
    return bool(calls) and all(_valid(schemas.get(call.name), call.arguments) for call in calls)


def _valid(schema: Any, arguments: str) -> bool:
    """Valid by Moonshot's definition, which does not look at formats."""
    if not schema:
        return False
    try:
        return checker(_without_formats(schema), "parameters").fault(arguments) is None
    except SchemaRefused:
        return False


def _without_formats(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_formats(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value if key in _VALUES else _without_formats(value)
        for key, value in schema.items()
        if key != "format" or not isinstance(value, str)
    }


class _Triggers(Pair, frozen=True):
    """`first`: of the endpoint, `second`: of the reference. `again`: of the reference's second run, if it had one."""

    again: float | None = None


def _pairs(outcomes: Sequence[Outcome], *, self_too: bool) -> list[_Triggers]:
    pairs = []
    for outcome in outcomes:
        runs = [float(run.finish == _TRIGGERED) for run in _of_reference(outcome)]
        if len(runs) > self_too:
            own = float(outcome.measures["finish"] == _TRIGGERED)
            pairs.append(_Triggers(outcome.conversation, own, runs[0], runs[1] if len(runs) > 1 else None))
    return pairs


def _of_reference(outcome: Outcome) -> list[Run]:
    return [Run(*run) for run in outcome.measures.get("reference") or ()]


def _f1(pairs: Sequence[Any], own: str) -> float | None:
    """F1 of the triggers in the field `own` against the reference's. A bootstrap asks for it thousands of times."""
    ours, theirs = [getattr(pair, own) for pair in pairs], [pair.second for pair in pairs]
    both, all_of = sum(map(operator.mul, ours, theirs)), sum(ours) + sum(theirs)
    return 2 * both / all_of if all_of else None


def _against_reference(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    pairs, twice = _pairs(outcomes, self_too=False), _pairs(outcomes, self_too=True)
    if not pairs:
        return {}
    confusion = Confusion([(bool(pair.first), bool(pair.second)) for pair in pairs])
    figures = {
        "tool_call_precision": Figure(confusion.precision, confusion.tp + confusion.fp),
        "tool_call_recall": Figure(confusion.recall, confusion.tp + confusion.fn),
        "tool_call_f1": _with_interval(pairs, "first"),
        "similarity": _similarity(outcomes),
    }
    return (
        {**figures, "tool_call_f1 of the reference with itself": _with_interval(twice, "again")} if twice else figures
    )


def _similarity(outcomes: Sequence[Outcome]) -> Figure:
    both = [(_own(outcome), runs[0]) for outcome in outcomes if (runs := _of_reference(outcome))]
    ours, theirs = map(list, zip(*both, strict=True))
    known = all(run.valid is not None for run in theirs if run.finish == _TRIGGERED)
    return Figure(similarity(ours, theirs) if known else None, len(both))


def _against_labels(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """Triggers against what BFCL expects, and the shares of right answers by category."""
    labelled = [outcome for outcome in outcomes if "category" in outcome.measures]
    if not labelled:
        return {}
    pairs = [Pair(outcome.conversation, *map(float, outcome.measures["called"])) for outcome in labelled]
    figures = {"bfcl f1 of triggers": _with_interval(pairs, "first")}
    for category in dict.fromkeys(outcome.measures["category"] for outcome in labelled):
        of_category = [outcome.measures["right"] for outcome in labelled if outcome.measures["category"] == category]
        known = [each for each in of_category if each is not None]
        if known:
            figures[f"bfcl {category}"] = share(sum(known), len(known))
    return figures


def _with_interval(pairs: Sequence[Pair], own: str) -> Figure:
    interval = bootstrap(pairs, lambda drawn: _f1(drawn, own) or 0.0)
    return Figure(_f1(pairs, own), len(pairs), interval.low, interval.high)


def _case(line: int, sample: Mapping[str, Any]) -> Case:
    """A sample as a case. The role `_input`, which the data uses, is the system's."""
    messages = [{**m, "role": "system"} if m.get("role") == "_input" else m for m in sample["messages"]]
    return Case(f"sample-{line}", request={**sample, "messages": messages}, expect={"line": line})
