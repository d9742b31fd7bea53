"""`continue_final_message`: a prompt that ends inside the last message, so that the model continues that message.

The last message is rendered with a mark at its end, and the prompt is cut at the mark. So no format needs code for it.
transformers searches the prompt for the message's text instead, which fails if the text is empty or occurs twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.errors import InvalidRequest, RenderError
from dovetail.tokens import Prompt

#: Noncharacters, which Unicode reserves for internal use. A client that sends them shortens its own prompt only.
_MARK = "\ufdd0\ufdef\ufdd0"


def marked(messages: Any, reasoning_field: str) -> tuple[list[Any], str, str]:
    """Return the messages with a mark at the end of the last one's text, the mark, and the whitespace after the mark.

    The text is the content. If there is only reasoning, it is the text in `reasoning_field`. Raises `InvalidRequest` if
    the last message cannot be continued.
    """
    if not isinstance(messages, Sequence) or not messages:
        raise InvalidRequest("continue_final_message needs a message to continue", param="messages")
    *before, last = messages
    where = f"messages[{len(before)}]"
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        raise InvalidRequest(f"continue_final_message continues an assistant message, unlike {where}", param=where)
    if last.get("tool_calls"):
        raise InvalidRequest(f"{where} makes tool calls, so it cannot be continued", param=f"{where}.tool_calls")
    content = last.get("content")
    if isinstance(content, list) and content:
        *parts, part = content
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}.content does not end in text", param=f"{where}.content")
        text, whitespace = _marked(part["text"])
        return [*before, {**last, "content": [*parts, {**part, "text": text}]}], _MARK, whitespace
    field = reasoning_field if not content and last.get(reasoning_field) else "content"
    if not isinstance(last.get(field) or "", str):
        raise InvalidRequest(f"{where}.{field} must be a string", param=f"{where}.{field}")
    text, whitespace = _marked(last.get(field) or "")
    return [*before, {**last, field: text}], _MARK, whitespace


def _marked(text: str) -> tuple[str, str]:
    stripped = text.rstrip()
    whitespace = text[len(stripped) :]
    return stripped + _MARK + whitespace, whitespace


def cut(prompt: Prompt, mark: str, whitespace: str) -> Prompt:
    """`prompt` up to `mark`, with the `whitespace` after the mark unless the template trimmed it."""
    for i in range(len(prompt.pieces) - 1, -1, -1):
        before, separator, after = prompt.pieces[i].rpartition(mark)
        if separator:
            rest = whitespace if after.startswith(whitespace) else ""
            return Prompt.alternating([*prompt.pieces[:i], before + rest])
    raise RenderError(
        "continue_final_message: the prompt does not show the text of the last message",
        param="continue_final_message",
    )
