"""DeepSeek's calls before DSML: `deepseek_v3` (V3, R1) and `deepseek_v31` (V3.1).

A section `<｜tool▁calls▁begin｜>…<｜tool▁calls▁end｜>` contains calls `<｜tool▁call▁begin｜>…<｜tool▁call▁end｜>`.
In V3 a call is `function<｜tool▁sep｜>NAME` and then the arguments in a code fence (three backticks and `json`).
In V3.1 it is `NAME<｜tool▁sep｜>` and the arguments. Each reader reads both.
Source: DeepSeek's chat templates and tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.events import Message
from dovetail.formats.base import EngineParsers, Format, Messages, ReasoningBlock
from dovetail.formats.families import deepseek_v3_prompt as prompts
from dovetail.formats.families.deepseek_v3_prompt import (
    BEGIN,
    CALL,
    CALL_END,
    END,
    FENCE,
    LANGUAGE,
    RESULTS,
    SECTION,
    SECTION_END,
    SEPARATOR,
    THINK,
    THINK_END,
    TYPE,
)
from dovetail.formats.prompts.history import HistoryRules
from dovetail.reading import CallReader, Script
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_text import WHITESPACE
from dovetail.tokens import Prompt

_FENCED = re.compile(rf"\s*([^\n`]*)\s*({FENCE}(?:{LANGUAGE})?)?(.*)", re.DOTALL)


#: What models write for the bars and the underscores of a token.
_SIGNS = [(bar, line) for bar in "｜|" for line in "▁_ "][1:]
_OTHER_MARKS = {
    mark.replace("｜", bar).replace("▁", line): mark
    for mark in (SECTION, CALL, SECTION_END, SEPARATOR, CALL_END)
    for bar, line in _SIGNS
}
_OTHER_OPENERS = tuple(mark for mark, meant in _OTHER_MARKS.items() if meant in (SECTION, CALL))


class DeepSeekV3Reader(CallReader):
    begin_of_text = (BEGIN,)
    controls = (THINK, THINK_END, SECTION, SECTION_END, CALL, SEPARATOR, CALL_END, *RESULTS, END)
    openers = (SECTION, CALL)
    other_marks = _OTHER_MARKS
    other_openers = _OTHER_OPENERS
    inner = (SECTION_END, SEPARATOR, CALL_END, *RESULTS, *(mark for mark in _OTHER_MARKS if mark not in _OTHER_OPENERS))
    ends = (END,)
    #: Whether a call has a type before its name, and a code fence around its arguments.
    fenced = True
    unopened = (TYPE + SEPARATOR,)
    before_arguments = (SEPARATOR,)

    def _section(self, opener: str) -> Script[None]:
        meant = _OTHER_MARKS.get(opener, opener)
        opened = meant == SECTION
        if meant == CALL:
            self._defect("missing_section")
            self._unread()
        elif meant != opener:
            self._meant_mark(opener)
        elif not opened:  # the beginning of a call, see `unopened`
            yield from self._call()
        unopened = self._unopened()
        while True:
            marker = self._meant_mark((yield from self._between(*unopened, *_OTHER_MARKS, *self.controls)))
            if marker == CALL:
                yield from self._call()
            elif marker in unopened:
                self._defect("missing_call_start")
                self._unread()
                yield from self._call()
            elif marker == SECTION_END:
                return
            elif marker in (SEPARATOR, CALL_END, *RESULTS):
                self._stray_marker(marker or "")
            elif marker == SECTION:
                if opened:
                    self._stray_marker(SECTION)
                opened = True
            else:
                if marker in (None, END):
                    self._defect("missing_section_end")
                self._unread()
                return

    def _call(self) -> Script[None]:
        kind, marker = yield from self._read_up_to(LONGEST_HEADER, "{", "[", *_OTHER_MARKS, *self.controls)
        marker = self._meant_mark(marker)
        separated = marker == SEPARATOR
        header = kind
        if separated:
            while (yield from self._next_is(SEPARATOR)):
                self._stray_marker(SEPARATOR)
            header, marker = yield from self._read_up_to(LONGEST_HEADER, "{", "[", *_OTHER_MARKS, *self.controls)
            marker = self._meant_mark(marker)
        if marker not in ("{", "[", CALL_END):
            if marker:
                self._unread()
            defect = {None: "truncated_call", "": "endless_header"}.get(marker, "call_without_arguments")
            self._abandon(kind + header if separated and kind.strip() != TYPE else header, defect)
            return
        fenced = self.fenced and FENCE in header
        name, rest = self._name(kind.strip() if separated else "", header)
        if not name:
            self._abandon(header, "missing_name")
            if marker != CALL_END:
                self._unread()
            return
        self._open_call(name)
        if not separated:
            self._defect("missing_separator", self._id)
        stops = (SECTION, SECTION_END, CALL, CALL_END, END, *_OTHER_MARKS)
        if marker == CALL_END:
            self._take_arguments(rest.removesuffix(FENCE).rstrip())
        else:
            self._unread()
            if rest == '"':
                self._take_arguments(rest)
            elif rest:
                self._abandon(rest, "text_in_section")
            fence = ("\n" + FENCE,) if fenced else ()
            marker = yield from self._only_arguments(*stops, *fence)
            if marker == FENCE:
                marker = yield from self._between(*stops)
            if marker == "":
                yield from self._skip(WHITESPACE)
                if not (yield from self._next_is(FENCE)) and fenced and (yield from self._peek()) in self.controls:
                    self._defect("missing_fence", name)
                while (yield from self._next_is(FENCE)):
                    self._stray_marker(FENCE)
                marker = yield from self._between(*stops)
        marker = self._meant_mark(marker)
        self._close_call(marker, CALL_END)
        if marker not in (None, CALL_END):
            self._unread()

    def _name(self, kind: str, header: str) -> tuple[str, str]:
        """The call's name, and text that is neither name nor markup.

        `kind`: the text before the separator. `header`: the text after it.
        """
        named, fence, rest = _FENCED.fullmatch(header).groups()  # type: ignore[union-attr]  # it matches everything
        named = named.strip()
        tools = self._options.tools
        after_separator = named and (kind == TYPE or (kind not in tools and (self.fenced or named in tools)))
        if after_separator or not kind:
            name = named
            if not kind and name not in tools and name.removeprefix(TYPE) in tools:
                name = name.removeprefix(TYPE)
            if kind not in ("", TYPE):
                self._abandon(kind, "unknown_type")
        elif kind == TYPE and self.fenced:
            return "", ""
        else:
            name, rest = kind, f"{named}{rest}"
        if self.fenced and fence is None:
            self._defect("missing_fence", name)
        elif self.fenced and fence == FENCE:
            self._defect("missing_language", name)
        elif fence is not None and not self.fenced:
            self._defect("fenced_arguments", name)
        return name, rest.strip()


class DeepSeekV31Reader(DeepSeekV3Reader):
    fenced = False
    unopened = ("{name}" + SEPARATOR,)


class DeepSeekV3(Format):
    """V3 does not reason. R1 does, and is read in the same way.

    The template declares no tools: an application describes them in the system message.
    """

    name = "deepseek_v3"
    vllm_parsers = EngineParsers("deepseek_v3")
    sglang_parsers = EngineParsers("deepseekv3")
    trtllm_parsers = EngineParsers("deepseekv3")
    history_rules = HistoryRules(parts="text", developer=False, system="first", results_in_order=True)
    reasoning: ReasoningBlock = "none"
    end_of_turn = (END,)
    reader_type: type[DeepSeekV3Reader] = DeepSeekV3Reader

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        pieces: list[str] = []
        if thinking and message.reasoning:
            pieces += ("", THINK, message.reasoning, THINK_END)
        return self._written(pieces, message)

    def _written(self, pieces: list[str], message: Message) -> Prompt:
        calls = [(call.name, call.arguments) for call in message.calls]
        prompts.add_answer(pieces, "", message.content, calls, fenced=self.reader_type.fenced)
        return Prompt.alternating(pieces)

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        return prompts.v3(messages, open_turn)


class DeepSeekV31(DeepSeekV3):
    """V3.1 can reason. Its template declares no tools either; the model card shows how to describe them."""

    name = "deepseek_v31"
    vllm_parsers = EngineParsers("deepseek_v31", "deepseek_v3")
    sglang_parsers = EngineParsers("deepseekv31", "deepseek-v3")
    trtllm_parsers = EngineParsers("deepseekv3.1")
    reasoning: ReasoningBlock = "opened"
    reader_type = DeepSeekV31Reader

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        return self._written([message.reasoning, THINK_END] if thinking else [], message)

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        return prompts.v31(messages, tools, thinking, open_turn)
