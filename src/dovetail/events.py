"""What a reader emits, and `fold`: events -> Message.

A stream is the concatenation of the lists that `Reader.feed` and `Reader.finish` return. `CallEnd` says that a call is
whole and its arguments parse as JSON; a call without one was cut short or is invalid, and a `Defect` says which.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dovetail.conversation import Call, Message


class Reasoning(msgspec.Struct, frozen=True, gc=False, tag=True):
    text: str


class Content(msgspec.Struct, frozen=True, gc=False, tag=True):
    text: str


class CallStart(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A call begins. `index` counts from 0 without gaps; `id` is unique in the message."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The next piece of a call's arguments (JSON text)."""

    index: int
    fragment: str


class CallEnd(msgspec.Struct, frozen=True, gc=False, tag=True):
    index: int


class Defect(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Something that was not as the format has it and was forgiven. `kind` is a stable word, `detail` is for people."""

    kind: str
    detail: str = ""


Event = Reasoning | Content | CallStart | CallArguments | CallEnd | Defect


def fold(events: Iterable[Event]) -> Message:
    """The message that a stream of events adds up to."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    defects: list[Defect] = []
    for event in events:
        match event:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart():
                starts.append(event)
                arguments.append([])
            case CallArguments(index, fragment):
                arguments[index].append(fragment)
            case Defect():
                defects.append(event)
            case CallEnd():
                pass
    calls = tuple(Call(s.id, s.name, "".join(a)) for s, a in zip(starts, arguments, strict=True))
    return Message("".join(content), "".join(reasoning), calls, tuple(defects))
