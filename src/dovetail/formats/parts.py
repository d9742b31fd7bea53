"""Parts of content and arguments of calls, for the prompts of all families."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dovetail.errors import InvalidRequest


def text_of(part: Mapping[str, Any], i: int, j: int) -> str:
    """The text of part `j` of message `i`. Raises `InvalidRequest` for a part without text, such as an image."""
    text = part.get("text")
    if not isinstance(text, str):
        where = f"messages[{i}].content[{j}]"
        if part.get("type") == "text":
            raise InvalidRequest(f"{where}.text must be a string", param=f"{where}.text")
        raise InvalidRequest(f"{where} has a type that this model cannot read", param=f"{where}.type")
    return text


def arguments_json(arguments: Any) -> str:
    """The arguments of a call in a history as JSON text. Raises `TypeError` if they are neither text nor an object."""
    if isinstance(arguments, str):
        return arguments
    if isinstance(arguments, Mapping):
        return json.dumps(arguments, ensure_ascii=False)
    raise TypeError("arguments are a JSON string or an object")
