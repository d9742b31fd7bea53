"""Prompts of DeepSeek V4 and V4.1.

Tool results are part of a user turn, in the order of their calls. Only reasoning after the last user turn is kept,
unless tools are declared or `drop_thinking` is false. A user message may have a `task`, whose answer is one word.

Source: DeepSeek's encoders of V4 (DeepSeek-V4-Flash-0731) and V4.1 and their fixtures. They differ from this file in
one point: for a part that is neither text nor an image they write that it is unsupported, and here it is refused. vLLM
0.33 differs too: its V4.1 does not take results as a user turn, while DeepSeek's library (deepseek-recipe 0.2.0) does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.formats.base import Messages
from dovetail.formats.families.deepseek_dsml_prompt import (
    DSML,
    Declaration,
    Tags,
    check_developer,
    named_calls,
    reasoning_of,
    response_format,
)
from dovetail.formats.families.deepseek_v3_prompt import (
    ASSISTANT,
    BEGIN,
    END,
    THINK,
    THINK_END,
    USER,
    check_parts,
    refuse_role,
)
from dovetail.tokens import Prompt

V4_TAGS, V41_TAGS = Tags("tool_calls"), Tags("calls", space=" ")

_SYSTEM, _REMINDER, _IMAGE = "<｜System｜>", "<｜latest_reminder｜>", "<｜deepseek_image｜>"
_PARTS = ("text", "image", "image_url")
_TASKS = {task: f"<｜{task}｜>" for task in ("action", "query", "authority", "domain", "title", "read_url")}
_V4_EFFORTS = {
    "low": "",
    "high": """Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, \
rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, \
and rejected hypothesis to ensure absolutely no assumption is left unchecked.

""",
    "max": """Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the \
problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause \
rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no \
assumption remains unchecked and no error remains undiscovered.

""",
}
_V41_EFFORTS = {"low": 50, "high": 75, "max": 100}


def _declaration(tags: Tags) -> Declaration:
    return Declaration(
        f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{DSML}{tags.section}>" block like the following:

{tags.example("TOOL_NAME", "PARAMETER")}

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside \
{THINK}...{THINK_END} BEFORE any tool calls or final response.

Otherwise, output directly after {THINK_END} with tool calls or final response.

### Available Tool Schemas

""",
        "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n",
    )


class _Turn(msgspec.Struct):
    """One message, or consecutive messages of the user and of tools.

    `role`: the message's role; "user" for a turn of user and tools.
    `message`: the message, or the user's first one; empty in a turn that begins with a tool's result.
    `blocks`: the contents in a turn of user and tools, each with the number of the call that it answers, or None.
    """

    role: str
    message: Mapping[str, Any]
    blocks: list[tuple[int | None, Any]]


class V4:
    """The prompt of V4."""

    name = "deepseek_v4"
    tags = V4_TAGS
    declaration = _declaration(V4_TAGS)
    #: Roles whose messages may have tools and a response format.
    carriers: tuple[str, ...] = ("system", "developer")
    #: The control token before a role's messages. A system message at the start of the conversation has none.
    openers: Mapping[str, str] = MappingProxyType({"user": USER, "developer": USER, "latest_reminder": _REMINDER})

    def effort(self, value: Any) -> str:
        """The text that requests a reasoning effort. Raises `InvalidRequest` for an unknown effort."""
        if value is None:
            return _V4_EFFORTS["low"]
        if not isinstance(value, str) or value not in _V4_EFFORTS:
            raise _unknown_effort(self.name, value, "low, high or max")
        return _V4_EFFORTS[value]

    def prompt(
        self, messages: Messages, shift: int, effort: str, *, thinking: bool, drop_thinking: bool, open_turn: bool
    ) -> Prompt:
        """The prompt for messages.

        `shift`: how many messages at the start were added by `with_request` and are not the client's.
        `effort`: the result of `effort`.
        """
        turns = self._turns(messages, shift)
        last = self._last_prompting(turns)
        drop = drop_thinking and not any(message.get("tools") for message in messages)
        if thinking and drop:
            # Earlier developer messages are dropped together with the reasoning.
            turns = [turn for i, turn in enumerate(turns) if i >= last or turn.role != "developer"]
            last = self._last_prompting(turns)
        pieces: list[str] = ["", BEGIN]
        text = self._begin(pieces, turns, effort if thinking else "")
        task = None
        for i, turn in enumerate(turns):
            role, message = turn.role, turn.message
            if role == "assistant":
                if thinking and task is None and (i > last or not drop):
                    pieces += (text + reasoning_of(message), THINK_END)
                    text = ""
            elif (opener := self.openers.get(role)) and (i or role != "system"):
                pieces += (text, opener)
                text = ""
            content = _turn_pieces(turn.blocks) if role == "user" else _content_pieces(message.get("content"))
            text = _extended(pieces, text, content)
            if role == "assistant":
                if calls := message.get("tool_calls"):
                    text = self.tags.add_calls(pieces, text, named_calls(calls))
                pieces += (text, END)
                text = ""
            elif role in self.carriers:
                if tools := message.get("tools"):
                    text = self.declaration.add(pieces, text, tools)
                if requested := message.get("response_format"):
                    text += response_format(requested)
            task = message.get("task")
            following = turns[i + 1].role if i + 1 < len(turns) else "assistant" if open_turn else None
            if following not in ("assistant", "latest_reminder"):
                continue
            if task is not None and task != "action":
                pieces += (text, _TASKS[task])
                text = ""
            elif task is not None or self._prompts_answer(role, i):
                think = thinking and (task is not None or i >= last or not drop)
                pieces += (text, ASSISTANT, "", THINK if think else THINK_END)
                text = ""
                if task is not None:
                    pieces += ("", _TASKS[task])
        pieces.append(text)
        return Prompt.alternating(pieces)

    def _turns(self, messages: Messages, shift: int) -> list[_Turn]:
        turns: list[_Turn] = []
        numbers: dict[str, int] = {}
        for i, message in enumerate(messages, -shift):
            role, content, task = message["role"], message.get("content"), message.get("task")
            if not isinstance(content, str):
                check_parts(content, _PARTS, i)
            if task is not None and (not isinstance(task, str) or task not in _TASKS):
                raise InvalidRequest(
                    f"messages[{i}].task must be one of {', '.join(_TASKS)}, not {task!r:.80}",
                    param=f"messages[{i}].task",
                )
            if role in ("user", "tool"):
                is_result = role == "tool"
                # A result of an unknown call is placed like a result of the first call.
                number = numbers.get(message.get("tool_call_id") or "", 0) if is_result else None
                block = (number, content)
                if turns and turns[-1].role == "user" and (is_result or turns[-1].message.get("task") is None):
                    turns[-1].blocks.append(block)
                else:
                    turns.append(_Turn("user", {} if is_result else message, [block]))
                continue
            if role not in ("assistant", "latest_reminder", *self.carriers):
                refuse_role(self.name, role, i)
            if role == "developer":
                check_developer(content, i)
            elif role == "assistant" and (calls := message.get("tool_calls")):
                numbers = {call["id"]: number for number, call in enumerate(calls) if call.get("id")}
            turns.append(_Turn(role, message, []))
        return turns

    def _prompts_answer(self, role: str, i: int) -> bool:
        """Whether the assistant answers turn number `i`, which has that role."""
        return role in ("user", "developer")

    def _last_prompting(self, turns: Sequence[_Turn]) -> int:
        return next((i for i in range(len(turns) - 1, -1, -1) if self._prompts_answer(turns[i].role, i)), -1)

    def _begin(self, pieces: list[str], turns: Sequence[_Turn], effort: str) -> str:
        return effort if turns else ""


