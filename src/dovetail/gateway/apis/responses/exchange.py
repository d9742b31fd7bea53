"""`POST /v1/responses`: OpenAI's Responses as turns."""

from __future__ import annotations

import itertools
import secrets
import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail.conversation import check_messages, check_response_format
from dovetail.errors import DovetailError, EngineError, InvalidRequest
from dovetail.gateway.apis.pictures import Sees, blind
from dovetail.gateway.apis.request_body import ignored_fields
from dovetail.gateway.apis.responses import resource
from dovetail.gateway.apis.responses.compaction import Compacted, CompactionOutput, asking, summary_of
from dovetail.gateway.apis.responses.conversation import Conversation, user_messages
from dovetail.gateway.apis.responses.history import History, listed_input
from dovetail.gateway.apis.responses.output import Output, StreamEvent
from dovetail.gateway.apis.responses.request import ResponsesRequest, decode
from dovetail.gateway.apis.responses.resource import Resource
from dovetail.gateway.apis.responses.store import ResponseStore, StoredResponse
from dovetail.gateway.apis.responses.tools import ResponseTools
from dovetail.gateway.apis.totals import ChoiceTotals
from dovetail.gateway.http.response import COMMENT, DONE
from dovetail.gateway.records.sealed_text import SealedText
from dovetail.gateway.store.interface import StoreError
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.tools import typed
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.gateway.turn.turn_request import Extension, FieldNames, TurnRequest, sampling_fields

#: The most bytes of a request that are stored, so that who fills the store pays for it: some that the model does not
#: read (fields, tools and items that are left out), and more for each token of its prompt (the longest have 128 bytes).
_MOST_UNREAD, _MOST_PER_TOKEN = 128 * 1024, 128


class ResponsesExchange:
    """One response: its request as a turn, and the steps of that turn as a body or a stream.

    Raises `InvalidRequest`, which names the field, for a body that is not a well-formed request. `store` is None if
    the server stores no responses. `summaries` seals the summaries of compactions (None: for this exchange alone), and
    `kind` is the type of the body.
    """

    #: Whether every request asks for a compaction.
    _compacts_always = False

    def __init__(
        self,
        body: bytes,
        store: ResponseStore | None,
        max_history: int,
        summaries: SealedText | None = None,
        kind: type[ResponsesRequest] = ResponsesRequest,
        sees: Sees = blind,
    ) -> None:
        self.request = decode(body, kind)
        self.model = self.request.model
        self.streams = bool(self.request.stream)
        self._id = uuid.uuid4().hex
        self._created = int(time.time())
        self._store = store if self.request.store is not False else None
        self._tools = ResponseTools(self.request.tools, self.request.tool_choice)
        self._history = History(store, self.request.previous_response_id, max_history)
        self._summaries = summaries or SealedText(secrets.token_bytes(32), "")
        conversation = Conversation(self._history.find_item, self._summaries.open, sees)
        self._earlier = self._history.items()
        _fill(conversation, self.request.instructions, self._earlier, self.request.input)
        self._compacts = conversation.compacts or self._compacts_always
        omitted = [*ignored_fields(body, kind)]
        omitted += ["store"] if self.request.store and store is None else []
        self.turn_request = self._turn_request(conversation, (*omitted, *conversation.omitted, *self._tools.omitted))
        # Known at the end of the answer.
        self._record = ""
        self._stored = False
        self._ended_at = self._created

    def _turn_request(self, conversation: Conversation, omitted: tuple[str, ...]) -> TurnRequest:
        request, tools = self.request, self._tools
        switches = request.switches
        names = FieldNames({"reasoning_effort": "reasoning.effort", **conversation.fields, **tools.fields})
        with names.in_errors():
            switches.check()
            check_messages(conversation.messages)
        turn = TurnRequest(
            id=self.name,
            messages=conversation.messages,
            tools=tools.chat or None,
            tool_choice=tools.choice,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            response_format=check_response_format(request.response_format, "text.format", "text.format"),
            thinking=switches.on,
            reasoning_effort=switches.effort,
            verbosity=request.text.verbosity if request.text else None,
            keep_reasoning=switches.keep,
            chat_template_kwargs=switches.options,
            sampling=request.sampling,
            sampling_fields=sampling_fields(request),
            max_tokens=request.max_output_tokens,
            max_tokens_field="max_output_tokens",
            truncate=1 if request.truncation == "auto" else 0,
            omitted=omitted,
            logprobs=request.likeliest,
            extension=request.dovetail or Extension(),
            field_names=names,
            pictures=tuple(conversation.pictures.taken),
            stores=request.store is not False and not self._compacts,
        )
        with names.in_errors():
            return typed(asking(turn) if self._compacts else turn)

    @property
    def concludes(self) -> bool:
        """Every response has the time of its end."""
        return True

    def conclude(self, turn: PreparedTurn, steps: Sequence[Step]) -> None:
        """Make the answer's record."""
        self._ended_at = int(time.time())
        if self._compacts:
            if not (summary := summary_of(steps)):
                raise EngineError("the model wrote no summary of the conversation")
            self._record = self._summaries.seal(summary)
        elif self.request.wants_record or self._store is not None:
            self._record = turn.record(0, [token for step in steps for token in step.ids])

    @property
    def stores(self) -> bool:
        """Whether the response is to be stored."""
        return self._store is not None

    def store(self, turn: PreparedTurn, steps: Sequence[Step]) -> None:
        """Store the response, which may have to wait for the disk. Runs in a thread, after `conclude`."""
        if self._store is not None:
            self._stored = True  # the body that is stored says so
            self._stored = self._put(self._store, turn, steps)

    def _put(self, store: ResponseStore, turn: PreparedTurn, steps: Sequence[Step]) -> bool:
        request = self.request
        items = msgspec.json.encode(self._listed_input())
        sent = len(items) + len(msgspec.json.encode(self.begun()))
        if sent > _MOST_UNREAD + _MOST_PER_TOKEN * turn.prompt_tokens:
            return False
        body, record = self.whole(turn, steps), "" if self._compacts else self._record
        try:
            store.put(StoredResponse(self.name, request.previous_response_id, self._created, items, body, record))
        except StoreError:  # the store has logged it
            return False
        return True

    def _listed_input(self) -> list[dict[str, Any]]:
        return listed_input(self.request.input, self._id, self._history.found_item)

    @property
    def name(self) -> str:
        """The id of the response."""
        return f"resp_{self._id}"

    def begun(self) -> Resource:
        """The response without output."""
        return resource.begun(self.request, self.name, self._created, self._tools.shown, stored=self._store is not None)

    def ended(self, output: Output | CompactionOutput, totals: ChoiceTotals) -> Resource:
        """The response at its end."""
        begun = msgspec.structs.replace(self.begun(), store=self._stored)
        return resource.ended(begun, output.items, totals, self._ended_at, cut=self._is_cut(totals))

    def _is_cut(self, totals: ChoiceTotals) -> bool:
        """Whether the answer is incomplete. A summary goes as far as it goes."""
        return totals.finish == "length" and not self._compacts

    def output(self) -> Output | CompactionOutput:
        """An output to fold events into."""
        if self._compacts:
            return CompactionOutput(self._id)
        return Output(self._id, summarizes=self.request.summarizes, names=self._tools.names)

    def finish(self, output: Output | CompactionOutput, totals: ChoiceTotals) -> list[StreamEvent]:
        """The last events of `output`."""
        record = self._record if self._compacts or self.request.wants_record else ""
        return output.finish(complete=not self._is_cut(totals), record=record)

    def whole(self, turn: PreparedTurn, steps: Sequence[Step]) -> bytes:
        return msgspec.json.encode(self._whole(turn, steps))

    def _whole(self, turn: PreparedTurn, steps: Sequence[Step]) -> Resource:
        output, totals = self.output(), ChoiceTotals(turn)
        for step in steps:
            totals.add(step)
            output.feed(step.events, step.content_logprobs)
        self.finish(output, totals)
        return self.ended(output, totals)

    def stream(self, turn: PreparedTurn) -> Stream:
        return Stream(self, turn)


