"""The pieces of prompts and answers of the Kimi K2 family, as flat lists for `Prompt.alternating`.

K2 and K2-Thinking declare tools as JSON and add a system message if there is none; K2.5 declares tools as TypeScript.
docs/decisions/0009 says which of the published templates this follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.formats import typescript
from dovetail.formats.declarations import cached, sorted_json
from dovetail.formats.parts import arguments_json, text_of

THINK, THINK_END = "<think>", "</think>"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
MIDDLE, END = "<|im_middle|>", "<|im_end|>"
_USER, _ASSISTANT, _SYSTEM = "<|im_user|>", "<|im_assistant|>", "<|im_system|>"

#: The beginning of the model's turn.
OPENING = ("", _ASSISTANT, "assistant", MIDDLE)
#: The end of a turn with calls.
AFTER_CALLS = ("", SECTION_END, "", END)
DEFAULT_SYSTEM = ("", _SYSTEM, "system", MIDDLE, "You are Kimi, an AI assistant created by Moonshot AI.", END)

_IMAGE = ("<|media_begin|>", "image", "<|media_content|>", "", "<|media_pad|>", "", "<|media_end|>")
#: K2 cannot see images. Its template writes this, which is ordinary text to its tokenizer.
_IMAGE_IN_WORDS = "<|media_start|>image<|media_content|><|media_pad|><|media_end|>\n"
_VIDEO_IN_WORDS = "<|kimi_k25_video_placeholder|>\n"

#: Adds a content of parts to the pieces, given the text before it, the control token after it, and the message's index.
AddParts = Callable[[list[str], Sequence[Mapping[str, Any]], str, str, int], None]


def tools_as_json(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tool declaration of K2 and K2-Thinking; empty without tools."""
    return _declared(_json(tools)) if tools else []


def tools_as_typescript(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tool declaration of K2.5, as JSON if the schemas have no TypeScript form; empty without tools."""
    return _declared(_typescript(tools)) if tools else []


def _declared(text: str) -> list[str]:
    return ["", _SYSTEM, "tool_declare", MIDDLE, text, END]


_json = cached(sorted_json)


@cached
def _typescript(tools: Sequence[Mapping[str, Any]]) -> str:
    try:
        if declared := typescript.declare(tools):
            return declared
    except typescript.Undeclarable:
        pass
    return sorted_json(tools)


def after_last_answer(messages: Sequence[Mapping[str, Any]]) -> int:
    """The index after the last assistant message without calls. Reasoning is kept from there on."""
    for i in range(len(messages) - 1, -1, -1):
        if messages[i]["role"] == "assistant" and not messages[i].get("tool_calls"):
            return i + 1
    return 0


def add_turns(
    pieces: list[str], messages: Sequence[Mapping[str, Any]], reasoned: int | None, add_parts: AddParts
) -> None:
    """Add every message. Reasoning blocks before message number `reasoned` are empty; None: there are no blocks."""
    for i, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        name = message.get("name") or role
        before, after, calls = "", END, None
        if role == "assistant":
            pieces += ("", _ASSISTANT, name, MIDDLE)
            if reasoned is not None:
                reasoning = message.get("reasoning_content", "") if i >= reasoned else ""
                # The template prints null as "None". `repair` removes it before.
                pieces += ("", THINK, "None" if reasoning is None else reasoning, THINK_END)
            if calls := message.get("tool_calls"):
                after = SECTION
        elif role == "tool":
            pieces += ("", _SYSTEM, name, MIDDLE)
            before = "## Return of " + message["tool_call_id"] + "\n"
        elif role == "user":
            pieces += ("", _USER, name, MIDDLE)
        elif role in ("system", "developer"):
            pieces += ("", _SYSTEM, name, MIDDLE)
        else:
            raise ValueError(f"unknown role: messages[{i}]")
        if isinstance(content, str):
            pieces += (before + content, after)
        elif content is None:
            pieces += (before, after)
        elif isinstance(content, Sequence):
            add_parts(pieces, content, before, after, i)
        else:
            raise TypeError(f"neither text nor parts: messages[{i}]")
        if calls:
            for call in calls:
                arguments = call["function"]["arguments"]
                pieces += in_calls(call["id"], arguments if isinstance(arguments, str) else arguments_json(arguments))
            pieces += AFTER_CALLS


def in_calls(call_id: str, arguments: str) -> tuple[str, ...]:
    """One call, inside the section of calls."""
    return ("", CALL, call_id, ARGUMENTS, arguments, CALL_END)


def add_text_parts(pieces: list[str], parts: Sequence[Mapping[str, Any]], before: str, after: str, i: int) -> None:
    """The `AddParts` of K2 and K2-Thinking, where an image is text."""
    for j, part in enumerate(parts):
        if part["type"] == "image" or "image" in part or "image_url" in part:
            before += _IMAGE_IN_WORDS
        else:
            before += text_of(part, i, j)
    pieces += (before, after)


def add_media_parts(pieces: list[str], parts: Sequence[Mapping[str, Any]], before: str, after: str, i: int) -> None:
    """The `AddParts` of K2.5, where an image is control tokens."""
    for j, part in enumerate(parts):
        if part["type"] in ("image", "image_url"):
            pieces += (before, *_IMAGE)
            before = "\n"
        elif part["type"] in ("video", "video_url"):
            before += _VIDEO_IN_WORDS
        else:
            before += text_of(part, i, j)
    pieces += (before, after)
