"""`POST /v1/chat/completions`: steps as OpenAI's JSON, chunks for a stream or one object for a whole response.

Both are built from the same parts. Everything that is Dovetail's own is in the field `dovetail` of the message, or of
the last delta in a stream, so that deltas add up to the message. It has `defects` of the output and `repairs` of the
history, if there are any, and token ids if the request asks for them. A stream's first delta has `content` "", so a
whole message without content also has "" and not null. Log probabilities are in the first delta after their tokens,
because some tokens make no delta.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.errors import DovetailError
from dovetail.events import CallArguments, CallStart, Content, Event, Reasoning, fold
from dovetail.gateway.apis.chat_request import ChatRequest, decode, turn_request
from dovetail.gateway.apis.pictures import Sees, blind
from dovetail.gateway.apis.request_body import ignored_fields
from dovetail.gateway.apis.totals import ChoiceTotals, Extension, PromptTokensDetails, Speculation, speculation
from dovetail.gateway.http.errors import error_json
from dovetail.gateway.http.response import COMMENT, DONE, event
from dovetail.gateway.limits.keys import Account
from dovetail.gateway.turn.logprobs import ChoiceLogprobs, ContentLogprob
from dovetail.gateway.turn.output import FinishReason, Step
from dovetail.gateway.turn.turn import PreparedTurn


class ChatCompletion:
    """One chat completion: its request as a turn, and the steps of that turn as its response.

    Raises `InvalidRequest`, which names the field, for a body that is not a well-formed request.
    """

    def __init__(self, body: bytes, _: Account | None = None, *, sees: Sees = blind) -> None:
        self._request = decode(body)
        self.model = self._request.model
        self.streams = bool(self._request.stream)
        self.turn_request = turn_request(self._request, ignored_fields(body, ChatRequest), sees)

    @property
    def concludes(self) -> bool:
        """Whether the request asks for records of the answers."""
        return bool(self.turn_request.extension.record)

    def conclude(self, turn: PreparedTurn, steps: Sequence[Step]) -> None:
        """Make the records of the answers."""
        for choice in range(self.turn_request.choices):
            turn.record(choice, [token for step in steps if step.choice == choice for token in step.ids])

    def whole(self, turn: PreparedTurn, steps: Sequence[Step]) -> bytes:
        return whole(self._request, turn, steps)

    def stream(self, turn: PreparedTurn) -> Stream:
        return Stream(self._request, turn)


class Function(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class Custom(msgspec.Struct, frozen=True):
    input: str
    name: str | UnsetType = UNSET


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a function or of a custom tool, or in a stream a piece of one. Only a piece has an `index`."""

    function: Function | UnsetType = UNSET
    custom: Custom | UnsetType = UNSET
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET

    @classmethod
    def begun(cls, name: str, arguments: str, *, id: str, custom: bool, index: int | UnsetType = UNSET) -> ToolCall:
        """A call with its name; `arguments` are the input of a custom tool."""
        if custom:
            return cls(custom=Custom(arguments, name), index=index, id=id, type="custom")
        return cls(Function(arguments, name), index=index, id=id, type="function")

    @classmethod
    def continued(cls, index: int, fragment: str, *, custom: bool) -> ToolCall:
        """The next piece of the arguments of a call, or of the input of a custom tool."""
        return cls(custom=Custom(fragment), index=index) if custom else cls(Function(fragment), index=index)


class ChatMessage(msgspec.Struct, frozen=True):
    """A message, or in a stream a delta of a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    dovetail: Extension | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage | UnsetType = UNSET
    delta: ChatMessage | UnsetType = UNSET
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """`reasoning_tokens` counts the tokens of reasoning blocks, with their markers."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    # Absent if the engine did not report it, for example because a stop string ended the answer before the engine did.
    prompt_tokens_details: PromptTokensDetails | UnsetType
    completion_tokens_details: CompletionTokensDetails
    speculation: Speculation | UnsetType


