"""Converts Dovetail's events to vLLM's delta messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall

from dovetail.events import CallArguments, CallStart, Content, Event, Reasoning


def delta(events: Iterable[Event]) -> Any:
    """The `DeltaMessage` of one chunk; None if nothing is to be sent."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, Any] = {}
    for event in events:
        match event:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart(index, call_id, name):
                function = DeltaFunctionCall(name=name, arguments="")
                calls[index] = DeltaToolCall(index=index, id=call_id, type="function", function=function)
            case CallArguments(index, fragment):
                call = calls.get(index)
                if call is None:
                    call = calls[index] = DeltaToolCall(index=index, function=DeltaFunctionCall(arguments=""))
                call.function.arguments += fragment
            case _:
                pass
    fields: dict[str, Any] = {
        "content": "".join(content),
        "reasoning": "".join(reasoning),
        "tool_calls": [*calls.values()],
    }
    fields = {name: value for name, value in fields.items() if value}  # vLLM sends every field that is set
    return DeltaMessage(**fields) if fields else None
