"""Sends a request, and makes a recording of it: the server's own, or what the answer and its prompt show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from dovetail.cli.asked_answers import APIS, Answer, Choice, Message, Speculation, Usage
from dovetail.client.endpoint import error_text, merged
from dovetail.client.not_tested import NotTested
from dovetail.client.transport import Reply, Transport
from dovetail.errors import InvalidRequest
from dovetail.events import CallArguments, CallEnd, CallStart, Content, Defect, Event, Reasoning
from dovetail.gateway.recordings.recording import (
    PromptSegment,
    RecordedError,
    RecordedLogprob,
    RecordedMessage,
    RecordedOptions,
    RecordedPrompt,
    RecordedRepair,
    RecordedStep,
    Recording,
    Token,
)

T = TypeVar("T")

#: How long the server's recording is waited for after the answer, in seconds, and how often it is looked for.
_WAIT_S, _TRIES = 0.1, 60
NOT_RECORDED = "single steps, grammar, options and the server's times, because the server has no recording of it"


class Asker:
    """Asks the endpoint at `url`."""

    def __init__(self, transport: Transport, url: str) -> None:
        self._transport = transport
        self._url = url

    async def recording(self, body: Mapping[str, Any], api: str = "chat") -> Recording:
        """The recording of `body`, a request of `api`, which is sent now, and not streamed. Raises `InvalidRequest`."""
        path, decode = APIS[api]
        body = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        if not body.get("model"):
            body = {**body, "model": await self._model()}
        rendered = await self._rendered(body) if api == "chat" else None
        records = (await self._send("GET", "/inspect/server")).status == 200
        began, arrived = datetime.now(UTC), time.perf_counter()
        reply = await self._send("POST", path, _sent(body, ours=rendered is not None, records=records))
        seconds = time.perf_counter() - arrived
        answer = None if reply.status != 200 else self._read(reply, decode)
        if records and answer is not None and (recording := await self._recorded(answer.id)) is not None:
            return recording
        known = Recording(
            id=answer.id if answer is not None else "refused",
            request_id=reply.headers.get("x-request-id", ""),
            api=api,
            model=str(body["model"]),
            began=began.isoformat(timespec="milliseconds"),
            request=msgspec.Raw(msgspec.json.encode(body)),
            times={"ended": round(seconds, 6)},
            left_out=(NOT_RECORDED,),
        )
        if answer is None:
            error = RecordedError(f"HTTP {reply.status}", error_text(reply))
            return msgspec.structs.replace(known, error=error)
        return _with_answer(known, body, answer, rendered, seconds)

    async def _model(self) -> str:
        models = self._decoded(await self._send("GET", "/v1/models"), _Models).data
        if len(models) != 1:
            raise InvalidRequest(f"{self._url} serves {len(models)} models: name one in the request's `model`")
        return models[0].id

    async def _rendered(self, body: Mapping[str, Any]) -> _Rendered | None:
        """The prompt; None from a server that is not Dovetail, or if the request is refused."""
        reply = await self._send("POST", "/v1/chat/completions/render", body)
        try:
            return msgspec.json.decode(reply.body, type=_Rendered) if reply.status == 200 else None
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
        decoder = msgspec.json.Decoder(type)
        return self._read(reply, decoder.decode)

    def _read(self, reply: Reply, decode: Callable[[bytes], T]) -> T:
        if reply.status != 200:
            raise InvalidRequest(f"{self._url} answered {reply.status}: {error_text(reply)}")
        try:
            return decode(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{self._url} answered with something else than was expected: {error}") from error


def _sent(body: Mapping[str, Any], *, ours: bool, records: bool) -> Mapping[str, Any]:
    """What is sent for `body`. Nothing that is added changes the answer. `ours`: the server is Dovetail; others refuse
    its fields."""
    if records:
        return merged(body, {"dovetail": {"recording": True}})
    if ours:
        return {"logprobs": True, **merged(body, {"dovetail": {"return_token_ids": True}})}
    return body


# -- what the endpoint answers ----------------------------------------------------------------------------------------


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Line(msgspec.Struct):
    name: str
    id: str = ""


class _Listing(msgspec.Struct):
    recordings: list[_Line]


class _Shown(msgspec.Struct):
    request: str
    recording: Recording


class _Segment(msgspec.Struct):
    text: str
    control: bool


class _Repair(msgspec.Struct):
    kind: str
    where: str
    detail: str = ""


class _Repairs(msgspec.Struct):
    repairs: list[_Repair] = []


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    segments: list[_Segment] = []
    dovetail: _Repairs | None = None


# -- what that shows --------------------------------------------------------------------------------------------------


def _with_answer(
    known: Recording, body: Mapping[str, Any], answer: Answer, rendered: _Rendered | None, seconds: float
) -> Recording:
    """`known` with what `answer` and the prompt show: each choice is one step, of which only the end is known."""
    usage = answer.usage or Usage()
    # The figures are those of all choices together.
    speculation = usage.speculation if len(answer.choices) == 1 else None
    steps = tuple(_step(choice, speculation, seconds) for choice in answer.choices)
    messages = tuple(map(_message, answer.choices))
    return msgspec.structs.replace(
        known,
        prompt=_prompt(rendered, usage),
        repairs=tuple(_repairs(rendered)),
        options=_options(body),
        steps=steps,
        events=steps[0].events if steps else (),
        message=messages[0] if messages else None,
        messages=messages,
    )


def _prompt(rendered: _Rendered | None, usage: Usage) -> RecordedPrompt | None:
    if rendered is None:
        return RecordedPrompt(usage.prompt_tokens or 0)
    segments = tuple(PromptSegment(each.text, each.control, 1 if each.control else 0) for each in rendered.segments)
    return RecordedPrompt(len(rendered.token_ids), False, segments, tuple(rendered.token_ids))


def _repairs(rendered: _Rendered | None) -> Iterator[RecordedRepair]:
    for repair in rendered.dovetail.repairs if rendered is not None and rendered.dovetail is not None else ():
        yield RecordedRepair(repair.kind, repair.where, repair.detail, True)


def _options(body: Mapping[str, Any]) -> RecordedOptions | None:
    """The options that the request sets itself; None if it does not say how long the answer may be."""
    limits = (body.get(name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"))
    most = next((limit for limit in limits if limit), None)
    if not isinstance(most, int):
        return None
    tools, continues = body.get("tools"), body.get("continue_final_message") is True
    sampling = {name: body[name] for name in ("temperature", "top_p", "top_k", "min_p", "seed") if name in body}
    return RecordedOptions(
        max_tokens=most,
        sampling=sampling,
        stop=(),
        tools=len(tools) if isinstance(tools, list) else 0,
        structured=False,
        add_generation_prompt=not continues and body.get("add_generation_prompt") is not False,
        continue_final_message=continues,
        unenforced=(),
        omitted=(),
        most_drafts=None,
    )


def _step(choice: Choice, speculation: Speculation | None, seconds: float) -> RecordedStep:
    entries = (choice.logprobs and choice.logprobs.content) or []
    ids = (choice.message.dovetail and choice.message.dovetail.token_ids) or []
    whole = bool(ids) and len(ids) == len(entries)
    logprobs = tuple(
        RecordedLogprob(each.logprob, tuple((top.token, top.logprob) for top in each.top_logprobs)) for each in entries
    )
    return RecordedStep(
        choice=choice.index,
        at=round(seconds, 6),
        tokens=tuple(Token(id, entries[i].token if whole else "") for i, id in enumerate(ids)),
        drafted=None if speculation is None else speculation.drafted,
        accepted=0 if speculation is None else speculation.accepted,
        forced=0 if speculation is None else speculation.forced,
        cached=None,
        events=tuple(_events(choice.message)),
        finish=choice.finish_reason,
        logprobs=logprobs if whole else None,
    )


def _events(message: Message) -> Iterator[Event]:
    if reasoning := message.reasoning_content or message.reasoning:
        yield Reasoning(reasoning)
    if message.content:
        yield Content(message.content)
    for index, call in enumerate(message.calls()):
        yield CallStart(index, call.id, call.name)
        yield CallArguments(index, call.arguments)
        if _is_json(call.arguments):
            yield CallEnd(index)
    for defect in message.dovetail.defects if message.dovetail is not None else ():
        yield Defect(defect.kind, defect.detail)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _message(choice: Choice) -> RecordedMessage:
    message = choice.message
    reasoning = message.reasoning_content or message.reasoning or ""
    return RecordedMessage(choice.index, message.content or "", reasoning, message.calls())
