"""Whether the calls that were timed are right: they parse, validate and have ids of their own."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from dovetail.client.answer import Answer

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_VALIDATOR = jsonschema_rs.validator_for(TOOL["function"]["parameters"])


def wrong(answer: Answer) -> str | None:
    """What is wrong with an answer that had to call `TOOL`; None if nothing is."""
    calls = answer.message.calls
    if answer.faults:
        return answer.faults[0]
    if not calls:
        return "there is no call although one was required"
    for call in calls:
        if not call.id:
            return f"the call of {call.name!r:.40} has no id"
        if call.name != TOOL["function"]["name"]:
            return f"it calls {call.name!r:.40}, which is no tool"
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            return f"its arguments are not JSON: {call.arguments:.80}"
        if not _VALIDATOR.is_valid(arguments):
            return f"its arguments do not validate: {call.arguments:.80}"
    return None
