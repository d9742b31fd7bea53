"""The tools that an answer may call, from the request and from its messages, and their names.

A name that a model cannot write becomes one that it can: `github/search` is `github_search` to the model. A turn has
the model's names throughout, in its tools, its history and its `tool_choice`; the steps that it returns have the
client's again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from dovetail.conversation import Tool, Tools, check_tools
from dovetail.custom_tools import is_custom
from dovetail.errors import DovetailError, InvalidRequest, SchemaRefused
from dovetail.events import CallStart
from dovetail.formats.answers.tool_choice import Strict, resolve_tool_choice
from dovetail.formats.base import Format
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


def typed(request: TurnRequest) -> TurnRequest:
    """`request` with the model's names of its tools, and with the tools checked.

    Raises `InvalidRequest` for tools, or a choice of them, that are not well formed, naming the field.
    """
    names = ToolNames.of(request.tools, request.messages)
    request = names.in_request(request)
    declared = check_tools(request.tools)
    # A message may declare the chosen tool, if the format shows such tools; the grammar's choice is checked then.
    if not any(message.get("tools") for message in request.messages):
        resolve_tool_choice(request.tool_choice, declared)
    return msgspec.structs.replace(request, declared=declared, client_names=names.to_client)


def with_client_names(step: Step, names: Mapping[str, str]) -> Step:
    """`step` with the client's names of tools; see `TurnRequest.client_names`."""
    if not names:
        return step
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


_PROBE_NAME = "zqprobexv"  # letters only, which no template escapes, and no word of any template
_PROBE_CONTENT = "zqprobexc"
_PROBE_TOOLS = [
    {"type": "function", "function": {"name": _PROBE_NAME, "description": "", "parameters": {"type": "object"}}}
]
_USER = {"role": "user", "content": "hi"}


def declared_tools(request: TurnRequest, fmt: Format) -> Tools:
    """The tools that an answer may call: the request's, and what its messages declare if the format shows it.

    No two tools may share a name. A request that sets `dovetail.strict` sets the level of every tool; with "schema", a
    tool with `"strict": false` keeps its own level.

    Raises `InvalidRequest`, which names the field, for tools that are not well formed.
    """
    declared = [*request.declared]
    declaring = [(i, message) for i, message in enumerate(request.messages) if message.get("tools")]
    if declaring:
        roles = _roles_with_tools(fmt)
        for i, message in declaring:
            field = f"messages[{i}].tools"
            if message["role"] not in roles:
                role, where = message["role"], "system messages" if "system" in roles else "the field tools"
                text = f"{field}: {fmt.name} does not know tools in messages of the role {role}: use {where}"
                raise InvalidRequest(text, param=field)
            if message.get("content") and not roles[message["role"]]:
                field = f"messages[{i}].content"
                raise InvalidRequest(f"{field} must be empty in a message that declares tools", param=field)
            declared += _with_plain_names(check_tools(message["tools"], field))
    _check_different(declared)
    level = request.extension.strict
    return Tools(declared if level is None else [_at_level(level, tool) for tool in declared])


def _with_plain_names(tools: Tools) -> Tools:
    """`tools` of a message, whose names begin with a letter or `_`, as Moonshot's API has it."""
    for tool in tools:
        if not (tool.name[0].isalpha() or tool.name[0] == "_"):
            field = tool.name_field
            raise InvalidRequest(f"{field} {tool.name[:80]!r} must begin with a letter or '_'", param=field)
    return tools


def _check_different(declared: Sequence[Tool]) -> None:
    seen: set[str] = set()
    for tool in declared:
        if tool.name in seen:
            raise InvalidRequest(f"{tool.name_field} {tool.name} is declared twice", param=tool.name_field)
        seen.add(tool.name)


def _at_level(level: Strict, tool: Tool) -> Tool:
    """`tool` with the level that its request sets.

    "off" and "names" are upper bounds, whatever a client library always sends. With "schema", a tool without a level of
    its own gets `"strict": true`, so that a schema that cannot be enforced is refused.
    """
    if tool.custom:
        return tool
    strict = (True if tool.strict is None else tool.strict) if level == "schema" else None
    leveled = msgspec.structs.replace(tool, strict=strict)
    leveled.check_strict()
    return leveled


@contextmanager
def errors_about_tools() -> Iterator[None]:
    """An error inside this context that names no field is about `tools`. A refused schema comes with a way out."""
    try:
        yield
    except InvalidRequest as error:
        message = error.message
        if isinstance(error, SchemaRefused) and (error.param or "").startswith(("tools[", "messages[")):
            message += ' (the request can ask for less: "dovetail": {"strict": "names"})'
        # A new error: several requests may share the compiled grammar that failed, and its exception.
        raise type(error)(message, param=error.param or "tools") from error


@functools.lru_cache(16)
def shows_tools(fmt: Format) -> bool:
    """Whether the format's prompts show a request's tools. True for a format that cannot render the short probe."""
    try:
        return _PROBE_NAME in fmt.render([_USER], _PROBE_TOOLS).text
    except DovetailError:
        return True


@functools.lru_cache(16)
def _roles_with_tools(fmt: Format) -> Mapping[str, bool]:
    """The roles whose messages show their own tools, and whether they show their content beside them."""
    roles: dict[str, bool] = {}
    for role in ("system", "developer", "user"):
        with suppress(DovetailError):
            probe = fmt.render([{"role": role, "content": _PROBE_CONTENT, "tools": _PROBE_TOOLS}, _USER])
            if _PROBE_NAME in probe.text:
                roles[role] = _PROBE_CONTENT in probe.text
    return roles
