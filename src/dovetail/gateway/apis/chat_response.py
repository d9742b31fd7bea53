"""Steps as OpenAI's JSON: chunks for a stream, one object for a whole response, built from the same parts.

Everything that is Dovetail's own is in the field `dovetail` of the message, or of the last delta in a stream, so that
deltas add up to the message. It has `defects` of the output and `repairs` of the history, if there are any, and token
ids if the request asks for them. A stream's first delta has `content` "", so a whole message without content also has
"" and not null. Log probabilities are in the first delta after their tokens, because some tokens make no delta.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.errors import DovetailError
from dovetail.events import CallArguments, CallStart, Content, Defect, Event, Reasoning, fold
from dovetail.formats.history import Repair
from dovetail.gateway.apis.chat_request import ChatRequest
from dovetail.gateway.errors import error_json
from dovetail.gateway.logprobs import ChoiceLogprobs, ContentLogprob
from dovetail.gateway.output import FinishReason, Step
from dovetail.gateway.turn import Turn

DONE = b"data: [DONE]\n\n"


class Function(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(msgspec.Struct, frozen=True):
    """A call, or in a stream a piece of one. Only a piece has an `index`."""

    function: Function
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class OutputDefect(msgspec.Struct, frozen=True):
    kind: str
    detail: str


class Extension(msgspec.Struct, frozen=True):
    """The response's `dovetail` field."""

    defects: tuple[OutputDefect, ...] | UnsetType = UNSET
    repairs: tuple[Repair, ...] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatMessage(msgspec.Struct, frozen=True):
    """A message, or in a stream a delta of a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    dovetail: Extension | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage | UnsetType = UNSET
    delta: ChatMessage | UnsetType = UNSET
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class Speculation(msgspec.Struct, frozen=True):
    """The engine steps of this response, summed over its choices, and the draft tokens in them.

    `drafted` were verified, `accepted` of them were accepted, and `forced` of those verified came from the grammar and
    not from a drafter. An engine behind HTTP may send several steps at once, which count as one, and does not report
    `forced`.
    """

    steps: int
    drafted: int
    accepted: int
    forced: int


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Retries(msgspec.Struct, frozen=True):
    """How often choices were generated again because of an invalid call, and the new tokens that were dropped for it,
    which are not in the response's own `completion_tokens`."""

    times: int
    completion_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    # Absent if the engine did not report it, for example because a stop string ended the answer before the engine did.
    prompt_tokens_details: PromptTokensDetails | UnsetType
    speculation: Speculation | UnsetType
    retries: Retries | UnsetType


