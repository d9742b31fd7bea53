"""Inkling's prompts: typed blocks, `<|message_user|><|content_text|>…<|end_message|>`. Engines write them in code.

The tools come first, as JSON with sorted keys, and the level of effort comes before the first message that is not the
system's. Sources: Thinking Machines' `tml-renderers`, and the renderers of vLLM and SGLang. (Where these differ in the
place of the tools, it is vLLM's, and the level 0 is written as by `tml-renderers`.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.errors import InvalidRequest
from dovetail.formats.declarations import Tools, cached, sorted_json
from dovetail.formats.families.deepseek_dsml_prompt import arguments_object
from dovetail.formats.families.deepseek_v3_prompt import refuse_role, text_of
from dovetail.tokens import Prompt

MODEL, USER, SYSTEM, TOOL = "<|message_model|>", "<|message_user|>", "<|message_system|>", "<|message_tool|>"
TEXT, THINK, CALL, XML = "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>", "<|content_xml|>"
#: The name of `<|content_xml|>` in tokenizers that name only some of their tokens.
UNNAMED_XML = "<|unused_200024|>"
#: The end of a block, and of a turn.
END, END_OF_TURN = "<|end_message|>", "<|content_model_end_sampling|>"

#: The levels of effort that have names.
EFFORTS: Mapping[str, float] = {"minimal": 0.1, "low": 0.2, "medium": 0.7, "high": 0.9, "xhigh": 0.99, "max": 0.99}
_ROLES = {"user": USER, "system": SYSTEM, "developer": SYSTEM, "assistant": MODEL}
_MOST_EFFORT = 0.99


def level(effort: Any, thinking: bool) -> float:
    """The level of effort that `effort`, a name or a number, asks for. Raises `InvalidRequest` for another."""
    if effort is None:
        return EFFORTS["high"] if thinking else 0.0
    value = EFFORTS.get(effort) if isinstance(effort, str) else effort
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_EFFORT:
        raise InvalidRequest(
            f"reasoning_effort of inkling is {', '.join(EFFORTS)} or a number from 0 to {_MOST_EFFORT}, "
            f"not {effort!r:.80}",
            param="chat_template_kwargs.reasoning_effort",
        )
    return value


def prompt(messages: Sequence[Mapping[str, Any]], tools: Tools, xml: str, effort: float, open_turn: bool) -> Prompt:
    """`xml`: the control token before declared tools."""
    pieces: list[str] = []
    if tools:
        pieces += ("", SYSTEM, "tool_declare", xml, _declared(tools), END)
    digits = f"{effort:.2f}".rstrip("0").rstrip(".")
    wish: tuple[str, ...] = ("", SYSTEM, "", TEXT, f"Thinking effort level: {digits}", END)
    names: dict[str, str] = {}
    for i, message in enumerate(messages):
        role = message["role"]
        if role not in ("system", "developer"):
            pieces, wish = [*pieces, *wish], ()
        if role == "tool":
            name = message.get("name") or names.get(message.get("tool_call_id", ""), "")
            pieces += ("", TOOL, name, TEXT, text_of(message, i), END)
        elif role not in _ROLES:
            refuse_role("inkling", role, i)
        elif role == "assistant":
            _add_answer(pieces, message, text_of(message, i), names)
        else:
            pieces += ("", _ROLES[role], "", TEXT, text_of(message, i), END)
    pieces += wish
    return Prompt.alternating([*pieces, "", MODEL] if open_turn else pieces)


def _add_answer(pieces: list[str], message: Mapping[str, Any], content: str, names: dict[str, str]) -> None:
    """Add the blocks of an answer. `names` gets the name of each call by its id."""
    reasoning = message.get("reasoning_content")
    calls = message.get("tool_calls") or ()
    if reasoning:
        pieces += ("", MODEL, "", THINK, reasoning, END)
    if content or not (calls or reasoning):
        pieces += ("", MODEL, "", TEXT, content, END)
    for call in calls:
        name = call["function"]["name"]
        names[call.get("id", "")] = name
        arguments = sorted_json(arguments_object(call["function"]["arguments"] or {}))
        written = f'{{"name":{json.dumps(name, ensure_ascii=False)},"args":{arguments}}}'
        pieces += ("", MODEL, name, CALL, written, END)
    pieces += ("", END_OF_TURN)


@cached
def _declared(tools: Tools) -> str:
    functions = ((tool.get("type") or "function", tool["function"]) for tool in tools)
    return sorted_json(
        [
            {
                "type": kind,
                "name": function["name"],
                "description": function.get("description") or "",
                "parameters": function.get("parameters") or {},
            }
            for kind, function in functions
        ]
    )
