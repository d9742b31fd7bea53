"""The pieces of Kimi K3's prompts and answers, which are written in XTML, as flat lists for `Prompt.alternating`.

A `CUT` makes the tokenizer encode the texts on both sides separately. As in Moonshot's encoder (`encoding_k3`), there
is one around each attribute's value and between the parts of a content. docs/decisions/0009 says which revision of the
encoder this follows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.conversation import check_tool_types
from dovetail.errors import InvalidRequest, RenderError
from dovetail.formats.declarations import cached, sorted_json
from dovetail.formats.parts import text_of
from dovetail.reading.parameters import members
from dovetail.tokens import CUT, PicturePlace

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
PICTURE = "<|media_pad|>"
_CLOSE_MESSAGE = (CLOSE, "message", SEP, "", END)

#: The type of a JSON value that is not a string, by its first character. Any other character begins a number.
_TYPE_OF = {"t": "boolean", "f": "boolean", "n": "null", "{": "object", "[": "array"}

#: A call's arguments: the key, the value and whether it is a string of each; or a text that is not a JSON object.
Arguments = Iterable[tuple[str, str, bool]] | str


def add_messages(pieces: list[str], messages: Sequence[Mapping[str, Any]], thinking: bool) -> None:
    calls: Sequence[Mapping[str, Any]] = ()
    position: Mapping[str, int] | None = None  # call id -> its index in `calls`, built for the first result
    results = i = 0  # `results` counts those since the last assistant message
    while i < len(messages):
        message = messages[i]
        role, name = message["role"], message.get("name")
        if role == "tool":
            end = i + 1
            while end < len(messages) and messages[end]["role"] == "tool":
                end += 1
            if position is None:
                position = _positions(calls)
            _add_results(pieces, messages[i:end], calls, position, results, i)
            results += end - i
            i = end
            continue
        if role == "assistant":
            calls, position, results = message.get("tool_calls") or (), None, 0
            made = [(call["function"]["name"], _arguments(call["function"].get("arguments"))) for call in calls]
            open_answer(pieces, thinking, name)
            add_answer(pieces, _reasoning(message, i) if thinking else None, message.get("content"), made, i)
        elif role == "user":
            _add_message(pieces, "user", name, message.get("content"), i)
        elif role not in ("system", "developer"):
            raise ValueError(f"unknown role: messages[{i}]")
        elif tools := message.get("tools"):
            check_tool_types(tools, f"messages[{i}].tools")
            _add_system(pieces, "tool-declare", _declared_later(tools))
        else:
            _add_message(pieces, "system", name, message.get("content"), i)
        i += 1


def _add_message(pieces: list[str], role: str, name: Any, content: Any, i: int) -> None:
    _open_message(pieces, role, name)
    _add_content(pieces, content, i)
    pieces += _CLOSE_MESSAGE


def _open_message(pieces: list[str], role: str, name: Any) -> None:
    if name:
        pieces += ("", OPEN, f'message role="{role}" name="', CUT, escaped(name), CUT, '"', SEP)
    else:
        pieces += ("", OPEN, f'message role="{role}"', SEP)


def _add_content(pieces: list[str], content: Any, i: int) -> None:
    """Add the content of message number `i`, ending in a text, so that a control token may follow."""
    if isinstance(content, str):
        pieces.append(content)
        return
    if not isinstance(content, Sequence | None):
        raise TypeError(f"neither text nor parts: messages[{i}]")
    for j, part in enumerate(content or ()):
        if part["type"] in ("image", "image_url"):
            pieces += ("", PicturePlace(PICTURE, part))
        else:
            pieces += (text_of(part, i, j), CUT)
    pieces.append("")


def _reasoning(message: Mapping[str, Any], i: int) -> str:
    for field in ("reasoning_content", "reasoning"):
        if reasoning := message.get(field):
            if not isinstance(reasoning, str):
                where = f"messages[{i}].{field}"
                raise InvalidRequest(f"{where} must be a string", param=where)
            return reasoning
    return ""


# -- answers, in a history and as the model writes them --------------------------------------------------------------


def open_answer(pieces: list[str], thinking: bool, name: Any = None) -> None:
    """Begin an assistant message: everything up to the text of its first block."""
    _open_message(pieces, "assistant", name)
    pieces += ("", OPEN, "think" if thinking else "response", SEP)


def add_answer(
    pieces: list[str], reasoning: str | None, content: Any, calls: Sequence[tuple[str, Arguments]], i: int = 0
) -> None:
    """Add the rest of an assistant message after `open_answer`. `reasoning` is None if no block is open for it."""
    if reasoning is not None:
        pieces += (reasoning, CLOSE, "think", SEP, "", OPEN, "response", SEP)
    _add_content(pieces, content, i)
    pieces += (CLOSE, "response", SEP)
    if calls:
        pieces += ("", OPEN, "tools", SEP)
        for index, (name, arguments) in enumerate(calls, start=1):
            pieces += ("", OPEN, 'call tool="', CUT, escaped(name), CUT, f'" index="{index}"', SEP)
            _add_arguments(pieces, arguments)
            pieces += ("", CLOSE, "call", SEP)
        pieces += ("", CLOSE, "tools", SEP)
    pieces += ("", *_CLOSE_MESSAGE)


def _add_arguments(pieces: list[str], arguments: Arguments) -> None:
    if isinstance(arguments, str):
        pieces += ("", OPEN, 'json type="object"', SEP, arguments, CLOSE, "json", SEP)
        return
    for key, value, is_string in arguments:
        kind = "string" if is_string else _TYPE_OF.get(value[0], "number")
        pieces += ("", OPEN, 'argument key="', CUT, escaped(key), CUT, f'" type="{kind}"', SEP)
        pieces += (value, CLOSE, "argument", SEP)


def _arguments(arguments: Any) -> Arguments:
    """The arguments of a call in a history. The values in JSON text keep their spelling."""
    if isinstance(arguments, str):
        try:
            return list(members(arguments)) if arguments else ()
        except (ValueError, RecursionError):
            return arguments
    if not isinstance(arguments, Mapping | None):
        raise TypeError("arguments are a JSON string or an object")
    return [
        (key, value, True) if isinstance(value, str) else (key, json.dumps(value, ensure_ascii=False), False)
        for key, value in (arguments or {}).items()
    ]


def _positions(calls: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    position: dict[str, int] = {}
    for at, call in enumerate(calls):
        position.setdefault(call["id"], at)
    if not all(isinstance(call_id, str) for call_id in position):
        raise TypeError("ids are strings")
    return position


def _add_results(
    pieces: list[str],
    run: Sequence[Mapping[str, Any]],
    calls: Sequence[Mapping[str, Any]],
    position: Mapping[str, int],
    before: int,
    first: int,
) -> None:
    """Add consecutive results (`run`), in the order of the calls and with their names if each result answers a call.

    Otherwise the results keep their order. `before` is how many results of these calls came earlier, and `first` is the
    index of the first message of the run.
    """
    ids = [result["tool_call_id"] for result in run]
    if not all(isinstance(call_id, str) for call_id in ids):
        raise TypeError("ids are strings")
    order: Sequence[int] = range(len(run))
    answers = all(call_id in position for call_id in ids)
    if answers:
        order = sorted(order, key=lambda i: position[ids[i]])
    for index, i in enumerate(order, start=before + 1):
        if answers:
            name = calls[position[ids[i]]]["function"]["name"]
        else:
            name = _name_of_result(run[i], calls[index - 1 : index], first + i)
        pieces += ("", OPEN, 'message role="tool" tool="', CUT, escaped(name), CUT, f'" index="{index}"', SEP)
        _add_content(pieces, run[i].get("content"), first + i)
        pieces += _CLOSE_MESSAGE


def _name_of_result(result: Mapping[str, Any], call_in_place: Sequence[Mapping[str, Any]], i: int) -> Any:
    """The tool's name of a result: the message's own, or from the call with the same number, if there is one."""
    name = result.get("tool", result.get("name"))
    if name is None and call_in_place:
        name = call_in_place[0]["function"]["name"]
    if name is None:
        where = f"messages[{i}]"
        problem = f"{where} answers no call of the message before it and has no `name`, which Kimi K3 needs"
        raise RenderError(problem, param=f"{where}.tool_call_id")
    return name


# -- system messages for the request's settings ------------------------------------------------------------------------

_EFFORTS = ("low", "high", "max")
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort={}`."
)
_CHOICE = {
    "required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
_FORMAT = (
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
)


def add_tools(pieces: list[str], tools: Sequence[Mapping[str, Any]]) -> None:
    if tools:
        _add_system(pieces, "tool-declare", _declared(tools))


def add_effort(pieces: list[str], effort: Any) -> None:
    if effort in _EFFORTS:
        _add_system(pieces, "thinking-effort", _EFFORT.format(effort))
    elif effort is not None:
        _refuse("thinking_effort", '"low", "high", "max" or null')


def add_tool_choice(pieces: list[str], choice: Any) -> None:
    """A choice of one function adds nothing: the grammar makes the model call it."""
    if isinstance(choice, str) and choice in _CHOICE:
        _add_system(pieces, "tool-choice", _CHOICE[choice])
    elif choice not in (None, "auto") and not isinstance(choice, Mapping):
        _refuse("tool_choice", '"auto", "none", "required", a function or null')


def refuse_after_last(options: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for options that add a message after the last one, if the last one is to be continued."""
    for option, add in (("tool_choice", add_tool_choice), ("response_format", add_response_format)):
        added: list[str] = []
        add(added, options.get(option))
        if added:
            raise InvalidRequest(
                f"{option} adds a message after the last one, which continue_final_message leaves open",
                param=f"chat_template_kwargs.{option}",
            )