class V41(V4):
    """The prompt of V4.1. The assistant answers a system message after the first turn; there is no developer role."""

    name = "deepseek_v41"
    tags = V41_TAGS
    declaration = _declaration(V41_TAGS)
    carriers = ("system",)
    openers = MappingProxyType({"user": USER, "system": _SYSTEM, "latest_reminder": _REMINDER})

    def effort(self, value: Any) -> str:
        if isinstance(value, str) and value in _V41_EFFORTS:
            value = _V41_EFFORTS[value]
        if value is None:
            value = _V41_EFFORTS["high"]
        if type(value) is not int or not 1 <= value <= 100:
            raise _unknown_effort(self.name, value, "low, high, max or a number from 1 to 100")
        return f"Reasoning Effort: {value} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"

    def _prompts_answer(self, role: str, i: int) -> bool:
        return role == "user" or (role == "system" and i > 0)

    def _begin(self, pieces: list[str], turns: Sequence[_Turn], effort: str) -> str:
        if turns and (effort or turns[0].role == "system"):
            pieces += ("", _SYSTEM)
        return super()._begin(pieces, turns, effort)


def _unknown_effort(name: str, value: Any, known: str) -> InvalidRequest:
    return InvalidRequest(
        f"reasoning_effort of {name} is {known}, not {value!r:.80}", param="chat_template_kwargs.reasoning_effort"
    )


def _extended(pieces: list[str], text: str, content: Sequence[str]) -> str:
    """Add `text` and `content` (a text, a control token, a text, …) except the last text, which is returned."""
    if len(content) == 1:
        return text + content[0]
    pieces += (text + content[0], *content[1:-1])
    return content[-1]


def _turn_pieces(blocks: Sequence[tuple[int | None, Any]]) -> list[str]:
    """The contents of a turn, as `_content_pieces` returns one. The results are sorted by their calls."""
    results = [block for block in blocks if block[0] is not None]
    if len(results) > 1:
        results.sort(key=lambda block: block[0] or 0)
    ordered = iter(results)
    pieces: list[str] = []
    text = ""
    for j, (number, content) in enumerate(blocks):
        if j:
            text += "\n\n"
        if number is not None:
            text += "<tool_result>"
            _, content = next(ordered)
        text = _extended(pieces, text, _content_pieces(content))
        if number is not None:
            text += "</tool_result>"
    return [*pieces, text]


def _content_pieces(content: Any) -> list[str]:
    """A content as a text, a control token, a text and so on. Its parts are paragraphs."""
    if isinstance(content, str):
        return [content]
    pieces: list[str] = []
    text = ""
    for j, part in enumerate(content or ()):
        if j:
            text += "\n\n"
        if part["type"] == "text":
            text += part["text"]
        else:
            pieces += (text, _IMAGE)
            text = ""
    return [*pieces, text]
