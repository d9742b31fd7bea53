"""A streamed answer, added up as a client does it, with every fault of its chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dovetail.client.answer import Answer, checked, mapping, reasoning_of, token_ids
from dovetail.events import Call, Message


class _Call(msgspec.Struct):
    id: str
    name: str
    arguments: list[str]


def from_events(body: bytes) -> Answer:
    """The answer in the body of a stream of server-sent events."""
    raw = body.decode(errors="replace")
    folded = _Folded()
    for data in _events(raw):
        folded.feed(data)
    return folded.answer(raw)


def _events(raw: str) -> Iterator[str]:
    """The data of each event."""
    for block in raw.replace("\r\n", "\n").split("\n\n"):
        lines = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if lines:
            yield "\n".join(lines)


class _Folded:
    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._finish: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._ids: list[int] = []
        self._prompt_ids: tuple[int, ...] | None = None
        self._faults: list[str] = []
        self._stream_ids: set[str] = set()
        self._done = False
        self._error: str | None = None

    def feed(self, data: str) -> None:
        if self._done:
            self._fault("an event comes after [DONE]")
        if data == "[DONE]":
            self._done = True
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, Mapping):
            self._fault(f"an event is no JSON object: {data:.80}")
        elif "error" in chunk:
            error = chunk["error"]
            self._error = str(error.get("message", error) if isinstance(error, Mapping) else error)
        else:
            self._chunk(chunk)

    def _chunk(self, chunk: Mapping[str, Any]) -> None:
        self._stream_ids.add(str(chunk.get("id")))
        self._usage = mapping(chunk.get("usage")) or self._usage
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            self._fault("a chunk has no list of choices")
            return
        for choice in choices:
            delta = choice.get("delta") if isinstance(choice, Mapping) else None
            if not isinstance(delta, Mapping):
                self._fault("a choice has no delta")
            else:
                self._choice(chunk, choice, delta)

    def _choice(self, chunk: Mapping[str, Any], choice: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        if choice.get("index") != 0:
            self._fault(f"a choice has the index {choice.get('index')!r}")
        prompt_ids, ids = token_ids(chunk, choice, delta)
        self._prompt_ids = prompt_ids or self._prompt_ids
        self._ids += ids or ()
        content, reasoning = delta.get("content") or "", reasoning_of(delta, self._faults)
        pieces = delta.get("tool_calls") or []
        if not isinstance(pieces, list):
            self._fault(f"tool_calls is no list: {pieces!r:.80}")
            pieces = []
        if self._finish is not None and (content or reasoning or pieces):
            self._fault("a delta comes after the finish_reason")
        if isinstance(content, str):
            self._content.append(content)
        else:
            self._fault(f"content is no text: {content!r:.80}")
        self._reasoning.append(reasoning)
        for piece in pieces:
            self._piece(piece)
        if (finish := choice.get("finish_reason")) is not None:
            if self._finish is not None:
                self._fault("there are two finish_reasons")
            self._finish = finish

    def _piece(self, piece: Any) -> None:
        function = piece.get("function") if isinstance(piece, Mapping) else None
        if not isinstance(function, Mapping):
            self._fault(f"a delta of a call has no function: {piece!r:.80}")
            return
        index = piece.get("index")
        fragment = function.get("arguments") or ""
        if not isinstance(fragment, str):
            self._fault(f"the arguments of a delta are no text: {fragment!r:.80}")
            fragment = ""
        if not isinstance(index, int) or not 0 <= index <= len(self._calls):
            self._fault(f"a delta of a call has the index {index!r} after {len(self._calls)} calls")
            return
        if index == len(self._calls):
            call_id, name = piece.get("id"), function.get("name")
            if not isinstance(call_id, str) or not isinstance(name, str):
                self._fault(f"the first delta of call {index} lacks its id or its name")
            self._calls.append(_Call(str(call_id or ""), str(name or ""), [fragment]))
            return
        if index < len(self._calls) - 1:
            self._fault(f"call {index} goes on after call {index + 1} has begun")
        if piece.get("id") not in (None, "", self._calls[index].id):
            self._fault(f"the id of call {index} changes")
        self._calls[index].arguments.append(fragment)

    def _fault(self, what: str) -> None:
        if what not in self._faults:
            self._faults.append(what)

    def answer(self, raw: str) -> Answer:
        if not self._done and self._error is None:
            self._fault("the stream does not end with [DONE]")
        if len(self._stream_ids) > 1:
            self._fault("the chunks have several ids")
        calls = tuple(Call(call.id, call.name, "".join(call.arguments)) for call in self._calls)
        return checked(
            Answer(
                200,
                raw,
                Message("".join(self._content), "".join(self._reasoning), calls),
                self._finish,
                self._usage,
                self._prompt_ids,
                tuple(self._ids) or None,
                tuple(self._faults),
                error=self._error,
            )
        )
