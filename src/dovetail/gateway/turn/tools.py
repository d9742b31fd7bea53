"""The tools that an answer may call, those of the request and those that its messages declare, and their names.

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

from dovetail.conversation import Tool, check_tools
from dovetail.custom_tools import declared as declared_part
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


_TOOL_INDEX = re.compile(r"tools\[(\d+)\]")

_PROBE_NAME = "zqprobexv"  # letters only, which no template escapes, and no word of any template
_PROBE_CONTENT = "zqprobexc"
_PROBE_TOOLS = [
    {"type": "function", "function": {"name": _PROBE_NAME, "description": "", "parameters": {"type": "object"}}}
]
_USER = {"role": "user", "content": "hi"}


class DeclaredTools:
    """The tools that an answer may call: the request's, and those of its messages that the format shows to the model.

    No two tools may share a name. A request that sets `dovetail.strict` sets the level of every tool; with "schema", a
    tool with `"strict": false` keeps its own level.

    Raises `InvalidRequest`, which names the field, for tools that are not well formed.
    """

    def __init__(self, request: TurnRequest, fmt: Format) -> None:
        declared = [(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())]
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
                with _errors_named(field):
                    _check_names(message["tools"], check_tools(message["tools"]))
                declared += ((tool, f"{field}[{j}]") for j, tool in enumerate(message["tools"]))
        _check_different(declared)
        self.tools = [tool for tool, _ in declared]
        if (level := request.extension.strict) is not None:
            self.tools = [_at_level(level, tool) for tool in self.tools]
        self._fields = [field for _, field in declared]

    def field(self, path: str) -> str:
        """`path`, which begins with an index into `tools`, as a field of the request."""
        index = _TOOL_INDEX.match(path)
        if index is None or int(index[1]) >= len(self._fields):
            return path
        return self._fields[int(index[1])] + path[index.end() :]

    @contextmanager
    def request_fields(self) -> Iterator[None]:
        """Errors inside this context name the field of the request; an error that names none is about `tools`."""
        try:
            yield
        except InvalidRequest as error:
            param, message = error.param or "tools", error.message
            if (index := _TOOL_INDEX.match(param)) and int(index[1]) < len(self._fields):
                place, field = index[0], self._fields[int(index[1])]
                param, message = param.replace(place, field, 1), message.replace(place, field, 1)
                if isinstance(error, SchemaRefused):
                    message += ' (the request can ask for less: "dovetail": {"strict": "names"})'
            # A new error: several requests may share the compiled grammar that failed, and its exception.
            raise type(error)(message, param=param) from error


def _check_names(tools: Sequence[Any], checked: Sequence[Tool]) -> None:
    """Tools in messages begin with a letter or `_`, as Moonshot's API has it."""
    for i, (tool, name) in enumerate(zip(tools, (tool.name for tool in checked), strict=True)):
        if not (name[0].isalpha() or name[0] == "_"):
            field = f"tools[{i}].{tool['type']}.name"
            raise InvalidRequest(f"{field} {name[:80]!r} must begin with a letter or '_'", param=field)


def _check_different(declared: Sequence[tuple[Any, str]]) -> None:
    seen: set[str] = set()
    for tool, field in declared:
        name = declared_part(tool)["name"]
        if name in seen:
            field += f".{tool['type']}.name"
            raise InvalidRequest(f"{field} {name} is declared twice", param=field)
        seen.add(name)


def _at_level(level: Strict, tool: dict[str, Any]) -> dict[str, Any]:
    """`tool` with the level that its request sets.

    "off" and "names" are upper bounds, whatever a client library always sends. With "schema", a tool without a level of
    its own gets `"strict": true`, so that a schema that cannot be enforced is refused.
    """
    if is_custom(tool):
        return tool
    own = tool["function"].get("strict")
    strict = (True if own is None else own) if level == "schema" else None
    return {**tool, "function": {**tool["function"], "strict": strict}}


@contextmanager
def _errors_named(field: str) -> Iterator[None]:
    try:
        yield
    except InvalidRequest as error:
        error.param = (error.param or "").replace("tools", field, 1)
        error.message = error.message.replace("tools", field, 1)
        raise


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
