"""Digests of an assistant's message, which show whether a history still has it as it was sent.

What clients change without meaning to does not count: surrounding whitespace, content as a string or as parts, null for
empty text, how the arguments of a call are written as JSON (spaces, escapes, the order of keys, 1.0 for 1), and
arguments that have the default of the tool's schema (claude-code adds those that the model left out).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.events import Call, Message
from dovetail.formats.base import Tools, parameters_by_name
from dovetail.formats.prompts.history import REASONING_FIELDS

#: Bytes of a digest. A record's tag protects it; a client that searches for a collision harms its own prompt only.
SIZE = 8
_MAX_EXACT = 2**53  # the integers up to here are the same in every client's numbers


def of_answer(answer: Message, tools: Tools = None) -> tuple[bytes, bytes]:
    """The digests of an answer's content and calls, and of its reasoning (b"" if there is none).

    `tools`: those of the request, whose schemas have the defaults.
    """
    return _digest(_shown(answer.content, answer.calls, tools)), of_reasoning(answer.reasoning)


def of_history(message: Mapping[str, Any], tools: Tools = None) -> tuple[bytes, bytes]:
    """The same of a message in a history, which is well formed."""
    calls = [
        Call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    reasoning = (message.get(field) for field in REASONING_FIELDS)
    return _digest(_shown(_text(message.get("content")), calls, tools)), of_reasoning(
        next((text for text in reasoning if isinstance(text, str) and text), "")
    )


def of_reasoning(reasoning: str) -> bytes:
    return _digest(reasoning.strip()) if reasoning.strip() else b""


def _digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).digest()[:SIZE]


def _shown(content: str, calls: Sequence[Call], tools: Tools) -> list[Any]:
    schemas = parameters_by_name(tools) if calls else {}
    return [
        content.strip(),
        [[call.id, call.name, _arguments(call.arguments, schemas.get(call.name))] for call in calls],
    ]


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part["type"] == "text")


def _arguments(arguments: Any, schema: Any) -> Any:
    """Arguments in one spelling, without defaults of the schema; JSON text that cannot be read stays as it is."""
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        value = json.loads(text, parse_float=_number)
        return json.dumps(_without_defaults(value, schema, schema), sort_keys=True)
    except (RecursionError, TypeError, ValueError):
        return ["unreadable", arguments]


def _without_defaults(value: Any, schema: Any, root: Any) -> Any:
    """`value` without the members of objects that have the default of their schema, at any depth.

    `schema` is that of `value`, as the client sent it, so it may have any shape. It is followed through `properties`,
    `items`, and `$ref` to a definition of `root`.
    """
    schema = _referenced(schema, root)
    if isinstance(value, dict):
        members = _member(schema, "properties")
        return {
            key: _without_defaults(item, _member(members, key), root)
            for key, item in value.items()
            if not _is_default(item, _member(members, key))
        }
    if isinstance(value, list):
        items = _member(schema, "items")
        return [_without_defaults(item, items, root) for item in value]
    return value


def _referenced(schema: Any, root: Any) -> Any:
    match _member(schema, "$ref"):
        case str(pointer) if len(parts := pointer.split("/")) == 3 and parts[0] == "#":
            return _member(_member(root, parts[1]), parts[2])
        case _:
            return schema


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _is_default(value: Any, schema: Any) -> bool:
    if not isinstance(schema, Mapping) or "default" not in schema or schema["default"] != value:
        return False
    # Equal in Python: in JSON, false is not 0. What is equal is as long as `value`, which the client sent as well.
    return json.dumps(schema["default"]) == json.dumps(value)


def _number(literal: str) -> float:
    number = float(literal)
    return int(number) if number.is_integer() and abs(number) < _MAX_EXACT else number
