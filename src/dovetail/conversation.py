"""Messages and tools as plain data, and the checks of a request that name the field at fault.

Messages stay the OpenAI-shaped dicts that clients send, because a format must be able to write exactly what the client
sent. Each `check_…` function raises `InvalidRequest` with the path of the bad field in `param`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dovetail import custom_tools
from dovetail.custom_tools import InputGrammar
from dovetail.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
ROLES = ("system", "developer", "user", "assistant", "tool")
#: The `type` names that schemas use, in lower case, and the JSON Schema type that each one means.
TYPE_NAMES: Mapping[str, str] = {
    **{name: name for name in ("string", "number", "integer", "boolean", "null", "object", "array")},
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
    "tuple": "array",
    "none": "null",
}


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call, or a custom tool as such a function.

    `name`: the function's name.
    `description`: what the model is told about the function.
    `parameters`: the JSON Schema of the arguments object; None allows any arguments.
    `strict`: whether the schema is enforced; None leaves that to the server's setting.
    `custom`: whether it is a custom tool, with the one parameter `custom_tools.INPUT`.
    `grammar`: the grammar of a custom tool's input; None allows any text.
    `field`: where the request declares the tool, for errors and reports: `tools[0]`, or `messages[2].tools[0]`.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None
    custom: bool = False
    grammar: InputGrammar | None = None
    field: str = "tools[0]"

    @property
    def name_field(self) -> str:
        """The field of the request with the tool's name."""
        return f"{self.field}.{'custom' if self.custom else 'function'}.name"

    @property
    def schema_field(self) -> str:
        """The field of the request with the schema of the arguments."""
        return f"{self.field}.function.parameters"

    @property
    def grammar_field(self) -> str:
        """The field of the request with the grammar of a custom tool's input."""
        return f"{self.field}.{custom_tools.DEFINITION}"

    def check_strict(self) -> None:
        """Raise `InvalidRequest` for a strict tool whose arguments are no object."""
        if self.strict and self.parameters is not None and self.parameters.get("type", "object") != "object":
            field = self.schema_field
            raise InvalidRequest(f'{field} must be of type "object": arguments have names', param=field)

    @property
    def without_schema(self) -> Tool:
        """The same tool with any arguments allowed."""
        return msgspec.structs.replace(self, parameters=None, grammar=None)


class Tools(tuple[Tool, ...]):
    """The tools of a request, checked: `check_tools` returns them, and takes them as they are."""

    __slots__ = ()


class ResponseFormat(dict[str, Any]):
    """OpenAI's `response_format`, checked, for JSON content that validates against `schema`: `check_response_format`
    returns it, and takes it as it is. Templates show it as the client sent it.

    `schema`: the JSON Schema.
    `origin`: the request field that holds the schema, for error messages.
    """

    def __init__(self, requested: Mapping[str, Any], schema: Mapping[str, Any], origin: str) -> None:
        super().__init__(requested)
        self.schema = schema
        self.origin = origin