def add_response_format(pieces: list[str], requested: Any) -> None:
    kind = requested.get("type") if isinstance(requested, Mapping) else requested
    if kind == "json_object":
        _add_system(pieces, "response-format", _FORMAT.format(kind))
    elif kind == "json_schema" and (schema := _schema(requested)):
        _add_system(
            pieces,
            "response-format",
            f"{_FORMAT.format(kind)}\nThe JSON data must match the following schema:\n```json\n{schema}\n```",
        )
    elif requested is not None and kind != "text":
        _refuse("response_format", "of type text, json_object, or json_schema with the schema in it, or null")


def _schema(requested: Any) -> str | None:
    holder = requested.get("json_schema") if isinstance(requested, Mapping) else None
    if not isinstance(holder, Mapping):
        return None
    schema = holder.get("schema", holder.get("json_schema", holder))
    try:
        text = sorted_json(schema)
        text.encode()
    except (RecursionError, TypeError, ValueError):
        return None
    return text if isinstance(schema, Mapping) else None


def _add_system(pieces: list[str], kind: str, text: str) -> None:
    pieces += ("", OPEN, f'message role="system" type="{kind}"', SEP, text, *_CLOSE_MESSAGE)


def _refuse(option: str, allowed: str) -> None:
    where = f"chat_template_kwargs.{option}"
    raise InvalidRequest(f"{where} must be {allowed}", param=where)


@cached
def _declared(tools: Sequence[Mapping[str, Any]]) -> str:
    return f"# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{sorted_json(tools)}\n```"


@cached
def _declared_later(tools: Sequence[Mapping[str, Any]]) -> str:
    return (
        "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
        "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n"
        f"```json\n{sorted_json(tools)}\n```"
    )


def escaped(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")
