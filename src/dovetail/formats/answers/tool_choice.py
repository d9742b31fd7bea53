"""OpenAI's `tool_choice` and `strict`: which tools may be called, and whose schemas are enforced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dovetail.conversation import Tool
from dovetail.errors import InvalidRequest
from dovetail.grammar.schemas.repair import Budget, repaired

Strict = Literal["off", "names", "schema"]


def enforces_schema(tool: Tool, strict: Strict) -> bool:
    """Whether a tool's schema is enforced. `strict` applies to tools without a `strict` of their own."""
    return strict == "schema" if tool.strict is None else tool.strict


def usable(tool: Tool, budget: Budget | None = None) -> tuple[Tool, Mapping[str, str]]:
    """`tool` with the usable part of its schema, and the parts that were left out, with the reasons.

    The parts are JSON pointers. "#" means the whole schema; any arguments are allowed then. A schema is not changed if
    the tool is strict itself: the request gets an error in that case.
    `budget`: shared by the tools of a request; None: a budget for this tool alone.
    """
    if tool.strict or tool.parameters is None:
        return tool, {}
    parameters, left_out = repaired(tool.parameters, budget)
    return msgspec.structs.replace(tool, parameters=parameters), left_out


def enforceable(tool: Tool, strict: Strict, budget: Budget) -> tuple[Tool, Mapping[str, str]]:
    """`tool` with the schema that is enforced, and the parts that were left out of it; see `usable`."""
    return usable(tool, budget) if enforces_schema(tool, strict) else (tool.without_schema, {})


def resolve_tool_choice(
    tool_choice: Any, tools: Sequence[Tool]
) -> tuple[Literal["auto", "none", "required"], Mapping[int, Tool]]:
    """The mode of OpenAI's `tool_choice`, and the tools that may be called, by index.

    `tool_choice` is "auto", "none", "required", one function or `allowed_tools`. Raises `InvalidRequest` for another
    shape, and for a tool that the request does not have.
    """
    everything = dict(enumerate(tools))
    if tool_choice is None:
        tool_choice = "auto"
    if tool_choice in ("auto", "none", "required"):
        if tool_choice == "required" and not tools:
            raise InvalidRequest("tool_choice is 'required' but there are no tools", param="tool_choice")
        return tool_choice, everything
    if isinstance(tool_choice, Mapping) and tool_choice.get("type") == "allowed_tools":
        return _allowed(tool_choice.get("allowed_tools"), everything)
    chosen = _chosen(tool_choice)
    if chosen is None:
        raise InvalidRequest(
            'tool_choice must be "auto", "none", "required", {"type": "function", "function": {"name": …}}, '
            '{"type": "custom", "custom": {"name": …}} or '
            '{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}',
            param="tool_choice",
        )
    return "required", _named(*chosen, everything, "tool_choice")


def names_one(tool_choice: Any) -> bool:
    """Whether this `tool_choice`, which has been checked, names the one tool to call."""
    return isinstance(tool_choice, Mapping) and tool_choice.get("type") != "allowed_tools"


def requires_call(tool_choice: Any) -> bool:
    """Whether an answer under this `tool_choice` is a call."""
    if isinstance(tool_choice, Mapping) and (allowed := tool_choice.get("allowed_tools")) is not None:
        return isinstance(allowed, Mapping) and allowed.get("mode") == "required"
    return isinstance(tool_choice, Mapping) or tool_choice == "required"


def _allowed(
    choice: Any, tools: Mapping[int, Tool], where: str = "tool_choice.allowed_tools"
) -> tuple[Literal["auto", "required"], Mapping[int, Tool]]:
    if not isinstance(choice, Mapping):
        raise InvalidRequest(f'{where} must be an object: {{"mode": …, "tools": […]}}', param=where)
    mode, listed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidRequest(f'{where}.mode must be "auto" or "required"', param=f"{where}.mode")
    where += ".tools"
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest(f"{where} must be a list of at least one tool", param=where)
    allowed: dict[int, Tool] = {}
    for i, tool in enumerate(listed):
        chosen = _chosen(tool)
        if chosen is None:
            at = f"{where}[{i}]"
            raise InvalidRequest(
                f'{at} must be {{"type": "function", "function": {{"name": …}}}} or {{"type": "custom", …}}', param=at
            )
        allowed |= _named(*chosen, tools, f"{where}[{i}]")
    return mode, dict(sorted(allowed.items()))


def _chosen(choice: Any) -> tuple[str, bool] | None:
    """The name in `{"type": "function", "function": {"name": …}}` or `{"type": "custom", "custom": {"name": …}}`, and
    whether it is a custom tool's; None for anything else."""
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    named = choice.get(kind) if kind in ("function", "custom") else None
    name = named.get("name") if isinstance(named, Mapping) else None
    return (name, kind == "custom") if isinstance(name, str) else None


def _named(name: str, custom: bool, tools: Mapping[int, Tool], where: str) -> Mapping[int, Tool]:
    named = {index: tool for index, tool in tools.items() if (tool.name, tool.custom) == (name, custom)}
    if not named:
        kind = "custom tools" if custom else "tools"
        raise InvalidRequest(f"{where} names {name!r:.80}, which is not among the {kind}", param=where)
    return named