def check_messages(messages: Any) -> Sequence[Mapping[str, Any]]:
    """Return `messages` if they have OpenAI's shape; raise `InvalidRequest` naming the field otherwise."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InvalidRequest("messages must be a non-empty list", param="messages")
    for i, message in enumerate(messages):
        _check_message(message, f"messages[{i}]")
    return messages


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object, not {_kind(message)}", param=where)
    role = message.get("role")
    if role not in ROLES:
        shown = f"{role!r:.80}" if isinstance(role, str) else _kind(role)
        raise InvalidRequest(f"{where}.role must be one of {', '.join(ROLES)}, not {shown}", param=f"{where}.role")
    _check_content(message.get("content"), f"{where}.content")
    for field in ("name", "reasoning_content", "tool_call_id"):
        if not isinstance(message.get(field), str | None):
            raise InvalidRequest(f"{where}.{field} must be a string", param=f"{where}.{field}")
    if role == "tool" and not message.get("tool_call_id"):
        raise InvalidRequest(f"{where}.tool_call_id is required in a tool message", param=f"{where}.tool_call_id")
    calls = message.get("tool_calls")
    if calls is None:
        return
    if role != "assistant":
        raise InvalidRequest(f"{where}.tool_calls belongs to assistant messages only", param=f"{where}.tool_calls")
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise InvalidRequest(f"{where}.tool_calls must be a list", param=f"{where}.tool_calls")
    for j, call in enumerate(calls):
        _check_call(call, f"{where}.tool_calls[{j}]")


def _check_content(content: Any, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{where} must be a string, a list of parts or null, not {_kind(content)}", param=where)
    for i, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise InvalidRequest(f"{where}[{i}] must be an object with a `type`", param=f"{where}[{i}]")
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}[{i}].text must be a string", param=f"{where}[{i}].text")


def _check_call(call: Any, where: str) -> None:
    if not isinstance(call, Mapping):
        raise InvalidRequest(f"{where} must be an object, not {_kind(call)}", param=where)
    if not isinstance(call.get("id"), str) or not call["id"]:
        raise InvalidRequest(f"{where}.id must be a non-empty string", param=f"{where}.id")
    if custom_tools.is_custom(call):
        custom_tools.check_custom_call(call, where)
        return
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidRequest(f"{where}.function.name must be a non-empty string", param=f"{where}.function.name")
    if not isinstance(function.get("arguments"), str | Mapping):
        raise InvalidRequest(f"{where}.function.arguments must be a JSON string", param=f"{where}.function.arguments")


def check_tools(tools: Any, field: str = "tools") -> Tools:
    """OpenAI's `tools` as `Tools`. Raises `InvalidRequest` naming the field if they do not have OpenAI's shape.

    `field`: where the request has them. A schema only has to be an object or absent. Whether it can be enforced is
    decided by `dovetail.grammar`.
    """
    if isinstance(tools, Tools):
        return tools
    if tools is None:
        return Tools()
    check_tool_types(tools, field)
    checked: list[Tool] = []
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        where, kind = f"{field}[{i}]", tool.get("type")
        if kind not in ("function", "custom"):
            raise InvalidRequest(f"{where}.type must be 'function' or 'custom'", param=f"{where}.type")
        function = custom_tools.declared(tool)
        name = function["name"]
        if not name:
            raise InvalidRequest(f"{where}.{kind}.name must be a non-empty string", param=f"{where}.{kind}.name")
        if not _NAME.fullmatch(name) or name.startswith("functions."):
            # Some formats put the name into a call's id, as in "functions.NAME:0", and read it back from there.
            raise InvalidRequest(
                f"{where}.{kind}.name {name[:80]!r} must be 1 to 128 letters, digits, '_', '-' or '.', and must not "
                "begin with 'functions.'",
                param=f"{where}.{kind}.name",
            )
        if name in seen:
            raise InvalidRequest(f"{where}.{kind}.name {name} is declared twice", param=f"{where}.{kind}.name")
        seen.add(name)
        if kind == "custom":
            grammar = custom_tools.input_grammar(tool)
            schema = custom_tools.parameters(grammar)
            described = function.get("description")
            checked.append(Tool(name, described, schema, custom=True, grammar=grammar, field=where))
            continue
        parameters, strict = function.get("parameters"), function.get("strict")
        _check_type(strict, bool | None, "true, false or null", f"{where}.function.strict")
        declared = Tool(name, function.get("description"), parameters, strict, field=where)
        declared.check_strict()
        checked.append(declared)
    return Tools(checked)


_FORMAT_TYPES = ("text", "json_object", "json_schema")
_FORMAT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_response_format(
    requested: Any, field: str = "response_format", declared_field: str | None = None
) -> ResponseFormat | None:
    """OpenAI's `response_format` as a `ResponseFormat`, or None if any text will do.

    `field`: where the request has it. `declared_field`: where the request has the name and the schema, if not in
    `json_schema` inside that field.

    Raises `InvalidRequest` naming the field if it does not have OpenAI's shape.
    """
    if requested is None or isinstance(requested, ResponseFormat):
        return requested
    _check_type(requested, Mapping, "an object", field)
    kind = requested.get("type")
    if kind not in _FORMAT_TYPES:
        known = ", ".join(map(repr, _FORMAT_TYPES))
        raise InvalidRequest(f"{field}.type must be one of {known}", param=f"{field}.type")
    for place in ("schema",) if kind == "json_schema" else ("schema", "json_schema"):
        # Other servers take a schema in these places. Ignoring it would give the client unconstrained text.
        if requested.get(place) is not None:
            where = f"{field}.{place}"
            raise InvalidRequest(f"{where}: a schema is asked for by {_SCHEMA_SHAPE}", param=where)
    if kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat(requested, {"type": "object"}, field)
    where = f"{field}.json_schema" if declared_field is None else declared_field
    declared = requested.get("json_schema")
    _check_type(declared, Mapping, "an object", where)
    name, schema, strict = declared.get("name"), declared.get("schema"), declared.get("strict")
    if not isinstance(name, str) or not _FORMAT_NAME.fullmatch(name):
        raise InvalidRequest(f"{where}.name must be 1 to 64 letters, digits, '_' or '-'", param=f"{where}.name")
    _check_type(declared.get("description"), str | None, "a string", f"{where}.description")
    _check_type(strict, bool | None, "true, false or null", f"{where}.strict")
    _check_type(schema, Mapping, "a JSON Schema object", f"{where}.schema")
    if strict is False:  # only the type of the JSON value is enforced
        schema = {key: schema[key] for key in ("type",) if key in schema}
    return ResponseFormat(requested, schema, f"{where}.schema")


_SCHEMA_SHAPE = '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}'


def check_tool_types(tools: Any, where: str = "tools") -> None:
    """Raise `InvalidRequest` naming a field of `tools` that is missing or has a wrong type.

    A prompt needs no more than that: tools that are not functions pass, and so does any name.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequest(f"{where} must be a list", param=where)
    for i, tool in enumerate(tools):
        at = f"{where}[{i}]"
        _check_type(tool, Mapping, "an object", at)
        kind = tool.get("type")
        if kind == "custom":
            custom_tools.check_custom(tool, at)
            continue
        if "function" not in tool and kind != "function":
            _check_type(kind, str, "a string", f"{at}.type")
            continue
        _check_type(kind, str | None, "a string", f"{at}.type")
        at += ".function"
        function = tool.get("function")
        _check_type(function, Mapping, "an object", at)
        _check_type(function.get("name"), str, "a non-empty string", f"{at}.name")
        _check_type(function.get("description"), str | None, "a string", f"{at}.description")
        _check_type(function.get("parameters"), Mapping | None, "a JSON Schema object", f"{at}.parameters")


