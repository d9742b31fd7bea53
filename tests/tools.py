"""Tools of requests, in the shape of chat completions."""

from __future__ import annotations

from typing import Any


def tool(name: str, parameters: Any = None, **fields: Any) -> dict[str, Any]:
    """A function that takes `parameters` (None: any object). `fields`: its others, such as `strict`."""
    schema = {"type": "object"} if parameters is None else parameters
    return {"type": "function", "function": {"name": name, **fields, "parameters": schema}}


def taking(properties: dict[str, Any], *required: str, **keywords: Any) -> dict[str, Any]:
    """The schema of an object with `properties`. `keywords`: further ones, such as `additionalProperties`."""
    schema = {"type": "object", "properties": properties}
    return schema | ({"required": [*required]} if required else {}) | keywords
