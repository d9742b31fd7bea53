"""GLM's calls: `glm45` (4.5, 4.6) and `glm47`. A parameter's type is its tool's to say.

    <tool_call>search
    <arg_key>query</arg_key>
    <arg_value>words</arg_value>
    </tool_call>

All tags are control tokens. GLM-4.7 writes no newlines between them. Source: Zhipu's chat templates.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.conversation import Message
from dovetail.formats.base import EngineParsers, Format, ReasoningBlock
from dovetail.formats.markup import markup, parameters, text
from dovetail.grammar import Concat, ExactText, Maybe, Node
from dovetail.reading import Script
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.tags import ParameterReader
from dovetail.tokens import Prompt, Segment

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
USER, OBSERVATION, END_OF_TEXT = "<|user|>", "<|observation|>", "<|endoftext|>"


class GlmReader(ParameterReader):
    controls = (THINK, THINK_END, CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END, USER, OBSERVATION, END_OF_TEXT)
    section, section_end, parameter_end = CALL, CALL_END, VALUE_END
    openers = (CALL,)
    inner = (CALL_END, KEY, KEY_END, VALUE, VALUE_END)
    ends = (USER, OBSERVATION, END_OF_TEXT)

    def _stops_of_values(self) -> tuple[str, ...]:
        others = (KEY, VALUE, CALL, CALL_END)
        return (VALUE_END, *others, *("\n" + other for other in others), *self.ends)

    def _section(self, opener: str) -> Script[None]:
        while True:
            yield from self._call()
            if not (yield from self._another_section()):
                return

    def _call(self) -> Script[None]:
        header, marker = yield from self._hold(LONGEST_HEADER, "{", *self.controls)
        if not marker:
            self._abandon(header, "truncated_call" if marker is None else "endless_header")
            return
        self._unread()
        name = header.strip()
        if name not in self._asked.tools and (not name or any(map(str.isspace, name))):
            self._abandon(header, "missing_name")
            name = "" if name or marker not in (KEY, VALUE) else self._only_tool() or ""
        if not name:
            marker = yield from self._between(CALL, CALL_END, THINK, THINK_END, *self.ends)
        else:
            self._begin_call(name)
            if marker == "{":
                self._defect("json_arguments", self._id)
                marker = yield from self._json_arguments(CALL, CALL_END, *self.ends)
                self._close_call(marker, CALL_END)
            else:
                marker = yield from self._body()
                self._close_parameters(marker, CALL_END)
        if marker not in (None, CALL_END):
            self._unread()

    def _body(self) -> Script[str | None]:
        while True:
            marker = yield from self._between(*self.controls)
            if marker == KEY:
                yield from self._parameter()
            elif marker in (KEY_END, VALUE, VALUE_END):
                self._stray_marker(marker)
            else:
                return marker

    def _parameter(self) -> Script[None]:
        key, marker = yield from self._hold(LONGEST_HEADER, *self.controls)
        if not marker:
            self._abandon(key, "truncated_call" if marker is None else "endless_header")
            return
        between = ""
        if marker == KEY_END:
            between, marker = yield from self._hold(LONGEST_HEADER, *self.controls)
        else:
            self._defect("missing_key_end", key)
        if marker == VALUE:
            self._misplaced(between)
            yield from self._parameter_value(key.strip())
            return
        self._unread()
        if marker == VALUE_END:
            self._defect("missing_value_start", key)
            yield from self._parameter_value(key.strip(), begun=between.removeprefix("\n"))
        else:
            self._abandon(key + between, "missing_value")


class Glm45Reader(GlmReader):
    openers = ("\n" + CALL,)

    def _content_begins(self) -> Script[None]:
        yield from self._skip("\n", 1)


class Glm45(Format):
    name = "glm45"
    vllm_parsers = EngineParsers("glm45", "glm45")
    sglang_parsers = EngineParsers("glm45", "glm45")
    reasoning: ReasoningBlock = "written"
    end_of_turn = (USER, OBSERVATION, END_OF_TEXT)
    _reader: type[GlmReader] = Glm45Reader
    _newline = "\n"

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        newline = self._newline
        segments: list[Segment] = []
        if thinking:
            if self.reasoning == "written":
                segments += self._markup(newline + THINK)
            segments += (text(message.reasoning), Segment(THINK_END, True))
        if message.content:
            segments.append(text(newline + message.content))
        for call in message.calls:
            segments += self._markup(f"{newline}{CALL}")
            segments.append(text(call.name + newline))
            for key, value, _ in parameters(call):
                segments += (Segment(KEY, True), text(key), *self._markup(f"{KEY_END}{newline}{VALUE}"))
                segments += (text(value), *self._markup(f"{VALUE_END}{newline}"))
            segments.append(Segment(CALL_END, True))
        return Prompt([*segments, Segment(OBSERVATION if message.calls else USER, True)])

    def _reasoned(self, thinking: bool) -> tuple[Node, ...]:
        """The newline in front of `<think>` is the model's to write."""
        match super()._reasoned(thinking):
            case (Maybe(block),):
                return (Maybe(Concat((Maybe(ExactText(self._newline)), block))),)
            case block:
                return block

    def _markup(self, literal: str) -> Iterator[Segment]:
        return markup(literal, self._reader.controls)


class Glm47(Glm45):
    name = "glm47"
    vllm_parsers = EngineParsers("glm47", "glm47")
    sglang_parsers = EngineParsers("glm47", "glm45")
    reasoning: ReasoningBlock = "opened"
    _reader = GlmReader
    _newline = ""
