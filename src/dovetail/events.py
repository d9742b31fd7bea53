"""The events that a reader emits, and the `Message` into which `fold` turns them.

A reader returns lists of events from `feed` and `finish`; their concatenation is the stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec


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


#: What shows nothing to a reader: white space, control characters and characters without a width, as the inside of a
#: regex's class (Unicode 16, White_Space and the categories Cc and Cf, as far as models write them).
INVISIBLE = r"\u0000-\u0020\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
_VISIBLE = re.compile(f"[^{INVISIBLE}]")

Event = Reasoning | Content | CallStart | CallArguments | CallEnd | Defect


class Call(msgspec.Struct, frozen=True):
    """One tool call.

    `id`: unique in the conversation; a tool's result refers to it.
    `name`: the tool's name.
    `arguments`: the arguments as JSON text, as OpenAI's API sends them.
    """

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True):
    """An assistant's answer, as a reader understood it.

    `content`: the text for the user; "" if there is none.
    `reasoning`: the text of the reasoning block; "" if there is none.
    `calls`: the tool calls in order.
    `defects`: the faults in the output that the reader forgave.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    defects: tuple[Defect, ...] = ()

    @property
    def says_something(self) -> bool:
        """Whether there is a call, or a character of content that a reader can see."""
        return bool(self.calls) or is_visible(self.content)

    def to_openai(self) -> dict[str, Any]:
        """The message as an OpenAI client gets it, for the history of the next request."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return message


def is_visible(text: str) -> bool:
    """Whether `text` has a character that a reader can see."""
    return _VISIBLE.search(text) is not None


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
