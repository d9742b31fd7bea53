"""What Kimi K3's prompts and answers are made of: XTML, as flat lists for `Prompt.alternating`.

The value of an attribute is encoded apart from the words of its tag, and each part of a content apart from the next,
as Moonshot's encoder does it (`encoding_k3`): hence the cuts. Which of its revisions this follows:
docs/decisions/0009.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.conversation import check_tool_types
from dovetail.errors import InvalidRequest, RenderError
from dovetail.formats.declarations import remembered, sorted_json
from dovetail.formats.parts import text_of
from dovetail.reading.parameters import members
from dovetail.tokens import CUT

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
_IMAGE = "<|media_pad|>"
_CLOSE_MESSAGE = (CLOSE, "message", SEP, "", END)

#: The type of a JSON value that is no string, by its first character; any other is a number's.
_TYPE_OF = {"t": "boolean", "f": "boolean", "n": "null", "{": "object", "[": "array"}

#: Of each argument of a call the key, the value, and whether that is a string. Or a text that spells no object.
Arguments = Iterable[tuple[str, str, bool]] | str


def add_messages(pieces: list[str], messages: Sequence[Mapping[str, Any]], thinking: bool) -> None:
    calls: Sequence[Mapping[str, Any]] = ()
    position: Mapping[str, int] | None = None  # of the calls, by id, once there is a result
    results = i = 0  # results: since the last message of the assistant's
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
            raise ValueError(f"no such role: messages[{i}]")
        elif tools := message.get("tools"):
            check_tool_types(tools, f"messages[{i}].tools")
            _tell(pieces, "tool-declare", _declared_later(tools))
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
    """Content of message number `i`, up to a text that the next control token follows."""
    if isinstance(content, str):
        pieces.append(content)
        return
    if not isinstance(content, Sequence | None):
        raise TypeError(f"no text and no parts: messages[{i}]")
    for j, part in enumerate(content or ()):
        if part["type"] in ("image", "image_url"):
            pieces += ("", _IMAGE)
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
    """An assistant's message up to the text in its first block."""
    _open_message(pieces, "assistant", name)
    pieces += ("", OPEN, "think" if thinking else "response", SEP)


def add_answer(
    pieces: list[str], reasoning: str | None, content: Any, calls: Sequence[tuple[str, Arguments]], i: int = 0
) -> None:
    """What follows `open_answer`, to the end of the message. `reasoning` is None where no block is open for it."""
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


def _arguments(given: Any) -> Arguments:
    """The arguments of a call in a history. A string's values stay as they are written in it."""
    if isinstance(given, str):
        try:
            return list(members(given)) if given else ()
        except (ValueError, RecursionError):
            return given
    if not isinstance(given, Mapping | None):
        raise TypeError("arguments are a JSON string or an object")
    return [
        (key, value, True) if isinstance(value, str) else (key, json.dumps(value, ensure_ascii=False), False)
        for key, value in (given or {}).items()
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
    """Results in a row: in the order of the calls and with their names, if each answers one; else as they come.

    `before` is how many results came after these calls already; the run begins at message number `first`.
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


def _name_of_result(result: Mapping[str, Any], asked: Sequence[Mapping[str, Any]], i: int) -> Any:
    """Its own, or that of the call in its place, if there is one."""
    name = result.get("tool", result.get("name"))
    if name is None and asked:
        name = asked[0]["function"]["name"]
    if name is None:
        where = f"messages[{i}]"
        complaint = f"{where} answers no call of the message before it, and has no `name`: Kimi K3 is told the tool's"
        raise RenderError(complaint, param=f"{where}.tool_call_id")
    return name


# -- what the model is told beside the messages ------------------------------------------------------------------------

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
        _tell(pieces, "tool-declare", _declared(tools))


def add_effort(pieces: list[str], effort: Any) -> None:
    if effort in _EFFORTS:
        _tell(pieces, "thinking-effort", _EFFORT.format(effort))
    elif effort is not None:
        _refuse("thinking_effort", '"low", "high", "max" or null')


def add_tool_choice(pieces: list[str], choice: Any) -> None:
    """Nothing for one function: that the model calls it is up to a grammar."""
    if isinstance(choice, str) and choice in _CHOICE:
        _tell(pieces, "tool-choice", _CHOICE[choice])
    elif choice not in (None, "auto") and not isinstance(choice, Mapping):
        _refuse("tool_choice", '"auto", "none", "required", a function or null')


def refuse_behind_last(options: Mapping[str, Any]) -> None:
    """For a prompt that ends inside the last message: raises `InvalidRequest` for options that are told behind it."""
    for option, add in (("tool_choice", add_tool_choice), ("response_format", add_response_format)):
        told: list[str] = []
        add(told, options.get(option))
        if told:
            raise InvalidRequest(
                f"the model is told of {option} behind the last message, which continue_final_message leaves open",
                param=f"chat_template_kwargs.{option}",
            )


def add_response_format(pieces: list[str], wanted: Any) -> None:
    kind = wanted.get("type") if isinstance(wanted, Mapping) else wanted
    if kind == "json_object":
        _tell(pieces, "response-format", _FORMAT.format(kind))
    elif kind == "json_schema" and (schema := _schema(wanted)):
        _tell(
            pieces,
            "response-format",
            f"{_FORMAT.format(kind)}\nThe JSON data must match the following schema:\n```json\n{schema}\n```",
        )
    elif wanted is not None and kind != "text":
        _refuse("response_format", "of type text, json_object, or json_schema with the schema in it, or null")


def _schema(wanted: Any) -> str | None:
    holder = wanted.get("json_schema") if isinstance(wanted, Mapping) else None
    if not isinstance(holder, Mapping):
        return None
    schema = holder.get("schema", holder.get("json_schema", holder))
    try:
        written = sorted_json(schema)
        written.encode()
    except (RecursionError, TypeError, ValueError):
        return None
    return written if isinstance(schema, Mapping) else None


def _tell(pieces: list[str], kind: str, text: str) -> None:
    pieces += ("", OPEN, f'message role="system" type="{kind}"', SEP, text, *_CLOSE_MESSAGE)


def _refuse(option: str, wanted: str) -> None:
    where = f"chat_template_kwargs.{option}"
    raise InvalidRequest(f"{where} must be {wanted}", param=where)


@remembered
def _declared(tools: Sequence[Mapping[str, Any]]) -> str:
    return f"# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{sorted_json(tools)}\n```"


@remembered
def _declared_later(tools: Sequence[Mapping[str, Any]]) -> str:
    return (
        "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
        "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n"
        f"```json\n{sorted_json(tools)}\n```"
    )


def escaped(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")
