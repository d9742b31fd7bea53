"""What others say a response looks like: the openai package's types and accumulator, and OpenResponses' schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
BODY = TypeAdapter(Response)
ITEMS = TypeAdapter(ResponseItemList)

#: What OpenResponses' document (openresponses/openresponses, public/openapi/openapi.json, version 2026-04-24) requires
#: of each event, by its type: `name:type`, where the types are JSON's, and `?` allows null. It calls the events of
#: reasoning text `response.reasoning.delta` and `.done`; here they have OpenAI's names, without which its SDK refuses
#: them. Custom tools are not in it: those events are like a function's.
_AT_ITEM = "type:string sequence_number:integer item_id:string output_index:integer"
_AT_PART, _AT_SUMMARY = f"{_AT_ITEM} content_index:integer", f"{_AT_ITEM} summary_index:integer"
_RESPONSE = "type:string sequence_number:integer response:object"
_ITEM = "type:string sequence_number:integer output_index:integer item:object"
EVENTS: Mapping[str, str] = {
    "response.created": _RESPONSE,
    "response.queued": _RESPONSE,
    "response.in_progress": _RESPONSE,
    "response.completed": _RESPONSE,
    "response.failed": _RESPONSE,
    "response.incomplete": _RESPONSE,
    "response.output_item.added": _ITEM,
    "response.output_item.done": _ITEM,
    "response.reasoning_summary_part.added": f"{_AT_SUMMARY} part:object",
    "response.reasoning_summary_part.done": f"{_AT_SUMMARY} part:object",
    "response.content_part.added": f"{_AT_PART} part:object",
    "response.content_part.done": f"{_AT_PART} part:object",
    "response.output_text.delta": f"{_AT_PART} delta:string",
    "response.output_text.done": f"{_AT_PART} text:string",
    "response.refusal.delta": f"{_AT_PART} delta:string",
    "response.refusal.done": f"{_AT_PART} refusal:string",
    "response.reasoning_text.delta": f"{_AT_PART} delta:string",
    "response.reasoning_text.done": f"{_AT_PART} text:string",
    "response.reasoning_summary_text.delta": f"{_AT_SUMMARY} delta:string",
    "response.reasoning_summary_text.done": f"{_AT_SUMMARY} text:string",
    "response.output_text.annotation.added": f"{_AT_PART} annotation_index:integer annotation:object?",
    "response.function_call_arguments.delta": f"{_AT_ITEM} delta:string",
    "response.function_call_arguments.done": f"{_AT_ITEM} arguments:string",
    "response.custom_tool_call_input.delta": f"{_AT_ITEM} delta:string",
    "response.custom_tool_call_input.done": f"{_AT_ITEM} input:string",
    "error": "type:string sequence_number:integer error:object",
}
#: The same of a response; `user` is OpenAI's. `tool_choice` and `metadata` have several types.
RESOURCE = (
    "id:string object:string created_at:integer completed_at:integer? status:string incomplete_details:object? "
    "model:string previous_response_id:string? instructions:string? output:array error:object? tools:array tool_choice "
    "truncation:string parallel_tool_calls:boolean text:object top_p:number presence_penalty:number "
    "frequency_penalty:number top_logprobs:integer temperature:number reasoning:object? usage:object? "
    "max_output_tokens:integer? max_tool_calls:integer? store:boolean background:boolean service_tier:string metadata "
    "safety_identifier:string? prompt_cache_key:string? user:string?"
)
#: The same of an item, by its type. Its optional fields may be left out, but not null.
ITEM_FIELDS = {
    "message": "type:string id:string status:string role:string content:array",
    "function_call": "type:string id:string call_id:string name:string arguments:string status:string",
    "custom_tool_call": "type:string id:string call_id:string name:string input:string status:string",
    "function_call_output": "type:string id:string call_id:string output status:string",
    "reasoning": "type:string id:string summary:array",
}
_OPTIONAL = {"reasoning": {"content": "content:array", "encrypted_content": "encrypted_content:string"}}
_TOKENS = "input_tokens:integer output_tokens:integer total_tokens:integer"
#: The same of the objects in a response, in its usage and in its format.
_INSIDE = {
    "usage": f"{_TOKENS} input_tokens_details:object output_tokens_details:object",
    "reasoning": "effort:string? summary:string?",
    "text": "format:object",
    "incomplete_details": "reason:string",
    "error": "code:string message:string",
}
_DETAILS = {"input_tokens_details": "cached_tokens:integer", "output_tokens_details": "reasoning_tokens:integer"}
#: The document's `schema` can only be null; here it is the request's.
_FORMATS = {
    "text": "type:string",
    "json_object": "type:string",
    "json_schema": "type:string name:string description:string? schema:object strict:boolean",
}
_FUNCTION = "type:string name:string description:string? parameters:object? strict:boolean?"
_PARTS = {
    "output_text": "type:string text:string annotations:array logprobs:array",
    "summary_text": "type:string text:string",
    "reasoning_text": "type:string text:string",
}
_TOP = "token:string logprob:number bytes:array"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def events_of(stream: str) -> list[dict[str, Any]]:
    """The events of a stream, each with the type that its `event:` line has; the last block is [DONE]."""
    *blocks, done, nothing = stream.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    events = []
    for block in blocks:
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        events.append(event)
    return events


def check_body(body: Any) -> Response:
    """Assert that a response object is what OpenAI's types and OpenResponses' document say; return it typed."""
    _has(body, RESOURCE)
    for field, required in _INSIDE.items():
        if body[field] is not None:
            _has(body[field], required)
    _has(body["text"]["format"], _FORMATS[body["text"]["format"]["type"]])
    for field, required in _DETAILS.items():
        if body["usage"] is not None:
            _has(body["usage"][field], required)
    for tool in body["tools"]:
        _has(tool, _FUNCTION if tool["type"] == "function" else "type:string name:string")
    for item in body["output"]:
        check_item(item)
    return BODY.validate_json(json.dumps(body), strict=True)


def check_item(item: Any) -> None:
    _has(item, ITEM_FIELDS[item["type"]])
    for field, required in _OPTIONAL.get(item["type"], {}).items():
        if field in item:
            _has(item, required)
    for part in (*(item.get("content") or ()), *(item.get("summary") or ())):
        _has(part, _PARTS[part["type"]])
        for token in part.get("logprobs", ()):
            _has(token, f"{_TOP} top_logprobs:array")
            for top in token["top_logprobs"]:
                _has(top, _TOP)


def check_event(event: Any) -> Any:
    """Assert that an event is what both say; return it typed."""
    _has(event, EVENTS[event["type"]])
    if "response" in event:
        check_body(event["response"])
    if "item" in event:
        check_item(event["item"])
    return EVENT.validate_json(json.dumps(event), strict=True)


def accumulated(events: Iterable[Any]) -> tuple[list[Any], Any]:
    """The output that OpenAI's accumulator adds up, item by item, and the response that it ends with.

    The response is None unless the last event is `response.completed`.
    """
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        state.handle_event(event)
    done = [state._completed_output[place] for place in sorted(state._completed_output)]
    return done, state._completed_response


def without_parsed(response: Any) -> Any:
    """A response of OpenAI's accumulator without what that adds: texts and arguments decoded as JSON."""
    for item in response["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return response


def check_order(events: Sequence[Any]) -> list[Any]:
    """Assert the order of a stream's events, and that deltas add up. Returns the items as they were done."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    *inner, last = events[2:]
    assert last["type"] in ("response.completed", "response.incomplete", "response.failed")
    texts: dict[int, str] = {}
    ids: list[str] = []
    done: dict[int, Any] = {}
    for event in inner:
        kind, place = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            assert place == len(ids)
            ids.append(event["item"]["id"])
            texts[place] = ""
            assert event["item"]["status"] == "in_progress"
            continue
        assert place in texts and place not in done
        if kind == "response.output_item.done":
            assert event["item"]["id"] == ids[place]
            done[place] = event["item"]
            assert text_of(event["item"]) == texts[place]
            continue
        assert event["item_id"] == ids[place]
        if kind.endswith(".delta"):
            assert event["delta"]
            texts[place] += event["delta"]
        elif kind.endswith(("_text.done", "_arguments.done", "_input.done")):
            assert event.get("text", event.get("arguments", event.get("input"))) == texts[place]
    return [done[place] for place in sorted(done)]


def text_of(item: Any) -> str:
    """All text of an item."""
    if item["type"] in ("function_call", "custom_tool_call"):
        return str(item.get("arguments", item.get("input")))
    return "".join(part["text"] for part in (*(item.get("content") or ()), *(item.get("summary") or ())))


def _has(value: Any, fields: str) -> None:
    for word in fields.split():
        name, _, kind = word.partition(":")
        assert name in value, f"{name} is missing in {value}"
        if kind and not (kind.endswith("?") and value[name] is None):
            assert type(value[name]) in _TYPES[kind.removesuffix("?")], f"{name} is no {kind} in {value}"
