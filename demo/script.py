"""What the demo's user says and what its tools answer; the bundled model knows requests that name their values."""

from __future__ import annotations

import json
from typing import Any

REQUESTS = (
    "Please get the weather for city Paris.",
    "Now get the weather for city Oslo and find a hotel with limit 3 and city Rome.",
)


def _tool(name: str, description: str, required: list[str], **properties: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": required,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS: list[Any] = [
    _tool("get_weather", "Get the weather", ["city"], city="string"),
    _tool("find_hotel", "Find a hotel", ["city"], city="string", limit="integer"),
]

_WEATHER = {"Paris": 18, "Oslo": 7}


def answer(name: str, arguments: str) -> str:
    """What the tool `name` returns, as JSON. A small model may ask for anything, so anything has an answer."""
    asked = json.loads(arguments)
    if name == "get_weather":
        return json.dumps({"value": _WEATHER.get(asked.get("city"), 21)})
    return json.dumps({"result": "Vienna"})