class Response(msgspec.Struct, frozen=True):
    """A chat completion, or one chunk of it."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage | UnsetType | None = UNSET


class _ChoiceTotals:
    """What the steps of one choice add up to."""

    def __init__(self, request: ChatRequest, turn: Turn) -> None:
        self._turn = turn
        self._with_ids = bool(request.dovetail and request.dovetail.return_token_ids)
        self.steps = self.accepted = self.forced = 0
        #: None until the engine reports them.
        self.drafted: int | None = None
        self.cached: int | None = None
        self.ids: list[int] = []
        self.finish: FinishReason | None = None
        self.retries = self.dropped_tokens = 0
        self._defects: list[OutputDefect] = []

    def add(self, step: Step) -> None:
        self.steps += 1
        self.drafted = _sum(self.drafted, step.drafted)
        self.accepted += step.accepted
        self.forced += step.forced
        self.cached = _sum(self.cached, step.cached)
        self.finish = step.finish
        self.retries += step.retries
        self.dropped_tokens += step.dropped_tokens
        self.ids.extend(step.ids)
        self._defects.extend(OutputDefect(e.kind, e.detail) for e in step.events if isinstance(e, Defect))

    def extension(self) -> Extension | UnsetType:
        extension = Extension(
            defects=tuple(self._defects) or UNSET,
            repairs=self._turn.repairs or UNSET,
            prompt_token_ids=self._turn.prompt if self._with_ids else UNSET,
            token_ids=tuple(self.ids) if self._with_ids else UNSET,
        )
        return UNSET if extension == Extension() else extension


def _usage(turn: Turn, choices: Sequence[_ChoiceTotals]) -> Usage:
    """The counts of all `choices`. The prompt counts once, with the cached tokens that the first choice reports."""
    prompt, new = len(turn.prompt), sum(len(choice.ids) for choice in choices)
    counts = zip(*((c.steps, c.accepted, c.forced) for c in choices), strict=True)
    steps, accepted, forced = map(sum, counts)
    drafted = [choice.drafted for choice in choices if choice.drafted is not None]
    speculation = Speculation(steps, sum(drafted), accepted, forced) if len(drafted) == len(choices) else UNSET
    cached = choices[0].cached
    details = PromptTokensDetails(cached) if cached is not None else UNSET
    times = sum(choice.retries for choice in choices)
    retries = Retries(times, sum(choice.dropped_tokens for choice in choices)) if times else UNSET
    return Usage(prompt, new, prompt + new, details, speculation, retries)


def _sum(total: int | None, reported: int | None) -> int | None:
    return total if reported is None else (total or 0) + reported


def whole(request: ChatRequest, turn: Turn, steps: Sequence[Step]) -> bytes:
    """The response to a request that does not stream."""
    totals = [_ChoiceTotals(request, turn) for _ in turn.choices]
    choices = tuple(
        _choice(index, [step for step in steps if step.choice == index], total) for index, total in enumerate(totals)
    )
    response = Response(turn.id, "chat.completion", turn.created, request.model, choices, _usage(turn, totals))
    return msgspec.json.encode(response)


def _choice(index: int, steps: Sequence[Step], total: _ChoiceTotals) -> Choice:
    for step in steps:
        total.add(step)
    answer = fold(event for step in steps for event in step.events)
    message = ChatMessage(
        role="assistant",
        content=answer.content,
        reasoning_content=answer.reasoning or UNSET,
        tool_calls=tuple(
            ToolCall(Function(call.arguments, call.name), id=call.id, type="function") for call in answer.calls
        )
        or UNSET,
        dovetail=total.extension(),
    )
    logprobs = tuple(entry for step in steps for entry in step.logprobs)
    return Choice(index, message, logprobs=ChoiceLogprobs(logprobs) if logprobs else None, finish_reason=total.finish)


class Stream:
    """The response to a request that streams, as server-sent events: `start()`, then `step()` for each step."""

    def __init__(self, request: ChatRequest, turn: Turn) -> None:
        self._turn = turn
        self._model = request.model
        self._totals = [_ChoiceTotals(request, turn) for _ in turn.choices]
        #: The log probabilities of each choice that no delta has sent yet.
        self._logprobs: list[tuple[ContentLogprob, ...]] = [() for _ in turn.choices]
        options = request.stream_options
        self._include_usage = bool(options and options.include_usage)

    @property
    def done(self) -> bool:
        """Whether every choice has finished."""
        return all(total.finish is not None for total in self._totals)

    def start(self) -> bytes:
        """The first chunk of every choice."""
        first = ChatMessage(role="assistant", content="")
        return b"".join(self._chunk(Choice(choice, delta=first)) for choice in range(len(self._totals)))

    def step(self, step: Step) -> bytes:
        """The chunks of one step: b"" for a step that shows nothing yet. The last step's end with [DONE]."""
        total = self._totals[step.choice]
        total.add(step)
        self._logprobs[step.choice] += step.logprobs
        chunks = [self._delta(step.choice, delta) for delta in _deltas(step.events)]
        if step.finish is not None:
            chunks.append(self._delta(step.choice, ChatMessage(dovetail=total.extension()), step.finish))
            if self.done:
                if self._include_usage:
                    chunks.append(self._chunk(usage=_usage(self._turn, self._totals)))
                chunks.append(DONE)
        return b"".join(chunks)

    def error(self, error: DovetailError) -> bytes:
        """The event that ends a stream in which something failed."""
        return _event(error_json(error))

    def _delta(self, choice: int, delta: ChatMessage, finish: FinishReason | None = None) -> bytes:
        entries, self._logprobs[choice] = self._logprobs[choice], ()
        logprobs = ChoiceLogprobs(entries) if entries else None
        return self._chunk(Choice(choice, delta=delta, logprobs=logprobs, finish_reason=finish))

    def _chunk(self, *choices: Choice, usage: Usage | None = None) -> bytes:
        turn = self._turn
        # With include_usage every chunk has the field, null in all but the last one, as in OpenAI's API.
        shown = usage if self._include_usage else UNSET
        chunk = Response(turn.id, "chat.completion.chunk", turn.created, self._model, choices, shown)
        return _event(msgspec.json.encode(chunk))


def _event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


def _deltas(events: Iterable[Event]) -> Iterator[ChatMessage]:
    """The deltas of `events`: one for each run of events that extend the same text."""
    visible = (event for event in events if isinstance(event, Content | Reasoning | CallStart | CallArguments))
    for _, run in itertools.groupby(visible, _target):
        first, *more = run
        match first:
            case Content(text):
                text = "".join((text, *(e.text for e in more if isinstance(e, Content))))
                yield ChatMessage(content=text)
            case Reasoning(text):
                text = "".join((text, *(e.text for e in more if isinstance(e, Reasoning))))
                yield ChatMessage(reasoning_content=text)
            case CallStart(index, call_id, name):
                yield ChatMessage(tool_calls=(ToolCall(Function("", name), index, call_id, "function"),))
            case CallArguments(index, fragment):
                fragment = "".join((fragment, *(e.fragment for e in more if isinstance(e, CallArguments))))
                yield ChatMessage(tool_calls=(ToolCall(Function(fragment), index),))


def _target(event: Event) -> tuple[type, int]:
    """Equal for events that extend the same text."""
    return type(event), event.index if isinstance(event, CallStart | CallArguments) else 0
