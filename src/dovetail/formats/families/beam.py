"""Beam's answers: `beam`, gpt-oss' messages on channels, with tags in the messages to tools.

    <rfl:parameter name="city">
    Paris
    </rfl:parameter>

The prompt begins the first header. In one of a call, the recipient comes first, and the type is `xml`. Reasoning is a
message on the channel `analysis`, and content one on `final`. A call ends as any message does, or as a turn with calls
does. The tags are text. Sources: the parsers of vLLM and SGLang. (No chat template of the model is at hand.)
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.conversation import Tool
from dovetail.events import Message
from dovetail.formats.answers import call_envelope
from dovetail.formats.base import EngineParsers
from dovetail.formats.declared.declared import parameters
from dovetail.formats.families.harmony import ChannelFormat, HarmonyAnswers, HarmonyReader, Header
from dovetail.formats.families.harmony_prompt import (
    ANALYSIS,
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FINAL,
    MESSAGE,
    RETURN,
    ROLE,
    START,
    add_message,
)
from dovetail.grammar import Choice, Concat, ExactText, Node, Repeat
from dovetail.reading import Script
from dovetail.reading.tags import TagReader
from dovetail.tokens import Prompt, Segment

TO, TYPE = " to=", "xml"


class BeamReader(HarmonyReader, TagReader):
    """Reads messages as gpt-oss' are read, and tags in those to tools."""

    begin_of_text = ()
    ends = (CALL, END, RETURN, START)
    section, section_end = "<rfl:function_calls>", "</rfl:function_calls>"
    call = call_in_text = "<rfl:invoke"
    call_end = CALL
    parameter, parameter_in_text = "<rfl:parameter", '<rfl:parameter name="'
    parameter_end = "</rfl:parameter>"
    newline_before_value = True
    one_line = True
    _bodies = ("{", parameter)
    _without_marker = (*HarmonyReader._without_marker, ROLE + TO, TO)

    def _call(self, header: Header, marker: str | None) -> Script[None]:  # type: ignore[override]  # no tag opens it
        self._begin_call(header.recipient)
        if marker in self._message_ends:
            self._close_parameters(marker, CALL)
            return
        while (again := (yield from self._after_space(MESSAGE, self.section, self.call))) is not None:
            self._stray_marker(again)
            if again == self.call:
                yield from self._tag()
        yield from self._body()
        yield from self._next_is(END, RETURN)

    def _ends_call(self, marker: str) -> bool:
        return marker == END or super()._ends_call(marker)

    def _close_parameters(self, marker: str | None, end: str) -> None:
        over = marker is None and not (self._parameters.unfinished or self._cut_off)
        super()._close_parameters(end if over or marker == END else marker, end)


class BeamAnswers(HarmonyAnswers):
    channel_before_calls = FINAL

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        called = []
        for index, tool in tools.items():
            arguments = self._envelope.filled(self.slots(index, tool))[call_envelope.ARGUMENTS]
            called.append(Concat((ExactText(TO + tool.name), arguments)))
        call = Choice(tuple(called))
        return Concat((call, Repeat(Concat((*self.next, call)), 0))) if parallel else call

    def write_indexed(self, message: Message) -> Prompt:
        # What the prompt writes of the first call, too, because an envelope begins with a control token.
        return Prompt([Segment(START, True), *super().write_indexed(message).segments])


class Beam(ChannelFormat):
    name = "beam"
    vllm_parsers = EngineParsers("beam", "beam")
    sglang_parsers = EngineParsers("beam", "beam")
    inside_turns = (END, START)
    reader_type = BeamReader
    _answers = BeamAnswers

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        pieces: list[str] = []
        if thinking and message.reasoning:
            add_message(pieces, ANALYSIS, message.reasoning)
        if message.content or not message.calls:
            add_message(pieces, FINAL, message.content)
        for call in message.calls:
            tags = (f'<rfl:parameter name="{key}">\n{value}\n</rfl:parameter>' for key, value, _ in parameters(call))
            header = ("", START, ROLE + TO + call.name, CHANNEL, f"{ANALYSIS} ", CONSTRAIN, TYPE, MESSAGE)
            pieces += (*header, "".join(tags), END)
        pieces[-1] = CALL if message.calls else RETURN
        return Prompt.alternating([pieces[2].removeprefix(ROLE), *pieces[3:]])  # the prompt begins the first message
