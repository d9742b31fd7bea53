"""The events that a reader emits, and `fold`, which turns them into a `Message`.

A reader returns lists of events from `feed` and `finish`; their concatenation is the stream.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dovetail.conversation import Call, Message


class Reasoning(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The next piece of the reasoning."""

    text: str


class Content(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The next piece of the text for the user."""

    text: str


class CallStart(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A call begins.

    `index`: the call's number in the message, from 0 without gaps. The call's other events carry it too.
    `id`: unique in the message.
    `name`: the tool's name.
    """

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The next piece of a call's arguments, which are JSON text."""

    index: int
    fragment: str


class CallEnd(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A call is complete, and its arguments parse as JSON.

    A call that was cut short, or whose arguments are invalid, has no `CallEnd`; a `Defect` says which it was.
    """

    index: int


class Defect(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A fault in the output that the reader forgave.

    `kind`: a stable word for programs.
    `detail`: an explanation for people.
    """

    kind: str
    detail: str = ""


Event = Reasoning | Content | CallStart | CallArguments | CallEnd | Defect


def fold(events: Iterable[Event]) -> Message:
    """The whole message of a stream of events."""
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
