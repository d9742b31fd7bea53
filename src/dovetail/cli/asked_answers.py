"""The answers of the four APIs, as far as `dovetail explain` shows them: all in the shape of a chat completion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from dovetail.conversation import Call


class Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class MadeCall(msgspec.Struct):
    id: str | None = None
    function: Function | None = None


class Defect(msgspec.Struct):
    kind: str
    detail: str = ""


class Ours(msgspec.Struct):
    defects: list[Defect] = []
    token_ids: list[int] | None = None


class Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[MadeCall] | None = None
    dovetail: Ours | None = None

    def calls(self) -> tuple[Call, ...]:
        made = ((call.id or "", call.function or Function()) for call in self.tool_calls or ())
        return tuple(Call(id, function.name, function.arguments) for id, function in made)


class Top(msgspec.Struct):
    token: str
    logprob: float


class Logprob(msgspec.Struct):
    token: str
    logprob: float
    top_logprobs: list[Top] = []


class Logprobs(msgspec.Struct):
    content: list[Logprob] | None = None


class Choice(msgspec.Struct):
    message: Message
    index: int = 0
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class Speculation(msgspec.Struct):
    drafted: int = 0
    accepted: int = 0
    forced: int = 0


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    speculation: Speculation | None = None


class Answer(msgspec.Struct):
    choices: list[Choice]
    id: str = ""
    usage: Usage | None = None


# -- the shapes of the other APIs --------------------------------------------------------------------------------------


class _Text(msgspec.Struct):
    """A choice of a raw completion."""

    text: str
    index: int = 0
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Text]
    id: str = ""
    usage: Usage | None = None


class _Counts(msgspec.Struct):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    speculation: Speculation | None = None


class _Block(msgspec.Struct):
    """A block of a Messages answer, or a part of an item of a response."""

    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Messages(msgspec.Struct):
    content: list[_Block]
    id: str = ""
    stop_reason: str | None = None
    usage: _Counts | None = None


class _Item(msgspec.Struct):
    """An item of a response's output. `input` is that of a call of a custom tool."""

    type: str
    content: list[_Block] | None = None
    summary: list[_Block] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    input: str = ""


class _Incomplete(msgspec.Struct):
    reason: str = ""


class _Response(msgspec.Struct):
    output: list[_Item]
    id: str = ""
    status: str = ""
    incomplete_details: _Incomplete | None = None
    usage: _Counts | None = None


#: The finish reasons of a chat completion for those of the Messages API. Others stay as they are.
_FINISHES = MappingProxyType(
    {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
)


def _of_completion(data: bytes) -> Answer:
    answer = msgspec.json.decode(data, type=_Completion)
    choices = [Choice(Message(each.text), each.index, each.finish_reason) for each in answer.choices]
    return Answer(choices, answer.id, answer.usage)


def _of_messages(data: bytes) -> Answer:
    answer = msgspec.json.decode(data, type=_Messages)
    calls = [
        MadeCall(block.id, Function(block.name, bytes(block.input).decode()))
        for block in answer.content
        if block.type == "tool_use"
    ]
    message = Message(_joined(answer.content, "text"), _joined(answer.content, "thinking"), tool_calls=calls)
    finish = _FINISHES.get(answer.stop_reason or "", answer.stop_reason)
    counts = answer.usage or _Counts()
    cached = (counts.input_tokens, counts.cache_creation_input_tokens, counts.cache_read_input_tokens)
    return Answer([Choice(message, 0, finish)], answer.id, Usage(sum(each or 0 for each in cached), counts.speculation))


def _of_response(data: bytes) -> Answer:
    answer = msgspec.json.decode(data, type=_Response)
    items = answer.output
    calls = [
        MadeCall(item.call_id, Function(item.name, item.arguments or item.input))
        for item in items
        if item.type in ("function_call", "custom_tool_call")
    ]
    content = "".join(_joined(item.content or (), "text") for item in items if item.type == "message")
    reasoning = "".join(
        _joined(item.content or item.summary or (), "text") for item in items if item.type == "reasoning"
    )
    cut_off = answer.status == "incomplete" and answer.incomplete_details is not None
    cause = answer.incomplete_details.reason if cut_off and answer.incomplete_details is not None else ""
    finish = "length" if cause == "max_output_tokens" else cause or ("tool_calls" if calls else "stop")
    counts = answer.usage or _Counts()
    message = Message(content, reasoning, tool_calls=calls)
    return Answer([Choice(message, 0, finish)], answer.id, Usage(counts.input_tokens, counts.speculation))


def _joined(blocks: Any, field: str) -> str:
    return "".join(getattr(block, field) for block in blocks)


def _of_chat(data: bytes) -> Answer:
    return msgspec.json.decode(data, type=Answer)


#: The path of each API, and the function that decodes its answers. That raises `msgspec.DecodeError`.
APIS: Mapping[str, tuple[str, Callable[[bytes], Answer]]] = MappingProxyType(
    {
        "chat": ("/v1/chat/completions", _of_chat),
        "messages": ("/v1/messages", _of_messages),
        "responses": ("/v1/responses", _of_response),
        "completions": ("/v1/completions", _of_completion),
    }
)


def api_of(body: Mapping[str, Any]) -> str | None:
    """The API of a request, by its fields; None if it is none. A body that two of them take is a chat completion."""
    if "input" in body:
        return "responses"
    if "prompt" in body:
        return "completions"
    if "messages" not in body:
        return None
    return "messages" if any(_of_messages_only(body)) else "chat"


def _of_messages_only(body: Mapping[str, Any]) -> Iterator[bool]:
    yield "system" in body or "stop_sequences" in body
    yield any(isinstance(tool, dict) and "input_schema" in tool for tool in _listed(body.get("tools")))
    for message in _listed(body["messages"]):
        for block in _listed(message.get("content") if isinstance(message, dict) else None):
            yield isinstance(block, dict) and block.get("type") in ("tool_use", "tool_result", "thinking")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
