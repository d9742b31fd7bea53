"""Qwen3-Coder's calls: `qwen3_coder`. A parameter's type is its tool's to say.

    <tool_call>
    <function=search>
    <parameter=query>
    words
    </parameter>
    </function>
    </tool_call>

Only `<tool_call>` and `</tool_call>` are control tokens. Source: Qwen's chat template. (It prints a true boolean as
`True`; what is written here is JSON, and either is read.)
"""

from __future__ import annotations

import re

from dovetail.conversation import Message
from dovetail.formats.base import EngineParsers, Format, ReasoningBlock
from dovetail.formats.markup import markup, parameters, text
from dovetail.grammar import Node, TextUntil
from dovetail.reading.tags import Attributes, TagReader
from dovetail.tokens import Prompt, Segment

THINK, THINK_END = "<think>", "</think>"
SECTION, SECTION_END, END = "<tool_call>", "</tool_call>", "<|im_end|>"
_WITH_ATTRIBUTES = re.compile(r"""([^\s"']+|"[^"]*"|'[^']*')(?:\s+[\w.:-]+=(?:"[^"]*"|'[^']*'))+""")


class Qwen3CoderReader(TagReader):
    controls = (THINK, THINK_END, SECTION, SECTION_END, END)
    think_end = "\n" + THINK_END
    after_think, after_think_end = 1, 2
    section, section_end = SECTION, SECTION_END
    call, call_end, call_in_text = "<function", "</function>", "<function="
    parameter, parameter_end, parameter_in_text = "<parameter", "</parameter>", "<parameter="
    newline_before_value = True
    tags_span_lines = False
    openers = ("\n\n" + SECTION, call_in_text)
    text_openers = (call_in_text,)
    inner = (SECTION_END,)
    ends = (END,)

    def _attributes(self, text: str) -> Attributes:
        equals, name = text.lstrip()[:1], text.lstrip()[1:].strip()
        if equals != "=":
            found = super()._attributes(text)
            return found._replace(defect=found.defect or "missing_attribute") if "name" in found.values else found
        defect = None
        if not self._is_declared(name) and (longer := _WITH_ATTRIBUTES.fullmatch(name)):
            name, defect = longer[1], "extra_attributes"
        if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
            name, defect = name[1:-1], defect or "attribute_quotes"
        return Attributes({"name": name}, defect, "", len(text))


class Qwen3Coder(Format):
    name = "qwen3_coder"
    vllm_parsers = EngineParsers("qwen3_coder")
    sglang_parsers = EngineParsers("qwen3_coder")
    trtllm_parsers = EngineParsers("qwen3_coder")
    reasoning: ReasoningBlock = "none"
    end_of_turn = (END,)
    _reader = Qwen3CoderReader

    def _content(self) -> Node:
        return TextUntil("", without=self._reader.text_openers)  # a call, to our reader

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        segments: list[Segment] = []
        if thinking and message.reasoning:
            segments += (*markup(f"{THINK}\n", (THINK,)), text(message.reasoning))
            segments += markup(f"\n{THINK_END}\n\n", (THINK_END,))
        segments.append(text(message.content))
        for i, call in enumerate(message.calls):
            newlines = "\n" if i else "\n\n" if message.content else ""
            segments += markup(f"{newlines}{SECTION}\n", (SECTION,))
            segments.append(text(f"<function={call.name}>\n"))
            for key, value, _ in parameters(call):
                segments.append(text(f"<parameter={key}>\n{value}\n</parameter>\n"))
            segments += markup(f"</function>\n{SECTION_END}", (SECTION_END,))
        return Prompt([*segments, Segment(END, True)])