def _check_type(value: Any, kind: Any, words: str, where: str) -> None:
    if not isinstance(value, kind):
        raise InvalidRequest(f"{where} must be {words}, not {_kind(value)}", param=where)


#: Message fields that only some families read; each is a string.
_FAMILY_FIELDS = ("reasoning", "thinking", "tool")


def check_renderable(messages: Any, tools: Any, options: Mapping[str, Any] | None = None) -> None:
    """Raise `InvalidRequest` naming the field that makes a conversation impossible to render, if there is one.

    Beyond the shape of messages and tools, it finds text with a lone surrogate and values that JSON cannot hold (other
    types, cycles, too deep a nesting). `options` are the template options.
    """
    if messages or not isinstance(messages, Sequence):
        check_messages(messages)
    if tools:
        check_tool_types(tools)
    for field, items in (("messages", messages), ("tools", tools or ())):
        for i, item in enumerate(items):
            check_json(item, f"{field}[{i}]")
    for i, message in enumerate(messages):
        for field in _FAMILY_FIELDS:
            _check_type(message.get(field), str | None, "a string", f"messages[{i}].{field}")
    for option, value in (options or {}).items():
        check_json(value, f"chat_template_kwargs.{option}")


def deepest(messages: Any, tools: Any, options: Mapping[str, Any]) -> str:
    """The path of the field with the deepest nesting. The data must have no cycles."""
    fields = [(_depth(message), f"messages[{i}]") for i, message in enumerate(messages)]
    fields += ((_depth(tool), f"tools[{i}].function.parameters") for i, tool in enumerate(tools or ()))
    fields += ((_depth(value), f"chat_template_kwargs.{option}") for option, value in options.items())
    return max(fields)[1]


def _depth(value: Any) -> int:
    depth = 0
    level: list[Iterable[Any]] = [(value,)]
    while level := [item for items in level for item in items if isinstance(item, Mapping | list | tuple)]:
        level = [item.values() if isinstance(item, Mapping) else item for item in level]
        depth += 1
    return depth


#: How many levels below a message or a tool the search for a fault goes. Each level serialises the rest once more.
_MAX_LEVELS = 12
_MAX_KEY_LENGTH = 64  # a longer key is not shown in a path
#: Only inside these fields does the path of a too deeply nested value go on.
_CONTAINERS = ("content", "tool_calls", "function", "tools")


def check_json(value: Any, where: str) -> None:
    """Raise `InvalidRequest` if JSON cannot hold `value`, naming the smallest field that is at fault."""
    fault = _json_fault(value)
    parents: list[Any] = []
    while fault is not None and len(parents) < _MAX_LEVELS and not any(value is parent for parent in parents):
        parents.append(value)
        for key, item in _named_items(value):
            if (inner := _json_fault(item)) is not None:
                where += f".{key}" if isinstance(key, str) else f"[{key}]"
                value, fault = item, inner
                break
        else:
            break
        if fault == _TOO_DEEP and isinstance(key, str) and key not in _CONTAINERS:
            break
    if fault is not None:
        raise InvalidRequest(f"{where} {fault}", param=where)


_TOO_DEEP = "is nested too deeply"


def _json_fault(value: Any) -> str | None:
    """Why JSON cannot hold `value`, as the end of a sentence; None if it can."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        return _TOO_DEEP
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is not valid Unicode"
    except (TypeError, ValueError) as error:
        return f"cannot be JSON: {error}"[:200]
    return None


def _named_items(value: Any) -> Iterable[tuple[str | int, Any]]:
    """The items of a list or object with their index or key, without keys that cannot be shown in a path."""
    if isinstance(value, list | tuple):
        return enumerate(value)
    if isinstance(value, Mapping):
        return [
            (key, item)
            for key, item in value.items()
            if isinstance(key, str) and len(key) <= _MAX_KEY_LENGTH and not _json_fault(key)
        ]
    return ()


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return {**kinds, int: "a number", float: "a number"}.get(type(value), f"a {type(value).__name__}")
