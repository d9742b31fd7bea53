"""Suite `schema`: every finished call validates. Its cases are `data/schema.json`, or the user's tools and schemas.

Each case names its tool with `tool_choice`, so that a call has to come. An endpoint that refuses that gets the schema
as a `response_format`, and its content is checked. Some prompts ask for what the schema forbids: whether their answers
validate shows whether the endpoint enforces schemas, or its model only follows them.
"""

from __future__ import annotations

import json
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
_INSTEAD = "\n\nThere is no such tool. Answer with nothing but its arguments: JSON that fits {schema}"


class Schema(Suite):
    """`tools`: tools of the user, as in a request. `schemas`: schemas by name, such as a validator's tests."""

    name = "schema"

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
        request, first, instead = await _first(case.request, target)
        exchanges = [first]
        if target.features.streaming:
            exchanges.append(await target.answer({**request, **STREAM}))
        finished = [exchange for exchange in exchanges if not exchange.answer.cut_off]
        # One call may be cut off in a long argument. Several are a model that cannot stop.
        findings = [finding for each in exchanges for finding in endless_calls(each, 2)]
        for each in finished:
            findings += _of_calls(each, function["name"], valid) if instead is None else _of_content(each, valid)
        measures = {
            "finished": len(finished),
            "cut_off": len(exchanges) - len(finished),
            "valid": len(finished) - len({id(each.exchange) for each in findings if not each.exchange.answer.cut_off}),
            "forbidden": bool(case.expect.get("forbidden")),
            "instead": instead,
        }
        return Checked(tuple(findings), measures)

    def figures(self, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
        what = "answers" if any(outcome.measures.get("instead") for outcome in outcomes) else "calls"
        finished, valid = (_sum(outcomes, name) for name in ("finished", "valid"))
        figures = {f"finished {what} that validate": share(valid, finished)}
        forbidden = [outcome for outcome in outcomes if outcome.measures.get("forbidden")]
        if forbidden:
            asked = _sum(forbidden, "finished")
            figures[f"{what} that validate where the prompt asks for others"] = share(_sum(forbidden, "valid"), asked)
        figures["answers that ran to the limit"] = share(
            _sum(outcomes, "cut_off"), finished + _sum(outcomes, "cut_off")
        )
        return figures

    def missing(self, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
        reasons = dict.fromkeys(each.measures["instead"] for each in outcomes if each.measures.get("instead"))
        return tuple(f"{because} (a response_format was tested in place of calls)" for because in reasons)


async def _first(request: Mapping[str, Any], target: Target) -> tuple[Mapping[str, Any], Exchange, str | None]:
    """The request that the endpoint takes, and its answer; why that is no call, None if it is. Raises `NotTested`."""
    because = target.features.because.get("tools")
    if because is None:
        exchange = await target.chat(request)
        if exchange.answer.error is None:
            return request, exchange, None
        because = f"it refuses a request that names a tool: {exchange.answer.error}"
    instead = _as_format(request)
    try:
        return instead, await target.answer(instead), because
    except NotTested as reason:
        raise NotTested(f"{because}; and with a response_format {reason.because}", blocking=reason.blocking) from None


def _as_format(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request whose answer is what the arguments of the call would be."""
    (tool,) = request["tools"]
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object"}
    *others, last = request["messages"]
    asked = {**last, "content": last["content"] + _INSTEAD.format(schema=json.dumps(schema))}
    described = {"name": function["name"], "schema": schema, "strict": True}
    return {
        **{name: each for name, each in request.items() if name not in ("tools", "tool_choice")},
        "messages": [*others, asked],
        "response_format": {"type": "json_schema", "json_schema": described},
    }


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


def _of_calls(exchange: Exchange, name: str, valid: Checker) -> list[Finding]:
    calls = exchange.answer.message.calls
    if not calls:
        return [Finding(f"the named tool {name!r} is not called", "schema", exchange)]
    findings = []
    for i, call in enumerate(calls):
        if call.name != name:
            findings.append(Finding(f"call {i} is of {call.name!r} and not of {name!r}", "schema", exchange))
        else:
            findings += _misfit(f"the arguments of call {i} do", call.arguments, exchange, valid)
    return findings


def _of_content(exchange: Exchange, valid: Checker) -> list[Finding]:
    return _misfit("the content does", exchange.answer.message.content, exchange, valid)


def _misfit(what: str, text: str, exchange: Exchange, valid: Checker) -> list[Finding]:
    fault = valid.fault(text)
    if fault is None or fault.kind == "unchecked_arguments":
        return []
    return [Finding(f"{what} not validate: {fault.kind} {fault.detail}: {text:.200}", "schema", exchange)]
