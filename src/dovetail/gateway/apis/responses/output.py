"""A turn's events as output items, and as the events of a stream: one fold makes both.

Each item is open from `response.output_item.added` to `response.output_item.done`. Text and reasoning end where
something else begins; calls may be open side by side.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET

from dovetail.events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from dovetail.gateway.apis.responses import items
from dovetail.gateway.apis.responses.items import Item, Status
from dovetail.gateway.apis.responses.tools import ClientName
from dovetail.gateway.turn.logprobs import ContentLogprob

#: An event of the stream, without its sequence number.
StreamEvent = dict[str, Any]


class OpenItem(ABC):
    """An item that grows. `place` is its index in the output."""

    def __init__(self, item_id: str, place: int) -> None:
        self.id = item_id
        self.place = place
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    @abstractmethod
    def item(self, status: Status, *, empty: bool = False) -> Item:
        """The item with its text, or without (`empty`)."""

    @abstractmethod
    def _opened(self) -> Iterator[StreamEvent]:
        """The events behind `response.output_item.added`."""

    @abstractmethod
    def _delta(self, text: str, logprobs: tuple[ContentLogprob, ...]) -> StreamEvent: ...

    @abstractmethod
    def _closed(self) -> Iterator[StreamEvent]:
        """The events before `response.output_item.done`."""

    def opened(self) -> Iterator[StreamEvent]:
        yield {"type": "response.output_item.added", **self._item_at(self.item("in_progress", empty=True))}
        yield from self._opened()

    def grown(self, text: str, logprobs: tuple[ContentLogprob, ...] = ()) -> Iterator[StreamEvent]:
        self._pieces.append(text)
        yield self._delta(text, logprobs)

    def closed(self, status: Status) -> Iterator[StreamEvent]:
        yield from self._closed()
        yield {"type": "response.output_item.done", **self._item_at(self.item(status))}

    def _item_at(self, item: Item) -> StreamEvent:
        return {"output_index": self.place, "item": item}

    def _event(self, kind: str, **fields: Any) -> StreamEvent:
        return {"type": f"response.{kind}", "item_id": self.id, "output_index": self.place, **fields}


class OpenMessage(OpenItem):
    """Text for the user: one part of an assistant message."""

    def __init__(self, item_id: str, place: int) -> None:
        super().__init__(item_id, place)
        self._logprobs: list[ContentLogprob] = []

    @property
    def _part(self) -> items.OutputText:
        return items.OutputText(self.text, logprobs=tuple(self._logprobs))

    def item(self, status: Status, *, empty: bool = False) -> items.Message:
        return items.Message(self.id, status, () if empty else (self._part,))

    def _opened(self) -> Iterator[StreamEvent]:
        yield self._event("content_part.added", content_index=0, part=items.OutputText(""))

    def _delta(self, text: str, logprobs: tuple[ContentLogprob, ...]) -> StreamEvent:
        self._logprobs += logprobs
        return self._event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _closed(self) -> Iterator[StreamEvent]:
        part = self._part
        yield self._event("output_text.done", content_index=0, text=part.text, logprobs=part.logprobs)
        yield self._event("content_part.done", content_index=0, part=part)


class OpenReasoning(OpenItem):
    """Reasoning as text."""

    def item(self, status: Status, *, empty: bool = False) -> items.Reasoning:
        return items.Reasoning(self.id, status, content=() if empty else (items.ReasoningText(self.text),))

    def _opened(self) -> Iterator[StreamEvent]:
        yield self._event("content_part.added", content_index=0, part=items.ReasoningText(""))

    def _delta(self, text: str, logprobs: tuple[ContentLogprob, ...]) -> StreamEvent:
        return self._event("reasoning_text.delta", content_index=0, delta=text)

    def _closed(self) -> Iterator[StreamEvent]:
        text = self.text
        yield self._event("reasoning_text.done", content_index=0, text=text)
        yield self._event("content_part.done", content_index=0, part=items.ReasoningText(text))


class OpenSummary(OpenItem):
    """Reasoning as a summary of one part."""

    def item(self, status: Status, *, empty: bool = False) -> items.Reasoning:
        return items.Reasoning(self.id, status, () if empty else (items.SummaryText(self.text),))

    def _opened(self) -> Iterator[StreamEvent]:
        yield self._event("reasoning_summary_part.added", summary_index=0, part=items.SummaryText(""))

    def _delta(self, text: str, logprobs: tuple[ContentLogprob, ...]) -> StreamEvent:
        return self._event("reasoning_summary_text.delta", summary_index=0, delta=text)

    def _closed(self) -> Iterator[StreamEvent]:
        text = self.text
        yield self._event("reasoning_summary_text.done", summary_index=0, text=text)
        yield self._event("reasoning_summary_part.done", summary_index=0, part=items.SummaryText(text))


class OpenCall(OpenItem):
    """A call of a function, or of a custom tool."""

    def __init__(self, item_id: str, place: int, call_id: str, tool: ClientName) -> None:
        super().__init__(item_id, place)
        self._call_id = call_id
        self._tool = tool

    def item(self, status: Status, *, empty: bool = False) -> items.FunctionCall | items.CustomToolCall:
        kind = items.CustomToolCall if self._tool.custom else items.FunctionCall
        text, namespace = "" if empty else self.text, self._tool.namespace or UNSET
        return kind(self.id, self._call_id, self._tool.name, text, status, namespace)

    def _opened(self) -> Iterator[StreamEvent]:
        return iter(())

    def _delta(self, text: str, logprobs: tuple[ContentLogprob, ...]) -> StreamEvent:
        return self._event(f"{self._field[0]}.delta", delta=text)

    def _closed(self) -> Iterator[StreamEvent]:
        kind, field = self._field
        yield self._event(f"{kind}.done", **{field: self.text})

    @property
    def _field(self) -> tuple[str, str]:
        return ("custom_tool_call_input", "input") if self._tool.custom else ("function_call_arguments", "arguments")


class Output:
    """Folds the events of a turn: `feed` them, then `finish`. Both return the events of the stream.

    `response_id`: 32 hexadecimal digits, which the ids of the items repeat. `summarizes`: whether reasoning is sent as
    a summary. `names`: the client's names for tools.
    """

    def __init__(self, response_id: str, *, summarizes: bool, names: Mapping[str, ClientName]) -> None:
        self._response_id = response_id
        self._reasoning = OpenSummary if summarizes else OpenReasoning
        self._names = names
        self._done: dict[int, Item] = {}
        self._places = 0
        self._text: OpenItem | None = None  # the message or the reasoning that is open
        self._calls: dict[int, OpenCall] = {}

    @property
    def items(self) -> tuple[Item, ...]:
        """The items that are done, in the order in which they began."""
        return tuple(self._done[place] for place in sorted(self._done))

    def feed(self, events: Iterable[Event], logprobs: tuple[ContentLogprob, ...] = ()) -> list[StreamEvent]:
        """`logprobs`: log probabilities of the content in `events`, sent with the first piece of it."""
        sent: list[StreamEvent] = []
        visible = (e for e in events if isinstance(e, Reasoning | Content | CallStart | CallArguments | CallEnd))
        for (kind, index), run in itertools.groupby(visible, _target):
            if kind is Content:
                sent += self._grown(OpenMessage, "msg", _joined(run), logprobs)
                logprobs = ()
            elif kind is Reasoning:
                sent += self._grown(self._reasoning, "rs", _joined(run))
            elif kind is CallArguments:
                sent += self._calls[index].grown(_joined(run))
            else:
                for event in run:
                    sent += self._began(event) if isinstance(event, CallStart) else self._ended(index, "completed")
        return sent

    def finish(self, *, complete: bool, record: str = "") -> list[StreamEvent]:
        """`complete`: whether the model ended the answer. `record`: see `PreparedTurn.record`; "" for none."""
        status: Status = "completed" if complete else "incomplete"
        sent = [*self._text_ended(status)]
        for index in [*self._calls]:
            sent += self._ended(index, "incomplete")
        if record:
            sent += self._recorded(record, status)
        return sent

    def _grown(
        self, kind: type[OpenItem], prefix: str, text: str, logprobs: tuple[ContentLogprob, ...] = ()
    ) -> Iterator[StreamEvent]:
        if not isinstance(self._text, kind):
            yield from self._text_ended("completed")
            self._text = kind(self._new_id(prefix), self._new_place())
            yield from self._text.opened()
        yield from self._text.grown(text, logprobs)

    def _began(self, event: CallStart) -> Iterator[StreamEvent]:
        yield from self._text_ended("completed")
        tool = self._names.get(event.name) or ClientName(event.name, None, False)
        prefix = "ctc" if tool.custom else "fc"
        call = self._calls[event.index] = OpenCall(self._new_id(prefix), self._new_place(), event.id, tool)
        yield from call.opened()

    def _ended(self, index: int, status: Status) -> Iterator[StreamEvent]:
        return self._close(self._calls.pop(index), status)

    def _text_ended(self, status: Status) -> Iterator[StreamEvent]:
        if self._text is not None:
            text, self._text = self._text, None
            yield from self._close(text, status)

    def _close(self, item: OpenItem, status: Status) -> Iterator[StreamEvent]:
        self._done[item.place] = item.item(status)
        return item.closed(status)

    def _recorded(self, record: str, status: Status) -> Iterator[StreamEvent]:
        """The record comes in an item of its own behind the others, because only a finished answer has one."""
        place = self._new_place()
        item = self._done[place] = items.Reasoning(self._id("rs", place), status, encrypted_content=record)
        yield {
            "type": "response.output_item.added",
            "output_index": place,
            "item": items.Reasoning(item.id, "in_progress"),
        }
        yield {"type": "response.output_item.done", "output_index": place, "item": item}

    def _new_place(self) -> int:
        self._places += 1
        return self._places - 1

    def _new_id(self, prefix: str) -> str:
        return self._id(prefix, self._places)

    def _id(self, prefix: str, place: int) -> str:
        return f"{prefix}_{self._response_id}_{place}"


def _target(event: Event) -> tuple[type[Event], int]:
    """Equal for events that extend the same text."""
    return type(event), event.index if isinstance(event, CallStart | CallArguments | CallEnd) else 0


def _joined(run: Iterable[Event]) -> str:
    return "".join(
        event.fragment if isinstance(event, CallArguments) else event.text
        for event in run
        if isinstance(event, Content | Reasoning | CallArguments)
    )
