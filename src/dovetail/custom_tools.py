"""OpenAI's custom tools, whose input is text, and the functions that stand for them in a model's language.

    {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files.",
     "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: …"}}}}

Models are trained on functions, so a format shows and reads a custom tool as a function with one string parameter,
`input`. A call in the history is shown in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dovetail.errors import InvalidRequest

#: The one parameter of the function.
INPUT = "input"
#: Where a custom tool has its grammar.
DEFINITION = "custom.format.grammar.definition"

_SYNTAXES = ("lark", "regex")
_SYNTAX_NAMES = {"lark": "Lark grammar", "regex": "regular expression"}


class InputGrammar(msgspec.Struct, frozen=True):
    """The texts that a custom tool takes, as the client wrote them down."""

    syntax: Literal["lark", "regex"]
    definition: str


def is_custom(tool: Any) -> bool:
    """Whether a tool, a call or a `tool_choice` is about a custom tool."""
    return isinstance(tool, Mapping) and tool.get("type") == "custom"


def declared(tool: Any) -> Any:
    """The part of a tool, or of a call, that has its name: the value of `custom` or of `function`."""
    return tool["custom" if is_custom(tool) else "function"]


def check_custom(tool: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidRequest` naming a field of a custom tool that is missing or has a wrong type."""
    where += ".custom"
    custom: Any = tool.get("custom")
    _check(custom, Mapping, "an object", where)
    _check(custom.get("name"), str, "a non-empty string", f"{where}.name")
    _check(custom.get("description"), str | None, "a string", f"{where}.description")
    shape, where = custom.get("format"), f"{where}.format"
    if shape is None:
        return
    _check(shape, Mapping, "an object", where)
    if shape.get("type") not in ("text", "grammar"):
        raise InvalidRequest(f'{where}.type must be "text" or "grammar"', param=f"{where}.type")
    if shape["type"] == "text":
        return
    where += ".grammar"
    grammar: Any = shape.get("grammar")
    _check(grammar, Mapping, "an object", where)
    if grammar.get("syntax") not in _SYNTAXES:
        raise InvalidRequest(f'{where}.syntax must be "lark" or "regex"', param=f"{where}.syntax")
    _check(grammar.get("definition"), str, "a string", f"{where}.definition")


def input_grammar(tool: Mapping[str, Any]) -> InputGrammar | None:
    """The grammar of a custom tool's input; None if any text is allowed. The tool is well formed."""
    shape = tool["custom"].get("format") or {}
    if shape.get("type") != "grammar":
        return None
    return InputGrammar(shape["grammar"]["syntax"], shape["grammar"]["definition"])


def check_custom_call(call: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidRequest` naming a field of a call in the history that is missing or has a wrong type."""
    where += ".custom"
    custom: Any = call.get("custom")
    _check(custom, Mapping, "an object", where)
    if not isinstance(custom.get("name"), str) or not custom["name"]:
        raise InvalidRequest(f"{where}.name must be a non-empty string", param=f"{where}.name")
    _check(custom.get("input"), str, "a string", f"{where}.input")


def _check(value: Any, kind: Any, words: str, where: str) -> None:
    if not isinstance(value, kind):
        raise InvalidRequest(f"{where} must be {words}", param=where)


def parameters(grammar: InputGrammar | None) -> dict[str, Any]:
    """The JSON Schema of the function's arguments, with the grammar as the model sees it."""
    described = "The whole input of the tool, as plain text."
    if grammar is not None:
        described += f" It must match this {_SYNTAX_NAMES[grammar.syntax]}:\n{grammar.definition}"
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": described}},
        "required": [INPUT],
        "additionalProperties": False,
    }


def as_functions(tools: Any) -> Any:
    """OpenAI's `tools` with functions in place of the custom tools. Tools of a wrong shape stay as they are."""
    if not isinstance(tools, Sequence) or not any(map(is_custom, tools)):
        return tools
    return [_as_function(tool) if is_custom(tool) else tool for tool in tools]


def _as_function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        check_custom(tool, "")
    except InvalidRequest:
        return tool
    custom = tool["custom"]
    described = {"description": custom["description"]} if custom.get("description") is not None else {}
    function = {"name": custom["name"], **described, "parameters": parameters(input_grammar(tool))}
    return {"type": "function", "function": function}


def with_functions(messages: Any) -> Any:
    """A history with calls of functions in place of calls of custom tools, and functions in place of the custom tools
    that its messages declare. What has a wrong shape stays as it is. `messages` are not modified."""
    if not isinstance(messages, Sequence):
        return messages
    return [_with_functions(message) if isinstance(message, Mapping) else message for message in messages]


def _with_functions(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls, tools = message.get("tool_calls"), message.get("tools")
    if isinstance(calls, Sequence) and any(map(is_custom, calls)):
        message = {**message, "tool_calls": [_as_function_call(call) if is_custom(call) else call for call in calls]}
    if (functions := as_functions(tools)) is not tools:
        message = {**message, "tools": functions}
    return message


def _as_function_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        check_custom_call(call, "")
    except InvalidRequest:
        return call
    arguments = json.dumps({INPUT: call["custom"]["input"]}, ensure_ascii=False)
    rest = {key: value for key, value in call.items() if key != "custom"}
    return {**rest, "type": "function", "function": {"name": call["custom"]["name"], "arguments": arguments}}


def choice_as_function(choice: Any) -> Any:
    """OpenAI's `tool_choice` with a function in place of a custom tool."""
    return {"type": "function", "function": choice.get("custom")} if is_custom(choice) else choice
