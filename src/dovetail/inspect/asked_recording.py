"""Sends a request, and makes a recording of it: the server's own, or what a chat completion and its prompt show."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from dovetail.client.answer import Answer, from_body, mapping
from dovetail.client.endpoint import error_text, merged
from dovetail.client.not_tested import NotTested
from dovetail.client.transport import Reply, Transport
from dovetail.errors import InvalidRequest
from dovetail.events import CallArguments, CallEnd, CallStart, Content, Defect, Event, Reasoning
from dovetail.gateway.apis.tokens import RenderedPrompt
from dovetail.gateway.observe.recording import (
    PromptSegment,
    RecordedError,
    RecordedMessage,
    RecordedPrompt,
    RecordedRepair,
    RecordedStep,
    Recording,
)

T = TypeVar("T")

#: How long the server's recording is waited for after the answer, in seconds, and how often it is looked for.
_WAIT_S, _TRIES = 0.1, 60
_NOT_RECORDED = "tokens, steps, grammar, options and the server's times, because the server has no recording of it"
_PATHS: Mapping[str, str] = MappingProxyType(
    {
        "chat": "/v1/chat/completions",
        "messages": "/v1/messages",
        "responses": "/v1/responses",
        "completions": "/v1/completions",
    }
)


def api_of(body: Mapping[str, Any]) -> str | None:
    """The API of a request, by its fields; None: no API has them. A body that two of them take is a chat completion."""
    if "input" in body:
        return "responses"
    if "prompt" in body:
        return "completions"
    if "messages" not in body:
        return None
    tools = body.get("tools")
    schemas = [tool for tool in (tools if isinstance(tools, list) else ()) if "input_schema" in mapping(tool)]
    return "messages" if schemas or "system" in body or "stop_sequences" in body else "chat"


class Asker:
    """Asks the endpoint at `url`."""

    def __init__(self, transport: Transport, url: str) -> None:
        self._transport = transport
        self._url = url

    async def recording(self, request: Mapping[str, Any], api: str) -> Recording:
        """The recording of `request`, which is sent to `api` now, and not streamed. Raises `InvalidRequest`."""
        body = {name: value for name, value in request.items() if name not in ("stream", "stream_options")}
        if not body.get("model"):
            body["model"] = await self._model()
        records = (await self._send("GET", "/inspect/server")).status == 200
        if records:
            body = merged(body, {"dovetail": {"recording": True}})
        elif api != "chat":
            raise InvalidRequest(f"{self._url} does not run with `serve --record`: send it a chat completion")
        began, arrived = datetime.now(UTC), time.perf_counter()
        reply = await self._send("POST", _PATHS[api], body)
        seconds = round(time.perf_counter() - arrived, 6)
        id = self._decoded(reply, _Identified).id if reply.status == 200 else "refused"
        if records and reply.status == 200 and (recording := await self._recorded(id)) is not None:
            return recording
        known = Recording(
            id=id,
            request_id=reply.headers.get("x-request-id", ""),
            api=api,
            model=str(body["model"]),
            began=began.isoformat(timespec="milliseconds"),
            request=msgspec.Raw(msgspec.json.encode(body)),
            times={"ended": seconds},
            left_out=(_NOT_RECORDED,),
        )
        if reply.status != 200:
            return msgspec.structs.replace(known, error=RecordedError(f"HTTP {reply.status}", error_text(reply)))
        answer = from_body(reply.status, reply.body)
        if not answer.completion:
            raise InvalidRequest(f"{self._url} answered with something else than was expected: {answer.faults[0]}")
        return _with_answer(known, answer, await self._rendered(body))

    async def _model(self) -> str:
        models = self._decoded(await self._send("GET", "/v1/models"), _Models).data
        if len(models) != 1:
            raise InvalidRequest(f"{self._url} serves {len(models)} models: name one in the request's `model`")
        return models[0].id

    async def _rendered(self, body: Mapping[str, Any]) -> RenderedPrompt | None:
        """The prompt; None from a server that is not Dovetail."""
        reply = await self._send("POST", "/v1/chat/completions/render", body)
        try:
            return msgspec.json.decode(reply.body, type=RenderedPrompt) if reply.status == 200 else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def _recorded(self, id: str) -> Recording | None:
        """The server's recording of the answer `id`, which it writes after the answer. None if it does not come."""
        for _ in range(_TRIES):
            reply = await self._send("GET", "/inspect/recordings")
            if reply.status != 200:
                return None
            listing = self._decoded(reply, _Listing)
            name = next((each.name for each in listing.recordings if each.id == id), None)
            if name is not None:
                shown = self._decoded(await self._send("GET", f"/inspect/recordings/{name}"), _Shown)
                return msgspec.structs.replace(shown.recording, request=msgspec.Raw(shown.request.encode()))
            await asyncio.sleep(_WAIT_S)
        return None

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Reply:
        try:
            return await self._transport.send(method, path, None if body is None else msgspec.json.encode(body))
        except NotTested as error:
            raise InvalidRequest(f"{self._url}: {error}") from error

    def _decoded(self, reply: Reply, type: type[T]) -> T:
        if reply.status != 200:
            raise InvalidRequest(f"{self._url} answered {reply.status}: {error_text(reply)}")
        try:
            return msgspec.json.decode(reply.body, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{self._url} answered with something else than was expected: {error}") from error


class _Identified(msgspec.Struct):
    id: str = ""


class _Models(msgspec.Struct):
    data: list[_Identified] = []


class _Line(msgspec.Struct):
    name: str
    id: str = ""


class _Listing(msgspec.Struct):
    recordings: list[_Line]


class _Shown(msgspec.Struct):
    request: str
    recording: Recording


def _with_answer(known: Recording, answer: Answer, rendered: RenderedPrompt | None) -> Recording:
    """`known` with what `answer` and the prompt show. The answer is one step, of which only the end is known."""
    usage = mapping(answer.usage)
    figures = mapping(usage.get("speculation"))
    events = tuple(_events(answer))
    step = RecordedStep(
        choice=0,
        at=known.times["ended"],
        tokens=(),
        drafted=_figure(figures, "drafted") if figures else None,
        accepted=_figure(figures, "accepted"),
        forced=_figure(figures, "forced"),
        cached=None,
        events=events,
        finish=answer.finish if isinstance(answer.finish, str) else None,
    )
    message = RecordedMessage(0, answer.message.content, answer.message.reasoning, answer.message.calls)
    known = msgspec.structs.replace(known, steps=(step,), events=events, message=message, messages=(message,))
    if rendered is None:
        return msgspec.structs.replace(known, prompt=RecordedPrompt(_figure(usage, "prompt_tokens")))
    segments = tuple(PromptSegment(each.text, each.control, int(each.control)) for each in rendered.segments)
    repairs = tuple(RecordedRepair(each.kind, each.where, each.detail, True) for each in rendered.dovetail.repairs)
    prompt = RecordedPrompt(rendered.count, False, segments, rendered.token_ids)
    return msgspec.structs.replace(known, prompt=prompt, repairs=repairs)


def _figure(figures: Mapping[str, Any], name: str) -> int:
    value = figures.get(name)
    return value if isinstance(value, int) else 0


def _events(answer: Answer) -> Iterator[Event]:
    if answer.message.reasoning:
        yield Reasoning(answer.message.reasoning)
    if answer.message.content:
        yield Content(answer.message.content)
    for index, call in enumerate(answer.message.calls):
        yield CallStart(index, call.id, call.name)
        yield CallArguments(index, call.arguments)
        if _is_json(call.arguments):
            yield CallEnd(index)
    ours = mapping(json.loads(answer.raw)["choices"][0]["message"].get("dovetail"))
    for defect in defects if isinstance(defects := ours.get("defects"), list) else ():
        yield Defect(str(mapping(defect).get("kind")), str(mapping(defect).get("detail", "")))


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
