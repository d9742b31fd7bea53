"""The tools that an answer may call: those of the request, and those that its messages declare."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dovetail.conversation import Tool, check_tools
from dovetail.custom_tools import declared as declared_part
from dovetail.custom_tools import is_custom
from dovetail.errors import DovetailError, InvalidRequest, SchemaRefused
from dovetail.formats.answers.tool_choice import Strict
from dovetail.formats.base import Format
from dovetail.gateway.turn.turn_request import TurnRequest

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
