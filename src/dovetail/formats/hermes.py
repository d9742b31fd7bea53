"""Calls as JSON in tags: `hermes` (Nous Hermes, Qwen2.5) and `qwen3`, which reasons.

A call is `{"name": …, "arguments": {…}}`, on a line of its own between `<tool_call>` and `</tool_call>`; the calls
stand after the text. Source: the models' chat templates.
"""

from __future__ import annotations

from dovetail.conversation import Message
from dovetail.events import Content
from dovetail.formats.base import EngineParsers, Format, ReasoningBlock
from dovetail.reading import Script
from dovetail.reading.envelope import EnvelopeReader
from dovetail.tokens import Prompt, Segment

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
END, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"


class HermesReader(EnvelopeReader):
    controls = (THINK, THINK_END, CALL, CALL_END, END, END_OF_TEXT)
    openers = ("\n" + CALL,)
    inner = (CALL_END,)
    ends = (END, END_OF_TEXT)
    call_end = CALL_END

    def _section(self, opener: str) -> Script[None]:
        before = self._index
        stops = (CALL, CALL_END, *self.ends)
        marker = yield from self._envelopes(*stops)
        if marker == "" and self._index == before:
            self._defect("unreadable_call")
            marker = yield from self._prose(Content, *stops)
        elif marker == "":
            marker = yield from self._pass(self._stray_text, self._stray_marker, stops)
        if marker == CALL_END:
            yield from self._after_calls()
        elif marker is not None:
            self._unread()


class Qwen3Reader(HermesReader):
    think_end = "\n" + THINK_END
    after_think, after_think_end = 1, 2


class Hermes(Format):
    name = "hermes"
    vllm_parsers = EngineParsers("hermes")
    sglang_parsers = EngineParsers("hermes")
    reasoning: ReasoningBlock = "none"
    end_of_turn = (END,)
    _reader: type[HermesReader] = HermesReader

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        segments: list[Segment] = []
        if thinking and (message.reasoning or self.reasoning == "written"):
            before, after = "\n" * self._reader.after_think, self._reader.think_end.removesuffix(THINK_END)
            segments += (Segment(THINK, True), Segment(before + message.reasoning + after, False))
            segments += (Segment(THINK_END, True), Segment("\n" * self._reader.after_think_end, False))
        segments.append(Segment(message.content, False))
        for i, call in enumerate(message.calls):
            segments += (Segment("\n" if i or message.content else "", False), Segment(CALL, True))
            envelope = f'\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n'
            segments += (Segment(envelope, False), Segment(CALL_END, True))
        return Prompt([*segments, Segment(END, True)])


class Qwen3(Hermes):
    """The model writes `<think>` itself; where thinking is off, the prompt holds an empty block."""

    name = "qwen3"
    vllm_parsers = EngineParsers("hermes", "qwen3")
    sglang_parsers = EngineParsers("qwen", "qwen3")
    trtllm_parsers = EngineParsers("qwen3", "qwen3")
    reasoning: ReasoningBlock = "written"
    _reader = Qwen3Reader
