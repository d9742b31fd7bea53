"""MiniMax-M2's calls: `minimax_m2`. A parameter's type is its tool's to say.

    <minimax:tool_call>
    <invoke name="search">
    <parameter name="query">words</parameter>
    </invoke>
    </minimax:tool_call>

Only the outer tags are control tokens. Source: MiniMax's chat template.
"""

from __future__ import annotations

from dovetail.conversation import Message
from dovetail.formats.base import EngineParsers, Format
from dovetail.formats.markup import markup, parameters, text
from dovetail.grammar import Node, TextUntil
from dovetail.reading.tags import TagReader
from dovetail.tokens import Prompt, Segment

THINK, THINK_END = "<think>", "</think>"
SECTION, SECTION_END, END = "<minimax:tool_call>", "</minimax:tool_call>", "[e~["


class MiniMaxReader(TagReader):
    controls = (THINK, THINK_END, SECTION, SECTION_END, END)
    think_end = "\n" + THINK_END
    after_think, after_think_end = 1, 2
    prompted_after_think = True
    section, section_end = SECTION, SECTION_END
    call, call_end, call_in_text = "<invoke", "</invoke>", "<invoke name="
    parameter, parameter_end, parameter_in_text = "<parameter", "</parameter>", "<parameter name="
    openers = ("\n" + SECTION, call_in_text)
    text_openers = (call_in_text,)
    inner = (SECTION_END,)
    ends = (END,)


class MiniMaxM2(Format):
    name = "minimax_m2"
    vllm_parsers = EngineParsers("minimax_m2", "minimax_m2")
    sglang_parsers = EngineParsers("minimax-m2", "minimax")
    end_of_turn = (END,)
    _reader = MiniMaxReader

    def _content(self) -> Node:
        return TextUntil("", without=self._reader.text_openers)  # a call, to our reader

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        segments: list[Segment] = []
        if thinking:
            segments = [text(message.reasoning), *markup(f"\n{THINK_END}\n\n", (THINK_END,))]
        segments.append(text(message.content))
        if message.calls:
            segments += markup(f"\n{SECTION}\n", (SECTION,))
            for call in message.calls:
                segments.append(text(f'<invoke name="{call.name}">\n'))
                for key, value, _ in parameters(call):
                    segments.append(text(f'<parameter name="{key}">{value}</parameter>\n'))
                segments.append(text("</invoke>\n"))
            segments.append(Segment(SECTION_END, True))
        return Prompt([*segments, Segment(END, True)])
