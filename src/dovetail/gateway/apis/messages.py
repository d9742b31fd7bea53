"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API.

A stream's events and a whole response are made of the same blocks. What is Dovetail's own is in the field `dovetail`:
of the whole message, or in a stream of the event `message_delta`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dovetail.errors import DovetailError
from dovetail.gateway.apis.messages_blocks import Block, BlockEvent, Blocks, RedactedThinkingBlock
from dovetail.gateway.apis.messages_request import (
    MessagesRequest,
    decode_count_tokens,
    decode_messages,
    prompt_request,
    turn_request,
)
from dovetail.gateway.apis.pictures import Sees, blind
from dovetail.gateway.apis.request_body import ignored_fields
from dovetail.gateway.apis.totals import ChoiceTotals, Extension, Speculation, speculation
from dovetail.gateway.http.endpoint import Reply
from dovetail.gateway.http.errors import anthropic_error_json
from dovetail.gateway.limits.keys import Account
from dovetail.gateway.records.memory import Tenant
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import PreparedTurn


class Messages:
    """One message: its request as a turn, and the steps of that turn as its response.

    Raises `InvalidRequest`, which names the field, for a body that is not a well-formed request.
    """

    def __init__(self, body: bytes, _: Account | None = None, *, sees: Sees = blind) -> None:
        self._request = decode_messages(body)
        self.model = self._request.model
        self.streams = bool(self._request.stream)
        self.turn_request = turn_request(self._request, ignored_fields(body, MessagesRequest), sees)
        self._record = ""

    @property
    def concludes(self) -> bool:
        """Whether the client returns thinking."""
        return self._request.thinking is not None and bool(self.turn_request.thinking)

    def conclude(self, turn: PreparedTurn, steps: Sequence[Step]) -> None:
        """Make the record of an answer with calls.

        An answer of mere text has none: some clients take the last block of an answer for its text.
        """
        if steps[-1].finish == "tool_calls":
            self._record = turn.record(0, [token for step in steps for token in step.ids])

    def whole(self, turn: PreparedTurn, steps: Sequence[Step]) -> bytes:
        return whole(self._request, turn, steps, lambda: self._record)

    def stream(self, turn: PreparedTurn) -> Stream:
        return Stream(self._request, turn, lambda: self._record)


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int


class CountTokens:
    """The number of tokens that the prompt of a message would have."""

    def __init__(self, body: bytes, _: Account | None = None, *, sees: Sees = blind) -> None:
        request = decode_count_tokens(body)
        self.model = request.model
        self._prompt_request = prompt_request(request, sees)

    def reply(self, runner: TurnRunner, tenant: Tenant) -> Reply:
        rendered = runner.render(replace(self._prompt_request, tenant=tenant))
        return Reply(msgspec.json.encode(TokenCount(len(rendered.ids))), rendered)


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class OutputTokensDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the prompt are `input_tokens` and, if the engine had them in its cache, `cache_read_input_tokens`."""

    input_tokens: int
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails(0)
    speculation: Speculation | UnsetType = UNSET


class Message(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    model: str
    usage: Usage
    content: Sequence[Block] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    role: Literal["assistant"] = "assistant"
    dovetail: Extension | UnsetType = UNSET


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    message: Message


class Stop(msgspec.Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    delta: Stop
    usage: Usage
    dovetail: Extension | UnsetType = UNSET


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    pass


Event = MessageStart | BlockEvent | MessageDelta | MessageStop


class _Answer:
    """The answer of one turn, as events and as a whole."""

    def __init__(self, request: MessagesRequest, turn: PreparedTurn, record: Callable[[], str]) -> None:
        self._turn = turn
        self._model = request.model
        self._record = record
        self._totals = ChoiceTotals(turn)
        shows_thinking = request.thinking is None or request.thinking.display != "omitted"
        self._blocks = Blocks(turn.signatures.sign, shows_thinking=shows_thinking)
        self._stop: Stop | None = None

    def start(self) -> MessageStart:
        return MessageStart(Message(self._turn.id, self._model, Usage(len(self._turn.prompt))))

    def step(self, step: Step) -> list[Event]:
        self._totals.add(step)
        events: list[Event] = [*self._blocks.feed(step.events)]
        if step.finish is not None:
            self._stop = Stop(self._stop_reason(step), step.stop_string)
            events += self._blocks.close()
            if record := self._record():
                events += self._blocks.add(RedactedThinkingBlock(record))
            events += (MessageDelta(self._stop, self._usage(), self._totals.extension()), MessageStop())
        return events

    def whole(self) -> Message:
        """The message, after its last step."""
        assert self._stop is not None
        return Message(
            self._turn.id,
            self._model,
            self._usage(),
            self._blocks.whole,
            self._stop.stop_reason,
            self._stop.stop_sequence,
            dovetail=self._totals.extension(),
        )

    def _stop_reason(self, step: Step) -> StopReason:
        if step.stop_string is not None:
            return "stop_sequence"
        if step.finish == "length":
            return "model_context_window_exceeded" if self._turn.max_tokens_cut else "max_tokens"
        return "tool_use" if step.finish == "tool_calls" else "end_turn"

    def _usage(self) -> Usage:
        totals, cached = self._totals, self._totals.cached or 0
        return Usage(
            input_tokens=totals.prompt_tokens - cached,
            output_tokens=len(totals.ids),
            cache_read_input_tokens=cached,
            output_tokens_details=OutputTokensDetails(totals.reasoning_tokens),
            speculation=speculation([totals]),
        )


def whole(
    request: MessagesRequest, turn: PreparedTurn, steps: Sequence[Step], record: Callable[[], str] = str
) -> bytes:
    """The response to a request that does not stream. `record`: see `Stream`."""
    answer = _Answer(request, turn, record)
    for step in steps:
        answer.step(step)
    return msgspec.json.encode(answer.whole())


class Stream:
    """The response to a request that streams, as server-sent events: `start()`, then `step()` for each step.

    `record`: called at the last step, gives the answer's record, which becomes the last block; "" for no such block.
    """

    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, request: MessagesRequest, turn: PreparedTurn, record: Callable[[], str] = str) -> None:
        self._answer = _Answer(request, turn, record)
        #: Whether the last step has come.
        self.done = False

    def start(self) -> bytes:
        return _events([self._answer.start()])

    def step(self, step: Step) -> bytes:
        self.done = step.finish is not None
        return _events(self._answer.step(step))

    def error(self, error: DovetailError) -> bytes:
        """The event that ends a stream in which something failed."""
        return b"event: error\ndata: " + anthropic_error_json(error) + b"\n\n"


def _events(events: Iterable[Event]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (str(event.__struct_config__.tag).encode(), msgspec.json.encode(event))
        for event in events
    )
