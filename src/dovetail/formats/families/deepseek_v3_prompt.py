"""Prompts of DeepSeek V3 and V3.1, and what all DeepSeek prompts share.

All system messages become one text at the start. V3.1 is never shown its earlier reasoning. Sources: the chat templates
of DeepSeek-V3-0324 and V3.1, and for V3.1's tools the model's card, which describes them after the system prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from json import JSONEncoder
from typing import Any, NoReturn

from dovetail.errors import InvalidRequest, RenderError
from dovetail.formats.base import Messages
from dovetail.formats.declarations import cached
from dovetail.formats.parts import arguments_json
from dovetail.tokens import Prompt

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, THINK_END = "<think>", "</think>"
SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
RESULTS = ("<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>")
TYPE, FENCE, LANGUAGE = "function", "```", "json"

_RESULTS, _RESULT, _RESULT_END, _RESULTS_END = RESULTS
_HOW_TO_CALL = re.split(
    f"({'|'.join((SECTION, CALL, SEPARATOR, CALL_END, SECTION_END))})",
    f"""
IMPORTANT: ALWAYS adhere to this exact format for tool use:
{SECTION}{CALL}tool_call_name{SEPARATOR}tool_call_arguments{CALL_END}{{{{additional_tool_calls}}}}{SECTION_END}

Where:

- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces
""",
)

#: A value as DeepSeek's templates and encoders print it.
to_json = JSONEncoder(ensure_ascii=False).encode


def v3(messages: Messages, open_turn: bool) -> Prompt:
    """The prompt of V3. It opens the assistant's turn after a user message even if `open_turn` is False."""
    pieces: list[str] = ["", BEGIN]
    text = _system(messages)
    begin_results = True
    last = ""
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            pieces += (text, USER, text_of(message, i), ASSISTANT)
        elif role == "assistant":
            calls = message.get("tool_calls")
            if last == "tool":
                pieces += (text, _RESULTS_END)
                text = ""
            if calls:
                begin_results = True
            add_answer(pieces, text, text_of(message, i), _names_and_arguments(calls), fenced=True)
        elif role == "tool":
            if begin_results:
                pieces += (text, _RESULTS, "", _RESULT)
            else:
                pieces += (text + "\n", _RESULT)
            pieces += (text_of(message, i), _RESULT_END)
            begin_results = False
        elif role == "system":
            continue
        else:
            refuse_role("deepseek_v3", role, i)
        text = ""
        last = role
    if last == "tool":
        pieces += ("", _RESULTS_END)
    elif open_turn and last != "user":
        pieces += (text, ASSISTANT)
        text = ""
    pieces.append(text)
    return Prompt.alternating(pieces)


def v31(messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool) -> Prompt:
    """The prompt of V3.1. After a tool's result it opens no turn, because the model continues its own."""
    pieces: list[str] = ["", BEGIN]
    text = _system(messages)
    if tools:
        before, *pairs, text_after = _HOW_TO_CALL
        pieces += (f"{text}\n\n{_declaration(tools)}{before}", *pairs)
        text = text_after
    last = ""
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            pieces += (text, USER)
            text = text_of(message, i)
        elif role == "assistant":
            calls = message.get("tool_calls")
            content = text_of(message, i)
            if last == "user":
                prefix = thinking and not calls and message.get("prefix")
                pieces += (text, ASSISTANT, "", THINK if prefix else THINK_END)
                text = ""
            if not calls and last != "tool":
                content = content.partition(THINK_END)[2] if THINK_END in content else content
            add_answer(pieces, text, content, _names_and_arguments(calls), fenced=False)
            text = ""
        elif role == "tool":
            pieces += (text, _RESULT, text_of(message, i), _RESULT_END)
            text = ""
        elif role == "system":
            continue
        else:
            refuse_role("deepseek_v31", role, i)
        last = role
    if open_turn and last == "user":
        pieces += (text, ASSISTANT, "", THINK if thinking else THINK_END)
        text = ""
    pieces.append(text)
    return Prompt.alternating(pieces)


def add_answer(pieces: list[str], text: str, content: str, calls: Iterable[tuple[str, str]], *, fenced: bool) -> None:
    """Add `text`, an assistant's content, its calls as names and arguments, and the end of its turn.

    `fenced` writes the arguments as a Markdown code block, as V3 does.
    """
    text += content
    opener = SECTION
    for name, arguments in calls:
        if opener:
            pieces += (text, opener)
            text = opener = ""
        if fenced:
            fenced_arguments = f"\n{FENCE}{LANGUAGE}\n{arguments}\n{FENCE}"
            pieces += (text, CALL, TYPE, SEPARATOR, name + fenced_arguments, CALL_END)
            text = "\n"
        else:
            pieces += (text, CALL, name, SEPARATOR, arguments, CALL_END)
    if not opener:
        pieces += ("", SECTION_END)
        text = ""
    pieces += (text, END)


def text_of(message: Mapping[str, Any], i: int) -> str:
    """The content of `messages[i]` as one text. Raises `InvalidRequest` for a part that is not text."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    check_parts(content, ("text",), i)
    return "".join(part["text"] for part in content or ())


def check_parts(content: Any, types: Sequence[str], i: int) -> None:
    """Raise `InvalidRequest` if `messages[i]` has a part of another type than `types`."""
    for j, part in enumerate(content or ()):
        if part["type"] not in types:
            where = f"messages[{i}].content[{j}]"
            raise InvalidRequest(f"{where}.type must be {' or '.join(types)} for this model", param=f"{where}.type")


def refuse_role(name: str, role: Any, i: int) -> NoReturn:
    raise RenderError(f"{name} has no messages of role {role!r:.80}", param=f"messages[{i}].role")


def _system(messages: Messages) -> str:
    return "\n\n".join(text_of(message, i) for i, message in enumerate(messages) if message["role"] == "system")


def _names_and_arguments(calls: Sequence[Mapping[str, Any]] | None) -> Iterable[tuple[str, str]]:
    for call in calls or ():
        yield call["function"]["name"], arguments_json(call["function"]["arguments"])


@cached
def _declaration(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = ["## Tools\nYou have access to the following tools:\n"]
    for tool in tools:
        function = tool["function"]
        lines.append(f"\n### {function['name']}")
        if function.get("description") is not None:
            lines.append(f"\nDescription: {function['description']}")
        lines.append(f"\n\nParameters: {to_json(function.get('parameters'))}\n")
    return "".join(lines)
