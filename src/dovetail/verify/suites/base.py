"""What a suite is: cases from a plain data file, a check for each, and figures of all their outcomes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, ClassVar

import msgspec

from dovetail.client.endpoint import Exchange, Target
from dovetail.client.not_tested import NotTested
from dovetail.client.statistics import wilson
from dovetail.formats.answers.tool_choice import requires_call
from dovetail.verify.language import Language
from dovetail.verify.outcome import Failure, Outcome, Step


class Case(msgspec.Struct, frozen=True):
    """One case of a suite.

    `check`: the name of the suite's check. `request`: the fields of its request. `expect`: what the check compares
    with.
    `conversation`: cases with the same one are not independent; by default the case is on its own.
    """

    name: str
    check: str = ""
    request: Mapping[str, Any] = {}
    expect: Mapping[str, Any] = {}
    conversation: str = ""

    @property
    def cluster(self) -> str:
        return self.conversation or self.name


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong, before a step is blamed for it.

    `exchange`: where it was seen.
    `suspect`: the step to blame if nothing more is known.
    `as_read`: the step to blame if our reader reads the answer's tokens as the endpoint did; None: `suspect`.
    `decided`: `suspect` is blamed without a search, because the finding shows the step itself.
    """

    what: str
    suspect: Step
    exchange: Exchange
    as_read: Step | None = None
    decided: bool = False


class Checked(msgspec.Struct, frozen=True):
    """What a check has found, and numbers for the suite's figures."""

    findings: tuple[Finding, ...] = ()
    measures: Mapping[str, Any] = {}


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A number of a suite, of `n` cases, calls or tokens. `low`, `high`: its 95 % interval, if it has one."""

    value: float | None
    n: int
    low: float | None = None
    high: float | None = None


def share(hits: int, n: int) -> Figure:
    """A share of `n` with its Wilson interval."""
    interval = wilson(hits, n)
    return Figure(hits / n if n else None, n, interval.low, interval.high)


class Suite:
    """A kind of test. `needs`: the features of an endpoint without which nothing of it can be tested."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()

    def cases(self) -> Sequence[Case]:
        """The cases, in the order in which they run."""
        raise NotImplementedError

    async def check(self, case: Case, target: Target, language: Language) -> Checked:
        """Run one case. Raises `NotTested` for a feature that the endpoint lacks."""
        raise NotImplementedError

    def figures(self, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
        """Figures of the outcomes of one endpoint, beyond the share of passed cases."""
        return {}

    def verdicts(self, outcomes: Sequence[Outcome]) -> tuple[Failure, ...]:
        """Failures that only all outcomes of one endpoint together show."""
        return ()

    def missing(self, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
        """What all outcomes of one endpoint together cannot show, and why, for `not_tested`."""
        return ()


def load_cases(file: str) -> list[Case]:
    """The cases in a file of `data/`: `{"tools": {NAME: function}, "cases": […]}`.

    In a request, and in the request of `expect`, `tools` lists names, which are replaced by the functions. A function
    may have another name than the one that it is listed by.
    """
    content = json.loads(resources.files("dovetail.verify").joinpath("data", file).read_text(encoding="utf-8"))
    return [_case(case, content.get("tools", {})) for case in content["cases"]]


def _case(data: Mapping[str, Any], tools: Mapping[str, Any]) -> Case:
    case = msgspec.convert(data, Case)
    expect = dict(case.expect)
    if "request" in expect:
        expect["request"] = _with_tools(expect["request"], tools)
    return msgspec.structs.replace(case, request=_with_tools(case.request, tools), expect=expect)


def _with_tools(request: Mapping[str, Any], tools: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tools" not in request:
        return request
    functions = [{"type": "function", "function": {"name": name, **tools[name]}} for name in request["tools"]]
    return {**request, "tools": functions}


def prompt_tokens(exchange: Exchange) -> int:
    """How many tokens the prompt has, by the endpoint. Raises `NotTested` if it does not count them."""
    if exchange.answer.prompt_ids is not None:
        return len(exchange.answer.prompt_ids)
    count = (exchange.answer.usage or {}).get("prompt_tokens")
    if not isinstance(count, int):
        raise NotTested("it does not count the tokens of prompts (usage.prompt_tokens)", blocking=False)
    return count


def endless_calls(exchange: Exchange, least: int) -> list[Finding]:
    """A finding if calls had to come, at least `least` of them did, and the answer ran into the limit on tokens.

    An answer that ran into it within its first call is no endless one.
    """
    calls, request = exchange.answer.message.calls, exchange.request
    if not exchange.answer.cut_off or len(calls) < least or not requires_call(request.get("tool_choice")):
        return []
    try:
        json.loads(calls[0].arguments)
    except (ValueError, RecursionError):
        return []
    what = f"tool_choice {request['tool_choice']!r}: the answer did not end after its calls, but ran to its limit"
    return [Finding(f"{what} of {request.get('max_tokens')} tokens with {len(calls)} calls", "schema", exchange)]


def need_complete(exchange: Exchange) -> None:
    """Raise `NotTested` for an answer that ran into the limit on tokens."""
    if exchange.answer.cut_off:
        limit = exchange.request.get("max_tokens")
        raise NotTested(f"an answer ran to its limit of {limit} tokens (--max-tokens)", blocking=False)
