"""Steps as OpenAI's JSON: server-sent chunks for a stream, one object for a whole answer, from the same parts.

What is ours is in one field, `dovetail`: of the message, and in a stream of the last delta, so that deltas add up to
the message. It is there when something was off (`defects` in the output, `repairs` to the history) or when token ids
were asked for. A stream's first delta has `content` "", so a whole message without content has "" too, and not null.
What tokens have log probabilities is told with the first delta that follows them: some show nothing, or nothing yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.events import CallArguments, CallStart, Content, Defect, Event, Reasoning, fold
from dovetail.formats.history import Repair
from dovetail.gateway.logprobs import ChoiceLogprobs, ContentLogprob
from dovetail.gateway.turn import FinishReason, Step, Turn

DONE = b"data: [DONE]\n\n"


class Function(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(msgspec.Struct, frozen=True):
    """A call, or in a stream a piece of one (which alone has an `index`)."""

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
    """A message, or in a stream a delta of one."""

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
    """Engine steps this answer took, summed over its choices, and the draft tokens verified and accepted in them; of
    those verified, `forced` are what the constraint forced.

    An engine behind HTTP may send several steps in one piece, which counts as one, and does not say what was forced.
    """

    steps: int
    drafted: int
    accepted: int
    forced: int


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Retries(msgspec.Struct, frozen=True):
    """How often the answer was asked for again because of a call that was not valid, summed over its choices, and the
    tokens that were dropped for it: `completion_tokens` does not have them."""

    times: int
    completion_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    # Absent where the engine did not come to say so, as when an answer ends at a stop string in the middle of its own.
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


class _Tally:
    """What is counted over the steps of one choice."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.steps = self.accepted = self.forced = 0
        #: None until they are told.
        self.drafted: int | None = None
        self.cached: int | None = None
        self.ids: list[int] = []
        self.finish: FinishReason | None = None
        self.retries = self.dropped = 0
        self._defects: list[OutputDefect] = []

    def add(self, step: Step) -> None:
        self.steps += 1
        self.drafted = _sum(self.drafted, step.drafted)
        self.accepted += step.accepted
        self.forced += step.forced
        self.cached = _sum(self.cached, step.cached)
        self.finish = step.finish
        self.retries += step.retries
        self.dropped += step.dropped
        self.ids.extend(step.ids)
        self._defects.extend(OutputDefect(e.kind, e.detail) for e in step.events if isinstance(e, Defect))

    def extension(self) -> Extension | UnsetType:
        ids = self._turn.request.extension.return_token_ids
        extension = Extension(
            defects=tuple(self._defects) or UNSET,
            repairs=self._turn.repairs or UNSET,
            prompt_token_ids=self._turn.prompt if ids else UNSET,
            token_ids=tuple(self.ids) if ids else UNSET,
        )
        return UNSET if extension == _NOTHING else extension


_NOTHING = Extension()


def _usage(turn: Turn, choices: Sequence[_Tally]) -> Usage:
    """The prompt counts once, however many choices there are: as the first found it, in the cache or not."""
    prompt, new = len(turn.prompt), sum(len(choice.ids) for choice in choices)
    counts = zip(*((c.steps, c.accepted, c.forced) for c in choices), strict=True)
    steps, accepted, forced = map(sum, counts)
    drafted = [choice.drafted for choice in choices if choice.drafted is not None]
    speculation = Speculation(steps, sum(drafted), accepted, forced) if len(drafted) == len(choices) else UNSET
    cached = choices[0].cached
    details = PromptTokensDetails(cached) if cached is not None else UNSET
    times = sum(choice.retries for choice in choices)
    retries = Retries(times, sum(choice.dropped for choice in choices)) if times else UNSET
    return Usage(prompt, new, prompt + new, details, speculation, retries)


def _sum(before: int | None, told: int | None) -> int | None:
    return before if told is None else (before or 0) + told


def whole(turn: Turn, steps: Sequence[Step]) -> bytes:
    """The answer to a request that does not stream."""
    tallies = [_Tally(turn) for _ in turn.completions]
    choices = tuple(
        _choice(index, [step for step in steps if step.choice == index], tally) for index, tally in enumerate(tallies)
    )
    usage = _usage(turn, tallies)
    response = Response(turn.id, "chat.completion", turn.created, turn.request.model, choices, usage)
    return msgspec.json.encode(response)


def _choice(index: int, steps: Sequence[Step], tally: _Tally) -> Choice:
    for step in steps:
        tally.add(step)
    said = fold(event for step in steps for event in step.events)
    message = ChatMessage(
        role="assistant",
        content=said.content,
        reasoning_content=said.reasoning or UNSET,
        tool_calls=tuple(
            ToolCall(Function(call.arguments, call.name), id=call.id, type="function") for call in said.calls
        )
        or UNSET,
        dovetail=tally.extension(),
    )
    logprobs = tuple(entry for step in steps for entry in step.logprobs)
    return Choice(index, message, logprobs=ChoiceLogprobs(logprobs) if logprobs else None, finish_reason=tally.finish)


class Stream:
    """The answer to a request that streams: `start()`, then `step(step)` for each one; all are server-sent events."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._tallies = [_Tally(turn) for _ in turn.completions]
        # Of each choice, those that no delta has told yet.
        self._logprobs: list[tuple[ContentLogprob, ...]] = [() for _ in turn.completions]
        options = turn.request.stream_options
        self._include_usage = bool(options and options.include_usage)

    @property
    def done(self) -> bool:
        """Whether every choice has finished."""
        return all(tally.finish is not None for tally in self._tallies)

    def start(self) -> bytes:
        first = ChatMessage(role="assistant", content="")
        return b"".join(self._chunk(Choice(choice, delta=first)) for choice in range(len(self._tallies)))

    def step(self, step: Step) -> bytes:
        """The chunks of one step: b"" when it only held something back; on the last of all up to [DONE]."""
        tally = self._tallies[step.choice]
        tally.add(step)
        self._logprobs[step.choice] += step.logprobs
        chunks = [self._delta(step.choice, delta) for delta in _deltas(step.events)]
        if step.finish is not None:
            chunks.append(self._delta(step.choice, ChatMessage(dovetail=tally.extension()), step.finish))
            if self.done:
                if self._include_usage:
                    chunks.append(self._chunk(usage=_usage(self._turn, self._tallies)))
                chunks.append(DONE)
        return b"".join(chunks)

    def _delta(self, choice: int, delta: ChatMessage, finish: FinishReason | None = None) -> bytes:
        told, self._logprobs[choice] = self._logprobs[choice], ()
        logprobs = ChoiceLogprobs(told) if told else None
        return self._chunk(Choice(choice, delta=delta, logprobs=logprobs, finish_reason=finish))

    def _chunk(self, *choices: Choice, usage: Usage | None = None) -> bytes:
        turn = self._turn
        # With include_usage every chunk has the field, null but in the last one: so the API that clients know has it.
        shown = usage if self._include_usage else UNSET
        return sse(
            msgspec.json.encode(
                Response(turn.id, "chat.completion.chunk", turn.created, turn.request.model, choices, shown)
            )
        )


def sse(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


def _deltas(events: Iterable[Event]) -> Iterator[ChatMessage]:
    """One delta for each run of events that extend the same text, in order."""
    visible = (event for event in events if isinstance(event, Content | Reasoning | CallStart | CallArguments))
    for _, run in itertools.groupby(visible, _extends):
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


def _extends(event: Event) -> tuple[type, int]:
    return type(event), event.index if isinstance(event, CallStart | CallArguments) else 0
