"""Dovetail's events and messages as vLLM's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall

from dovetail.events import CallArguments, CallStart, Content, Event, Reasoning


def delta(events: Iterable[Event]) -> Any:
    """What a chunk says: a `DeltaMessage`, or None if it says nothing."""
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
    # Fields that are not set are not sent.
    said: dict[str, Any] = {
        "content": "".join(content),
        "reasoning": "".join(reasoning),
        "tool_calls": [*calls.values()],
    }
    said = {field: value for field, value in said.items() if value}
    return DeltaMessage(**said) if said else None
