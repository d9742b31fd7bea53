"""The tools and the `tool_choice` of a response, in the shapes of chat completions.

A `namespace` becomes its functions, each with the namespace in front of its name: `crm__search`. Tools that only OpenAI
can run, such as `web_search`, are left out, because clients send them to every server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dovetail.errors import InvalidRequest

#: The beginnings of the types of tools that nobody here can run; some have a date behind them.
_BUILT_IN = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
)
_CALLABLE = ("function", "custom")
_SEPARATOR = "__"


class ClientName(NamedTuple):
    """What the client calls a tool."""

    name: str
    namespace: str | None
    custom: bool


class ResponseTools:
    """The tools of a request.

    `chat` and `choice` are `tools` and `tool_choice` of chat completions. `names` has the client's name for each of
    them. `shown` are the tools that the response lists, `omitted` the fields that were left out, and `fields` the
    client's names for fields, as `FieldNames` has them.

    Raises `InvalidRequest` for what has no shape of a tool; the rest is checked in the shape of chat completions.
    """

    def __init__(self, tools: Any, choice: Any) -> None:
        self.chat: list[dict[str, Any]] = []
        self.names: dict[str, ClientName] = {}
        self.shown: list[dict[str, Any]] = []
        self.omitted: list[str] = []
        self.fields: dict[str, str] = {}
        for i, tool in enumerate(_list(tools, "tools")):
            self._add(tool, f"tools[{i}]")
        self.choice = self._choice(choice)

    def _add(self, tool: Any, where: str) -> None:
        kind = _object(tool, where).get("type")
        if kind in _CALLABLE:
            self._add_callable(tool, where, None)
            self.shown.append(_shown(tool))
        elif kind == "namespace":
            namespace = _text(tool, "name", where)
            for i, inner in enumerate(_list(tool.get("tools"), f"{where}.tools")):
                self._add_callable(inner, f"{where}.tools[{i}]", namespace)
            self.shown.append(tool)
        elif is_built_in(kind):
            self.omitted.append(f"{where}:{kind}")
        else:
            known = "'function', 'custom', 'namespace', or the type of a built-in tool, which is left out"
            raise InvalidRequest(f"{where}.type must be {known}", param=f"{where}.type")

    def _add_callable(self, tool: Any, where: str, namespace: str | None) -> None:
        kind = _object(tool, where).get("type")
        if kind not in _CALLABLE:
            raise InvalidRequest(f"{where}.type must be 'function' or 'custom'", param=f"{where}.type")
        custom = kind == "custom"
        name = _text(tool, "name", where)
        flat = flat_name(name, namespace)
        self.fields[f"tools[{len(self.chat)}]"] = where
        self.fields[f"tools[{len(self.chat)}].{kind}"] = where
        if custom:
            self.fields[f"tools[{len(self.chat)}].custom.format.grammar"] = f"{where}.format"
        self.chat.append(_custom(tool, flat) if custom else _function(tool, flat))
        self.names[flat] = ClientName(name, namespace, custom)

    def _choice(self, choice: Any) -> Any:
        kind = choice.get("type") if isinstance(choice, Mapping) else None
        if kind in _CALLABLE:
            return self._one(choice, "tool_choice")
        if kind == "allowed_tools":
            return self._allowed(choice)
        if is_built_in(kind):
            self.omitted.append(f"tool_choice:{kind}")
            return "auto"
        return choice

    def _one(self, choice: Mapping[str, Any], where: str) -> dict[str, Any]:
        namespace = choice.get("namespace")
        name = flat_name(_text(choice, "name", where), namespace if isinstance(namespace, str) else None)
        return {"type": choice["type"], choice["type"]: {"name": name}}

    def _allowed(self, choice: Mapping[str, Any]) -> Any:
        self.fields["tool_choice.allowed_tools"] = "tool_choice"
        tools: list[dict[str, Any]] = []
        for i, tool in enumerate(_list(choice.get("tools"), "tool_choice.tools")):
            where = f"tool_choice.tools[{i}]"
            kind = _object(tool, where).get("type")
            if kind == "namespace":
                allowed = self._of_namespace(_text(tool, "name", where))
            elif is_built_in(kind):
                self.omitted.append(f"{where}:{kind}")
                continue
            else:
                allowed = [self._one(tool, where) if kind in _CALLABLE else tool]
            for one in allowed:
                self.fields[f"tool_choice.allowed_tools.tools[{len(tools)}]"] = where
                tools.append(one)
        if choice.get("tools") and not tools:
            return "none"  # only tools that nobody here can run
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}

    def _of_namespace(self, namespace: str) -> list[dict[str, Any]]:
        of_it = [(flat, name) for flat, name in self.names.items() if name.namespace == namespace]
        kinds = [("custom" if name.custom else "function", flat) for flat, name in of_it]
        return [{"type": kind, kind: {"name": flat}} for kind, flat in kinds]


def is_built_in(kind: Any) -> bool:
    """Whether `kind` is the type of a tool that only OpenAI can run."""
    return isinstance(kind, str) and kind.startswith(_BUILT_IN)


def flat_name(name: str, namespace: str | None) -> str:
    """The one name under which the model knows a tool."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith(_SEPARATOR) else f"{namespace}{_SEPARATOR}{name}"


def _function(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    parts = {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": {"name": name, **parts}}


def _custom(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    parts = {key: tool[key] for key in ("description", "format") if tool.get(key) is not None}
    shape = parts.get("format")
    if isinstance(shape, Mapping) and shape.get("type") == "grammar":
        grammar = {key: shape[key] for key in ("syntax", "definition") if key in shape}
        parts["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": {"name": name, **parts}}


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as the response lists it: a function has all of its fields."""
    if tool["type"] == "custom":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} must be a list", param=where)
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object", param=where)
    return value


def _text(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value:
        hint = f" (not in {where}.function)" if "function" in item else ""
        raise InvalidRequest(f"{where}.{key} must be a non-empty string{hint}", param=f"{where}.{key}")
    return value
