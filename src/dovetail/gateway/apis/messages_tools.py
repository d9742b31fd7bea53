"""Anthropic's `tools` and `tool_choice` as those of a `TurnRequest`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.gateway.apis.messages_request import ToolChoice
from dovetail.gateway.apis.request_body import convert_field

#: The tools whose schemas or whose work are Anthropic's own: a word and a date.
_OWN_TOOL = re.compile(r"\w+_\d{8}|mcp_toolset")


class Tool(msgspec.Struct, frozen=True):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    input_examples: Any = None


class Tools:
    """The tools of one request.

    `functions`: those that the client runs, in OpenAI's shape.
    `names`: the client's name for each of their fields that an error may name.
    `omitted`: the fields that were left out: tools that only Anthropic's servers have, and examples.
    """

    def __init__(self, tools: Sequence[Any]) -> None:
        self.functions: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self.omitted: list[str] = []
        for i, tool in enumerate(tools):
            self._add(tool, f"tools[{i}]")

    def _add(self, tool: Any, field: str) -> None:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and _OWN_TOOL.fullmatch(kind):
            self.omitted.append(field)
            return
        if kind not in (None, "custom"):
            raise InvalidRequest(f'{field}.type must be "custom" or absent, not {kind!r:.80}', param=f"{field}.type")
        declared = convert_field(tool, Tool, field)
        if declared.input_examples:
            self.omitted.append(f"{field}.input_examples")
        place = f"tools[{len(self.functions)}]"
        self.names |= {
            place: field,
            f"{place}.function": field,
            f"{place}.function.parameters": f"{field}.input_schema",
        }
        function: dict[str, Any] = {"name": declared.name, "parameters": declared.input_schema}
        optional = {"description": declared.description, "strict": declared.strict}
        function |= {key: value for key, value in optional.items() if value is not None}
        self.functions.append({"type": "function", "function": function})


def openai_choice(choice: ToolChoice | None) -> Any:
    """`choice` in OpenAI's shape."""
    if choice is None:
        return None
    if choice.type != "tool":
        return "required" if choice.type == "any" else choice.type
    if not choice.name:
        raise InvalidRequest('tool_choice.name is required with the type "tool"', param="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}
