"""Reads tools and options from vLLM's request objects, for chat completions and for responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tools_of(request: Any) -> list[dict[str, Any]]:
    """The request's functions, in the shape of chat completions."""
    functions = []
    for tool in getattr(request, "tools", None) or ():
        function = getattr(tool, "function", None) or tool  # in the Responses API, the tool is the function itself
        if getattr(tool, "type", None) == "function" and isinstance(getattr(function, "name", None), str):
            declared = {key: getattr(function, key, None) for key in ("name", "description", "parameters")}
            functions.append({"type": "function", "function": {k: v for k, v in declared.items() if v is not None}})
    return functions


def strict_tools(request: Any) -> frozenset[str]:
    """The names of the functions with `strict: true`."""
    tools = [getattr(tool, "function", None) or tool for tool in getattr(request, "tools", None) or ()]
    return frozenset(tool.name for tool in tools if getattr(tool, "strict", None) is True)


def choice_of(request: Any) -> Any:
    """`tool_choice` as `Format.grammar` takes it."""
    choice = getattr(request, "tool_choice", None)
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    name = getattr(getattr(choice, "function", None) or choice, "name", None)
    return {"type": "function", "function": {"name": name}} if isinstance(name, str) else "auto"


def thinking_off(template_options: Mapping[str, Any] | None) -> bool:
    """Whether a chat template's options turn reasoning off: `thinking: false` or `enable_thinking: false`."""
    options = template_options or {}
    return any(options.get(switch) is False for switch in ("thinking", "enable_thinking"))