class CompactExchange(ResponsesExchange):
    """A request to `/v1/responses/compact`. The response is not stored, and not streamed."""

    _compacts_always = True

    def __init__(
        self,
        body: bytes,
        store: ResponseStore | None,
        max_history: int,
        summaries: SealedText | None = None,
        sees: Sees = blind,
    ) -> None:
        super().__init__(body, store, max_history, summaries, sees=sees)
        self.streams = False
        self._store = None

    def whole(self, turn: PreparedTurn, steps: Sequence[Step]) -> bytes:
        response = self._whole(turn, steps)
        kept = user_messages(itertools.chain(*self._earlier, self._listed_input()))
        return msgspec.json.encode(Compacted(self.name, self._created, [*kept, *response.output], response.usage))


class Stream:
    """A response as server-sent events: `start()`, then `step()` for each step."""

    ping = COMMENT

    def __init__(self, exchange: ResponsesExchange, turn: PreparedTurn) -> None:
        self._exchange = exchange
        self._output = exchange.output()
        self._totals = ChoiceTotals(turn)
        self._encode = EventEncoder()

    @property
    def done(self) -> bool:
        return self._totals.finish is not None

    def start(self) -> bytes:
        return self._encode(*begin(self._exchange.begun()))

    def step(self, step: Step) -> bytes:
        """The events of one step: b"" for a step that shows nothing yet. The last step's end with [DONE]."""
        self._totals.add(step)
        events = self._output.feed(step.events, step.content_logprobs)
        if step.finish is None:
            return self._encode(*events)
        events += self._exchange.finish(self._output, self._totals)
        response = self._exchange.ended(self._output, self._totals)
        return self._encode(*events, {"type": f"response.{response.status}", "response": response}) + DONE

    def error(self, error: DovetailError) -> bytes:
        """The event that ends a stream in which something failed."""
        failed = resource.failed(self._exchange.begun(), self._output.items, error)
        return self._encode({"type": "response.failed", "response": failed}) + DONE


def refused(exchange: ResponsesExchange, error: InvalidRequest) -> bytes:
    """A whole stream that only reports `error`."""
    begun = exchange.begun()
    failed = resource.failed(begun, (), error)
    return EventEncoder()(*begin(begun), {"type": "response.failed", "response": failed}) + DONE


def begin(response: Resource) -> tuple[StreamEvent, StreamEvent]:
    """The first events of a stream."""
    return {"type": "response.created", "response": response}, {"type": "response.in_progress", "response": response}


class EventEncoder:
    """Numbers events, and writes them as server-sent events."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, *events: StreamEvent) -> bytes:
        return b"".join(map(self._event, events))

    def _event(self, event: StreamEvent) -> bytes:
        kind: str = event["type"]
        data = msgspec.json.encode({"type": kind, "sequence_number": self._number, **event})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def _fill(
    conversation: Conversation, instructions: str | None, earlier: list[list[dict[str, Any]]], value: Any
) -> None:
    """Add the instructions of a request, the items of `earlier` responses, and its input."""
    if instructions:
        conversation.add_instructions(instructions)
    for items in earlier:
        conversation.add_stored(items)
    if value is None and not conversation.messages:
        raise InvalidRequest("input is required", param="input")
    if value is not None:
        conversation.add_input(value)
