"""A reader's events as the content blocks of Anthropic's Messages API, one after the other.

A block is open until something else comes. Text inside a call becomes a block after the call, because a reader may go
on with the call's arguments behind it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from dovetail.events import CallArguments, CallStart, Content, Defect, Event, Reasoning
from dovetail.reading.json_prefix import JsonPrefix, is_whole_scalar


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str = ""


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str = ""
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    data: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """`input` is {} where a stream starts the block."""

    id: str
    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: Delta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int


BlockEvent = BlockStart | BlockDelta | BlockStop


class Blocks:
    """Turns events into events of blocks. `whole` has the blocks that are over.

    `sign`: makes the signature of a thinking block from the text that the client gets. `shows_thinking`: whether the
    client gets the text of thinking.
    """

    def __init__(self, sign: Callable[[str], str], *, shows_thinking: bool) -> None:
        self.whole: list[Block] = []
        self._sign = sign
        self._shows_thinking = shows_thinking
        self._open: Block | None = None
        self._texts: list[str] = []  # of the open block of text or thinking
        self._input = ToolInput()
        self._stray: list[str] = []  # text inside the open call

    def feed(self, events: Iterable[Event]) -> Iterator[BlockEvent]:
        """The events of blocks that `events` make."""
        for event in _joined(events):
            match event:
                case Content(text):
                    if isinstance(self._open, ToolUseBlock):
                        self._stray.append(text)
                    else:
                        yield from self._text(text)
                case Reasoning(text):
                    yield from self._thinking(text)
                case CallStart(_, call_id, name):
                    yield from self.close()
                    self._input = ToolInput()
                    yield from self._start(ToolUseBlock(call_id, name))
                case CallArguments(_, fragment):
                    if piece := self._input.feed(fragment):
                        yield self._delta(InputJsonDelta(piece))
                case _:  # the end of the open call
                    if rest := self._input.end():
                        yield self._delta(InputJsonDelta(rest))
                    yield from self._stop_call(ended=True)

    def add(self, block: RedactedThinkingBlock) -> Iterator[BlockEvent]:
        """Add a block that is complete."""
        yield from self.close()
        yield from self._start(block)
        yield from self._stop(block)

    def close(self) -> Iterator[BlockEvent]:
        """End the open block, if there is one, and the text inside it."""
        if isinstance(self._open, ToolUseBlock):
            yield from self._stop_call(ended=False)
        text = "".join(self._texts)
        if isinstance(self._open, TextBlock):
            yield from self._stop(TextBlock(text))
        elif isinstance(self._open, ThinkingBlock):
            signature = self._sign(text)
            yield self._delta(SignatureDelta(signature))
            yield from self._stop(ThinkingBlock(text, signature))

    def _text(self, text: str) -> Iterator[BlockEvent]:
        if not isinstance(self._open, TextBlock):
            yield from self.close()
            yield from self._start(TextBlock())
        self._texts.append(text)
        yield self._delta(TextDelta(text))

    def _thinking(self, text: str) -> Iterator[BlockEvent]:
        if not isinstance(self._open, ThinkingBlock):
            yield from self.close()
            yield from self._start(ThinkingBlock())
        if self._shows_thinking:
            self._texts.append(text)
            yield self._delta(ThinkingDelta(text))

    def _stop_call(self, *, ended: bool) -> Iterator[BlockEvent]:
        assert isinstance(self._open, ToolUseBlock)
        whole_input = msgspec.Raw(self._input.json(ended=ended).encode())
        yield from self._stop(msgspec.structs.replace(self._open, input=whole_input))
        if stray := "".join(self._stray):
            self._stray.clear()
            yield from self._text(stray)

    def _start(self, block: Block) -> Iterator[BlockEvent]:
        self._open = block
        self._texts = []
        yield BlockStart(len(self.whole), block)

    def _delta(self, delta: Delta) -> BlockDelta:
        return BlockDelta(len(self.whole), delta)

    def _stop(self, block: Block) -> Iterator[BlockEvent]:
        yield BlockStop(len(self.whole))
        self.whole.append(block)
        self._open = None


def _joined(events: Iterable[Event]) -> Iterator[Event]:
    """`events` without defects; those that extend the same text are one."""
    visible = (event for event in events if not isinstance(event, Defect))
    for kind, run in itertools.groupby(visible, type):
        if kind is Content:
            yield Content("".join(event.text for event in run if isinstance(event, Content)))
        elif kind is Reasoning:
            yield Reasoning("".join(event.text for event in run if isinstance(event, Reasoning)))
        elif kind is CallArguments:
            first, *more = (event for event in run if isinstance(event, CallArguments))
            yield CallArguments(first.index, "".join((first.fragment, *(event.fragment for event in more))))
        else:
            yield from run


_TOKEN = re.compile(r'\s*(?:("[^"\\]*+(?:\\.[^"\\]*+)*+")|([{}\[\],:])|([^\s"{}\[\],:]++))', re.DOTALL)


class ToolInput:
    """Splits the arguments of one call into pieces that a client can parse."""

    def __init__(self) -> None:
        self._prefix = JsonPrefix()
        self._pieces: list[str] = []
        self._unread: list[str] = []  # from the first character on that cannot follow

    def feed(self, fragment: str) -> str:
        """The part of `fragment` to pass on now."""
        if self._unread:
            self._unread.append(fragment)
            return ""
        if not self._pieces:
            fragment = fragment.lstrip()
            if fragment[:1] not in ("", "{"):
                self._unread.append(fragment)
                return ""
        if fragment and not self._prefix.feed(fragment):
            fragment, rest = self._split(fragment)
            self._unread.append(rest)
        if fragment:
            self._pieces.append(fragment)
        return fragment

    def _split(self, fragment: str) -> tuple[str, str]:
        """`fragment` up to the first character that cannot follow, and the rest."""
        prefix = JsonPrefix()
        prefix.feed("".join(self._pieces))
        at = next(i for i, character in enumerate(fragment) if not prefix.feed(character))
        return fragment[:at], fragment[at:]

    def end(self) -> str:
        """The rest to pass on at the end of a call, whose arguments are valid after all."""
        rest = "".join(self._unread)
        self._unread.clear()
        self._pieces.append(rest)
        return rest

    def json(self, *, ended: bool) -> str:
        """The input as JSON. `ended`: whether the call has ended; else it is the object that the pieces begin."""
        text = "".join(self._pieces)
        return text if ended else begun_object(text)


def begun_object(text: str) -> str:
    """The JSON object that `text` begins, without a last key or value that may not be complete; {} for no text."""
    closers: list[str] = []
    at = end = 0
    expects_key = False
    while token := _TOKEN.match(text, at):
        at = token.end()
        string, mark, scalar = token.groups()
        if mark == ",":
            expects_key = closers[-1] == "}"
        elif mark == ":":
            expects_key = False
        elif mark in ("{", "["):
            closers.append("}" if mark == "{" else "]")
            expects_key = mark == "{"
            end = at
        elif mark:
            closers.pop()
            expects_key = False
            end = at
        elif (string and not expects_key) or (scalar and is_whole_scalar(scalar)):
            end = at
    return text[:end] + "".join(reversed(closers)) if end else "{}"
