"""Suite `schema`: every finished call validates. Its cases are `data/schema.json`, or the user's tools and schemas.

Each case names its tool with `tool_choice`, so that a call has to come. Some prompts ask for what the schema forbids:
whether their calls validate shows whether the endpoint enforces schemas, or its model only follows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.client.endpoint import Exchange, Target
from dovetail.client.not_tested import NotTested
from dovetail.errors import SchemaRefused
from dovetail.grammar.schemas.check import Checker, checker
from dovetail.verify.language import Language
from dovetail.verify.outcome import Outcome
from dovetail.verify.probe import STREAM
from dovetail.verify.suites.base import Case, Checked, Figure, Finding, Suite, endless_calls, load_cases, share

_PROMPT = "Please call the tool {name} with arguments of your choice."


class Schema(Suite):
    """`tools`: tools of the user, as in a request. `schemas`: schemas by name, such as a validator's tests."""

    name = "schema"
    needs = ("tools",)

    def __init__(self, tools: Sequence[Mapping[str, Any]] = (), schemas: Mapping[str, Any] | None = None) -> None:
        own = [_case(f"tool/{tool['function']['name']}", tool["function"]) for tool in tools if "function" in tool]
        others = [_case(name, {"name": "act", "parameters": schema}) for name, schema in (schemas or {}).items()]
        self._cases = [*own, *others] or [_forced(case) for case in load_cases("schema.json")]

    def cases(self) -> Sequence[Case]:
        return self._cases

    async def check(self, case: Case, target: Target, language: Language) -> Checked:
        function = case.request["tools"][0]["function"]
        try:
            valid = checker(function.get("parameters") or {"type": "object"}, "parameters")
        except SchemaRefused as refusal:
            raise NotTested(f"the schema cannot be used: {refusal.message}", blocking=False) from None
        exchanges = [await target.answer(case.request)]
        if target.features.streaming:
            exchanges.append(await target.answer({**case.request, **STREAM}))
        finished = [exchange for exchange in exchanges if not exchange.answer.cut_off]
        # One call may be cut off in a long argument. Several are a model that cannot stop.
        findings = [finding for each in exchanges for finding in endless_calls(each, 2)]
        findings += [finding for each in finished for finding in _findings(each, function["name"], valid)]
        measures = {
            "finished": len(finished),
            "cut_off": len(exchanges) - len(finished),
            "valid": len(finished) - len({id(each.exchange) for each in findings if not each.exchange.answer.cut_off}),
            "forbidden": bool(case.expect.get("forbidden")),
        }
        return Checked(tuple(findings), measures)

    def figures(self, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
        finished, valid = (_sum(outcomes, name) for name in ("finished", "valid"))
        figures = {"finished calls that validate": share(valid, finished)}
        forbidden = [outcome for outcome in outcomes if outcome.measures.get("forbidden")]
        if forbidden:
            asked = _sum(forbidden, "finished")
            figures["calls that validate where the prompt asks for others"] = share(_sum(forbidden, "valid"), asked)
        figures["answers that ran to the limit"] = share(
            _sum(outcomes, "cut_off"), finished + _sum(outcomes, "cut_off")
        )
        return figures


def _sum(outcomes: Sequence[Outcome], name: str) -> int:
    return sum(outcome.measures.get(name, 0) for outcome in outcomes)


def _case(name: str, function: Mapping[str, Any]) -> Case:
    messages = [{"role": "user", "content": _PROMPT.format(name=function["name"])}]
    tool = {"type": "function", "function": {**function, "strict": True}}
    return _forced(Case(name, request={"messages": messages, "tools": [tool]}))


def _forced(case: Case) -> Case:
    """The case with its first tool called by name, and its schema enforced."""
    (tool,) = case.request["tools"]
    function = {**tool["function"], "strict": True}
    choice = {"type": "function", "function": {"name": function["name"]}}
    request = {**case.request, "tools": [{"type": "function", "function": function}], "tool_choice": choice}
    return Case(case.name, request=request, expect=case.expect, conversation=case.conversation)


def _findings(exchange: Exchange, name: str, valid: Checker) -> list[Finding]:
    calls = exchange.answer.message.calls
    if not calls:
        return [Finding(f"the named tool {name!r} is not called", "schema", exchange)]
    findings = []
    for i, call in enumerate(calls):
        if call.name != name:
            findings.append(Finding(f"call {i} is of {call.name!r} and not of {name!r}", "schema", exchange))
        elif (fault := valid.fault(call.arguments)) is not None and fault.kind != "unchecked_arguments":
            what = f"the arguments of call {i} do not validate: {fault.kind} {fault.detail}: {call.arguments:.200}"
            findings.append(Finding(what, "schema", exchange))
    return findings
