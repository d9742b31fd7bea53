"""Names of tools that a model cannot write, as names that it can: `github/search` is `github_search` to the model.

A turn has the model's names throughout, in its tools, its history and its `tool_choice`; the steps that it returns have
the client's again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dovetail.conversation import check_tools
from dovetail.custom_tools import is_custom
from dovetail.events import CallStart
from dovetail.formats.answers.tool_choice import resolve_tool_choice
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn_request import TurnRequest

_FOREIGN = re.compile(r"[/:]")


class ToolNames(msgspec.Struct, frozen=True):
    """The model's name of each tool that has another one at the client's. All other names stay as they are."""

    to_model: Mapping[str, str] = {}
    #: The other way. Only tools that are declared can be called.
    to_client: Mapping[str, str] = {}

    @classmethod
    def of(cls, tools: Any, messages: Any) -> ToolNames:
        """The names in a request, which need not be well formed. They depend on nothing but the declared tools, so they
        are the same in every turn of a conversation."""
        declared = [*_names(tools), *(name for message in _items(messages) for name in _names(message.get("tools")))]
        called = [name for message in _items(messages) for name in _names(message.get("tool_calls"))]
        to_model: dict[str, str] = {}
        taken = {name for name in declared if not _FOREIGN.search(name)}
        for name in dict.fromkeys((*declared, *called)):
            if _FOREIGN.search(name):
                to_model[name] = _free(_FOREIGN.sub("_", name), taken)
                taken.add(to_model[name])
        return cls(to_model, {to_model[name]: name for name in declared if name in to_model})

    def in_request(self, request: TurnRequest) -> TurnRequest:
        """`request` with the model's names."""
        if not self.to_model:
            return request
        messages = [self._in_message(message) for message in request.messages]
        tools, choice = self.in_tools(request.tools), self.in_choice(request.tool_choice)
        return msgspec.structs.replace(request, messages=messages, tools=tools, tool_choice=choice)

    def in_tools(self, tools: Any) -> Any:
        """Tools, or calls, with the model's names."""
        return [self._renamed(tool) for tool in tools] if isinstance(tools, list | tuple) else tools

    def in_choice(self, choice: Any) -> Any:
        """A `tool_choice` with the model's names."""
        if not isinstance(choice, Mapping):
            return choice
        allowed = choice.get("allowed_tools")
        if isinstance(allowed, Mapping):
            return {**choice, "allowed_tools": {**allowed, "tools": self.in_tools(allowed.get("tools"))}}
        return self._renamed(choice)

    def in_step(self, step: Step) -> Step:
        """`step` with the client's names."""
        if not self.to_client:
            return step
        names = self.to_client
        events = [
            msgspec.structs.replace(event, name=names.get(event.name, event.name))
            if isinstance(event, CallStart)
            else event
            for event in step.events
        ]
        calls = tuple(
            msgspec.structs.replace(call, tool=names.get(call.tool, call.tool)) if call.tool else call
            for call in step.calls
        )
        return msgspec.structs.replace(step, events=events, calls=calls)

    def _in_message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        changed = {field: self.in_tools(message[field]) for field in ("tools", "tool_calls") if message.get(field)}
        if message.get("role") == "tool" and message.get("name") in self.to_model:
            changed["name"] = self.to_model[message["name"]]
        return {**message, **changed} if changed else message

    def _renamed(self, tool: Any) -> Any:
        kind = "custom" if is_custom(tool) else "function"
        part = tool.get(kind) if isinstance(tool, Mapping) else None
        if not isinstance(part, Mapping) or not isinstance(part.get("name"), str) or part["name"] not in self.to_model:
            return tool
        return {**tool, kind: {**part, "name": self.to_model[part["name"]]}}


def check_tool_choice(tool_choice: Any, tools: Any, messages: Any) -> None:
    """Raise `InvalidRequest` for tools, or a choice of them, that are not well formed, naming the field."""
    names = ToolNames.of(tools, messages)
    resolve_tool_choice(names.in_choice(tool_choice), check_tools(names.in_tools(tools)))


def _free(name: str, taken: set[str]) -> str:
    """`name`, or with a number behind it the first that is not taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def _items(values: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(values, list | tuple):
        yield from (value for value in values if isinstance(value, Mapping))


def _names(tools: Any) -> Iterator[str]:
    """The names of tools, or of calls."""
    for tool in _items(tools):
        part = tool.get("custom" if is_custom(tool) else "function")
        if isinstance(part, Mapping) and isinstance(part.get("name"), str):
            yield part["name"]
