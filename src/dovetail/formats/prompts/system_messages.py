"""System messages in a history where the model does not know them: part of the repair of a history.

A system message in mid-conversation becomes text of the user message beside it, at the place where it is, so that the
prompt up to there stays as it was and the engine's cache of it is of use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

#: Where a model knows system messages: anywhere, at the beginning only, or as one message at the beginning.
Place = Literal["anywhere", "first", "one"]

_BETWEEN = "\n\n"


def placed(
    messages: Sequence[dict[str, Any]], known: Place, repairs: Callable[[str, str, str], bool]
) -> list[dict[str, Any]]:
    """`messages` with system messages where the model knows them.

    `repairs`: tells whether to make a repair, given its kind, its field and what it does. Messages that declare tools
    stay where they are.
    """
    if known == "anywhere":
        return list(messages)
    # Each message of the result with the contents that it is to have. They are joined at the end, because there may be
    # very many.
    result: list[tuple[dict[str, Any], list[Any]]] = []
    begins = True  # whether there were only system messages so far
    follows_system = False  # whether the last message is a system message that became a user message of its own
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        moves = role == "system" and not message.get("tools")
        begins = begins and role == "system"
        if (
            moves
            and begins
            and known == "one"
            and result
            and repairs("system_merged", f"messages[{i}]", "-> messages[0]")
        ):
            result[0][1].append(content)
        elif moves and not begins and repairs("system_role", f"messages[{i}].role", "-> user"):
            if result[-1][0].get("role") == "user":
                result[-1][1].append(_marked(content))
            else:
                result.append(({"role": "user"}, [_marked(content)]))
                follows_system = True
        elif follows_system and role == "user":
            result[-1][1].append(content)
            follows_system = False
        else:
            result.append((message, [content]))
            follows_system = False
    return [_joined(message, contents) for message, contents in result]


def _marked(content: Any) -> Any:
    """`content` with tags that tell it from the user's own text."""
    opener, closer = "<system-reminder>\n", "\n</system-reminder>"
    if isinstance(content, str):
        return opener + content + closer
    return [_part(opener), *content, _part(closer)]


def _joined(message: dict[str, Any], contents: list[Any]) -> dict[str, Any]:
    """`message` with `contents`, which are strings or parts."""
    if contents == [message.get("content")]:
        return message
    if all(isinstance(content, str) for content in contents):
        return {**message, "content": _BETWEEN.join(contents)}
    parts = _parts(contents[0])
    for content in contents[1:]:
        parts += (_part(_BETWEEN), *_parts(content))
    return {**message, "content": parts}


def _parts(content: Any) -> list[Any]:
    return [_part(content)] if isinstance(content, str) else list(content)


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
