"""Recordings without texts: what clients and models wrote is replaced by its length.

Left are names from the code, figures, control tokens, and names of fields and of the request's tools. The digest of a
picture goes too, because it tells whether it is one that the reader has.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

import msgspec

from dovetail.events import Call, CallArguments, CallStart, Content, Defect, Event, Reasoning
from dovetail.gateway.observe.recording import (
    PromptSegment,
    RecordedLanes,
    RecordedLogprob,
    RecordedMessage,
    RecordedPicture,
    RecordedStep,
    Recording,
    Token,
)

#: Values of requests that are words of the APIs and of JSON Schema, and no texts.
_WORDS = frozenset(
    "system developer user assistant tool function custom text message auto none required any json_schema json_object "
    "string number integer boolean object array null tool_use tool_result tool_calls thinking ephemeral enabled "
    "disabled low medium high minimal function_call function_call_output reasoning input_text output_text".split()
)
#: Names of fields look like this; a key that does not may be a text.
_FIELD = re.compile(r"[A-Za-z_$][A-Za-z0-9_.$-]{0,63}")
#: Figures deeper in a request may be texts: token ids, or arguments of calls.
_FIGURES_DEPTH = 1


def redacted(recording: Recording) -> Recording:
    """`recording` without texts."""
    body = msgspec.json.decode(recording.request)
    tools = _tool_names(body)
    prompt, options = recording.prompt, recording.options
    if prompt is not None:
        segments = None if prompt.segments is None else tuple(map(_segment, prompt.segments))
        prompt = msgspec.structs.replace(prompt, ids=None, segments=segments)
    if options is not None:
        sampling = {name: value for name, value in options.sampling.items() if name != "logit_bias"}
        options = msgspec.structs.replace(
            options,
            sampling=sampling,
            stop=tuple(map(_length, options.stop)),
            unenforced=tuple(map(_length, options.unenforced)),
        )
    error, lanes = recording.error, recording.lanes
    if lanes is not None:
        lanes = RecordedLanes(_tokens(lanes.shared), _tokens(lanes.last), _tokens(lanes.this))
    return msgspec.structs.replace(
        recording,
        redacted=True,
        model=None if recording.options is None else recording.model,  # a model that is not served is the client's text
        request_id=recording.id,
        request=msgspec.Raw(msgspec.json.encode(_value(body))),
        repairs=tuple(msgspec.structs.replace(repair, detail=_length(repair.detail)) for repair in recording.repairs),
        options=options,
        prompt=prompt,
        grammar=None if recording.grammar is None else _length(recording.grammar),
        steps=tuple(_step(step, tools) for step in recording.steps),
        events=tuple(_event(event, tools) for event in recording.events),
        message=None if recording.message is None else _message(recording.message, tools),
        messages=tuple(_message(message, tools) for message in recording.messages),
        error=None if error is None else msgspec.structs.replace(error, message=_length(error.message)),
        lanes=lanes,
        pictures=tuple(RecordedPicture("", picture.media_type, picture.size) for picture in recording.pictures),
    )


def _length(text: str) -> str:
    return f"[{len(text)} characters]" if text else ""


def _value(value: Any, depth: int = 0) -> Any:
    match value:
        case str():
            return value if value in _WORDS else _length(value)
        case dict():
            return {_key(key, number): _value(each, depth + 1) for number, (key, each) in enumerate(value.items())}
        case list():
            return [_value(each, depth + 1) for each in value]
        case bool() | None:
            return value
        case _:
            return value if depth <= _FIGURES_DEPTH else "[number]"


def _key(key: str, number: int) -> str:
    return key if _FIELD.fullmatch(key) else f"[key {number}]"


def _tool_names(body: Any) -> frozenset[str]:
    """The names of a request's tools, in the shapes of all APIs."""
    tools = body.get("tools") if isinstance(body, dict) else None
    named = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    named += [tool["function"] for tool in named if isinstance(tool.get("function"), dict)]
    named += [tool["custom"] for tool in named if isinstance(tool.get("custom"), dict)]
    return frozenset(name for tool in named if isinstance(name := tool.get("name"), str))


def _segment(segment: PromptSegment) -> PromptSegment:
    return segment if segment.control else msgspec.structs.replace(segment, text=_length(segment.text))


def _step(step: RecordedStep, tools: Container[str]) -> RecordedStep:
    return msgspec.structs.replace(
        step,
        tokens=_tokens(step.tokens),
        refused=None if step.refused is None else _tokens(step.refused),
        logprobs=step.logprobs and tuple(RecordedLogprob(each.logprob) for each in step.logprobs),
        events=tuple(_event(event, tools) for event in step.events),
        stop_string=None if step.stop_string is None else _length(step.stop_string),
    )


def _tokens(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    return tuple(token if token.control else Token(None, "") for token in tokens)


def _event(event: Event, tools: Container[str]) -> Event:
    match event:
        case Content(text):
            return Content(_length(text))
        case Reasoning(text):
            return Reasoning(_length(text))
        case CallStart(index, id, name):
            return CallStart(index, _length(id), _name(name, tools))
        case CallArguments(index, fragment):
            return CallArguments(index, _length(fragment))
        case Defect(kind, detail):
            return Defect(kind, _length(detail))
        case _:
            return event


def _name(name: str, tools: Container[str]) -> str:
    return name if name in tools else _length(name)


def _message(message: RecordedMessage, tools: Container[str]) -> RecordedMessage:
    calls = tuple(Call(_length(call.id), _name(call.name, tools), _length(call.arguments)) for call in message.calls)
    return RecordedMessage(message.choice, _length(message.content), _length(message.reasoning), calls)