class Response(msgspec.Struct, frozen=True):
    """A chat completion, or one chunk of it."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage | UnsetType | None = UNSET


def _usage(choices: Sequence[ChoiceTotals]) -> Usage:
    """The counts of all `choices`. The prompt counts once, with the cached tokens that the first choice reports."""
    prompt, new = choices[0].prompt_tokens, sum(len(choice.ids) for choice in choices)
    cached = choices[0].cached
    details = PromptTokensDetails(cached) if cached is not None else UNSET
    reasoning = CompletionTokensDetails(sum(choice.reasoning_tokens for choice in choices))
    return Usage(prompt, new, prompt + new, details, reasoning, speculation(choices))


def whole(request: ChatRequest, turn: PreparedTurn, steps: Sequence[Step]) -> bytes:
    """The response to a request that does not stream."""
    totals = [ChoiceTotals(turn, choice) for choice in range(len(turn.choices))]
    choices = tuple(
        _choice(turn, index, [step for step in steps if step.choice == index], total)
        for index, total in enumerate(totals)
    )
    usage = _usage(totals)
    response = Response(turn.id, "chat.completion", turn.created, request.model, choices, usage)
    return msgspec.json.encode(response)


def _choice(turn: PreparedTurn, index: int, steps: Sequence[Step], total: ChoiceTotals) -> ChatChoice:
    custom_tools = turn.custom_tools
    for step in steps:
        total.add(step)
    answer = fold(event for step in steps for event in step.events)
    message = ChatMessage(
        role="assistant",
        content=answer.content,
        reasoning_content=answer.reasoning or UNSET,
        tool_calls=tuple(
            ToolCall.begun(call.name, call.arguments, id=call.id, custom=call.name in custom_tools)
            for call in answer.calls
        )
        or UNSET,
        dovetail=total.extension(),
    )
    logprobs = tuple(entry for step in steps for entry in step.logprobs)
    return ChatChoice(
        index, message, logprobs=ChoiceLogprobs(logprobs) if logprobs else None, finish_reason=total.finish
    )


class Stream:
    """The response to a request that streams, as server-sent events: `start()`, then `step()` for each step."""

    ping = COMMENT

    def __init__(self, request: ChatRequest, turn: PreparedTurn) -> None:
        self._turn = turn
        self._model = request.model
        self._totals = [ChoiceTotals(turn, choice) for choice in range(len(turn.choices))]
        #: The log probabilities of each choice that no delta has sent yet.
        self._logprobs: list[tuple[ContentLogprob, ...]] = [() for _ in turn.choices]
        #: The indices of the calls of each choice that are calls of custom tools.
        self._custom_calls: list[set[int]] = [set() for _ in turn.choices]
        options = request.stream_options
        self._continuous_usage = bool(options and options.continuous_usage_stats)
        self._include_usage = self._continuous_usage or bool(options and options.include_usage)

    @property
    def done(self) -> bool:
        """Whether every choice has finished."""
        return all(total.finish is not None for total in self._totals)

    def start(self) -> bytes:
        """The first chunk of every choice."""
        first = ChatMessage(role="assistant", content="")
        return b"".join(self._chunk(ChatChoice(choice, delta=first)) for choice in range(len(self._totals)))

    def step(self, step: Step) -> bytes:
        """The chunks of one step: b"" for a step that shows nothing yet. The last step's end with [DONE]."""
        total = self._totals[step.choice]
        total.add(step)
        self._logprobs[step.choice] += step.logprobs
        custom = self._custom_calls[step.choice]
        custom |= {e.index for e in step.events if isinstance(e, CallStart) and e.name in self._turn.custom_tools}
        chunks = [self._delta(step.choice, delta) for delta in _deltas(step.events, custom)]
        if step.finish is not None:
            chunks.append(self._delta(step.choice, ChatMessage(dovetail=total.extension()), step.finish))
            if self.done:
                if self._include_usage:
                    chunks.append(self._chunk(usage=self._usage_so_far()))
                chunks.append(DONE)
        return b"".join(chunks)

    def error(self, error: DovetailError) -> bytes:
        """The event that ends a stream in which something failed."""
        return event(error_json(error))

    def _delta(self, choice: int, delta: ChatMessage, finish: FinishReason | None = None) -> bytes:
        entries, self._logprobs[choice] = self._logprobs[choice], ()
        logprobs = ChoiceLogprobs(entries) if entries else None
        return self._chunk(ChatChoice(choice, delta=delta, logprobs=logprobs, finish_reason=finish))

    def _usage_so_far(self) -> Usage:
        return _usage(self._totals)

    def _chunk(self, *choices: ChatChoice, usage: Usage | None = None) -> bytes:
        turn = self._turn
        if self._continuous_usage:
            usage = self._usage_so_far()
        # With include_usage every chunk has the field, null in all but the last one, as in OpenAI's API.
        shown = usage if self._include_usage else UNSET
        chunk = Response(turn.id, "chat.completion.chunk", turn.created, self._model, choices, shown)
        return event(msgspec.json.encode(chunk))


def _deltas(events: Iterable[Event], custom: Container[int]) -> Iterator[ChatMessage]:
    """The deltas of `events`: one for each run of events that extend the same text. `custom`: the indices of the calls
    of custom tools."""
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
                call = ToolCall.begun(name, "", id=call_id, custom=index in custom, index=index)
                yield ChatMessage(tool_calls=(call,))
            case CallArguments(index, fragment):
                fragment = "".join((fragment, *(e.fragment for e in more if isinstance(e, CallArguments))))
                yield ChatMessage(tool_calls=(ToolCall.continued(index, fragment, custom=index in custom),))


def _target(event: Event) -> tuple[type, int]:
    """Equal for events that extend the same text."""
    return type(event), event.index if isinstance(event, CallStart | CallArguments) else 0
