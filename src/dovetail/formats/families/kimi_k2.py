"""The Kimi K2 family's language: `kimi_k2`, `kimi_k2_thinking` and `kimi_k25` (K2.5, K2.6).

A turn is `<|im_user|>NAME<|im_middle|>TEXT<|im_end|>`. Calls are in a section after the text. Each has an id
`functions.NAME:IDX`, where IDX counts over the whole conversation. Source: Moonshot's chat template and tokenizer.

K2 and K2-Thinking declare tools as JSON and add a system message if there is none; K2.5 declares tools as TypeScript.
docs/decisions/0009 says which of the published templates this follows. The pieces of prompts and answers are flat lists
for `Prompt.alternating`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.events import Message
from dovetail.formats.answers.answer_grammar import AnswerGrammar
from dovetail.formats.base import EngineParsers, Format, Messages, ReasoningBlock
from dovetail.formats.declarations import (
    Undeclarable,
    cached,
    in_typescript,
    sorted_deeply,
    sorted_json,
    typescript_order,
)
from dovetail.formats.parts import arguments_json, text_of
from dovetail.formats.prompts.history import HistoryRules
from dovetail.grammar import Concat, ExactText, Index, Node
from dovetail.reading import ReaderOptions, Script
from dovetail.reading.bare_json import fits
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_end import JsonEnd
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.prose import FARTHEST_CALL, MOST_SPACE
from dovetail.reading.two_languages import JsonInTags
from dovetail.tokens import PicturePlace, Prompt, Tokenizer

THINK, THINK_END = "<think>", "</think>"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
#: Other spellings of the markers, which are ordinary text to the tokenizer, each with the marker that it means; ""
#: means nothing.
_OTHER_OPENERS = ("<|tool_call_section_begin|>", "<|tool_calls_begin|>")
_OTHER_MARKS = {
    **dict.fromkeys(_OTHER_OPENERS, SECTION),
    **dict.fromkeys(("<|tool_call_section_end|>", "<|tool_calls_end|>"), SECTION_END),
    **dict.fromkeys(("<|tool_call_arguments_begin|>", "<|tool_call_args_begin|>", "<|tool_call_sep|>"), ARGUMENTS),
    **dict.fromkeys(("<|tool_call_argument_end|>", "<|tool_call_arguments_end|>", "<|tool_call_args_end|>"), ""),
}
MIDDLE, END = "<|im_middle|>", "<|im_end|>"
_USER, _ASSISTANT, _SYSTEM = "<|im_user|>", "<|im_assistant|>", "<|im_system|>"

#: The beginning of the model's turn.
OPENING = ("", _ASSISTANT, "assistant", MIDDLE)
#: The end of a turn with calls.
AFTER_CALLS = ("", SECTION_END, "", END)
DEFAULT_SYSTEM = ("", _SYSTEM, "system", MIDDLE, "You are Kimi, an AI assistant created by Moonshot AI.", END)

#: What stands for a picture in K2.5.
_PICTURE = "<|media_pad|>"
#: K2 cannot see images. Its template writes this, which is ordinary text to its tokenizer.
_IMAGE_IN_WORDS = "<|media_start|>image<|media_content|><|media_pad|><|media_end|>\n"
_VIDEO_IN_WORDS = "<|kimi_k25_video_placeholder|>\n"

#: Adds a content of parts to the pieces, given the text before it, the control token after it, and the message's index.
AddParts = Callable[[list[str], Sequence[Mapping[str, Any]], str, str, int], None]

PREFIX = "functions."
_INDEXED = re.compile(r"(.*?):([0-9]{1,9})", re.DOTALL)
#: An id in which other characters stand for the dot and the colon, as clients write them that allow neither.
_SANITISED = re.compile(
    r"(?:functions?[^A-Za-z0-9])?(.+?)(?:[^A-Za-z0-9]*(?:call_?)?([0-9]{1,9})?[^A-Za-z0-9]*)", re.DOTALL
)
#: The beginning of a call in JSON up to its name, and what may become that.
_GAP = rf"\s{{0,{MOST_SPACE}}}"
_NAMED = re.compile(rf'\{{{_GAP}"(?:name|function)"{_GAP}:{_GAP}"([^"\\]{{1,128}})"')
_MAY_BE_NAMED = re.compile(rf'(?:\{{{_GAP}(?:"(?:\w{{0,8}}(?:"{_GAP}(?::{_GAP}(?:"[^"\\]{{0,128}})?)?)?)?)?)?')
#: The number of an id, perhaps not all of it.
_BEGUN_INDEX = re.compile(r":[0-9]{0,9}\s*\Z")
#: An id of other families or clients, which has no name in it; a number; nothing.
_NAMELESS = re.compile(
    r"(?:call|toolu|tool|fc|id|chatcmpl-tool)[-_:][\w-]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|(?=[a-z]*[0-9])(?:[0-9a-f]{8,40}|[0-9a-z]{9})|[0-9]{1,9}|",
    re.ASCII | re.IGNORECASE,
)


#: What ends a call's arguments.
_STOPS = (
    SECTION,
    SECTION_END,
    CALL,
    CALL_END,
    END,
    *(mark for mark, meant in _OTHER_MARKS.items() if meant != ARGUMENTS),
)


class KimiReader(JsonInTags):
    """Reads `reasoning</think>content` and a section of calls, and forgives the faults of real models."""

    controls = (THINK, THINK_END, SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END, END)
    openers = (SECTION, CALL, *_OTHER_OPENERS)
    other_marks = _OTHER_MARKS
    section, section_end = SECTION, SECTION_END
    before_arguments = (ARGUMENTS,)
    inner = (SECTION_END, ARGUMENTS, CALL_END, *(mark for mark in _OTHER_MARKS if mark not in _OTHER_OPENERS))
    begin_of_text = ("[BOS]",)
    ends = (END,)

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._free: dict[str, int] = {}  # by name: the lowest index that may be free
        super().__init__(options, tokenizer)

    def _section(self, opener: str) -> Script[None]:
        if opener == CALL:
            self._defect("missing_section")
            self._unread()
        else:
            self._meant_mark(opener)
            yield from self._skip(WHITESPACE)
            if (yield from self._peek()) != CALL and (yield from self._json_section()):
                return
        opened = opener != CALL
        while True:
            marker = self._meant_mark((yield from self._between(PREFIX, *_OTHER_MARKS, *self.controls)))
            if marker == CALL:
                yield from self._call()
            elif marker == PREFIX:
                self._defect("missing_call_start")
                self._unread()
                yield from self._call()
            elif marker == SECTION_END:
                return
            elif marker in (ARGUMENTS, CALL_END):
                self._stray_marker(marker)
            elif marker == SECTION:
                if opened:
                    self._stray_marker(marker)
                opened = True
            elif marker != "":
                if marker in (None, END):
                    self._defect("missing_section_end")
                self._unread()
                return

    def _call(self) -> Script[None]:
        spelled = tuple(mark for mark, meant in _OTHER_MARKS.items() if meant == ARGUMENTS)
        header, marker = yield from self._read_up_to(LONGEST_HEADER, "{", *spelled, *self.controls)
        marker = self._meant_mark(marker)
        if marker not in ("{", ARGUMENTS, CALL_END):
            self._unread()
            self._abandon(header, {None: "truncated_call", "": "endless_header"}.get(marker, "call_without_arguments"))
            return
        if marker == "{":
            self._unread()
        if marker == "{" and not header.strip() and (yield from self._json_in_call()):
            return
        name, index = self._name_and_index(header.strip())
        if self._is_nameless(name):
            name = (yield from self._tool_of_arguments(header)) or name
        if not name:
            self._abandon(header, "missing_name")
            return
        self._open_kimi_call(name, index)
        if marker == "{":
            self._defect("glued_arguments", self._id)
        while marker == ARGUMENTS and (yield from self._next_is(ARGUMENTS)):
            self._stray_marker(ARGUMENTS)
        if marker != CALL_END:
            marker = yield from self._json_arguments(*_STOPS)
            while _OTHER_MARKS.get(marker or "") == "":
                self._meant_mark(marker)
                marker = yield from self._between(*_STOPS)
        self._close_call(marker, CALL_END)
        if marker not in (None, CALL_END):
            self._unread()

    def _json_in_call(self) -> Script[bool]:
        """Read a call that is a JSON object with a name in it; False if other JSON comes."""
        match = yield from self._look(_NAMED, _MAY_BE_NAMED)
        if match is None or self._tool(match[1]) not in self._options.tools:
            return False
        self._defect("other_syntax", CALL)
        yield from self._skip("{", 1)
        marker = yield from self._object(["{"], *_STOPS)
        if marker == "" and (marker := (yield from self._between(*_STOPS))) != CALL_END:
            self._defect("missing_call_end", self._id)
        if marker not in (None, CALL_END):
            self._unread()
        return True

    def _begins_call(self, text: str) -> bool:
        begun = _BEGUN_INDEX.sub("", self._without_begun_mark(text))
        return PREFIX.startswith(begun.strip()) or super()._begins_call(begun)

    def _open_kimi_call(self, name: str, index: int | None) -> None:
        name = self._meant(name)
        number = self._index + 1 if index is None else index
        call_id = f"functions.{name}:{number}"
        if call_id in self._ids:
            if index is not None:
                self._defect("duplicate_id", call_id)
            # An index that was taken once is not tried again, so that the cost of a call does not grow.
            number = max(number, self._free.get(name, 0))
            while (call_id := f"functions.{name}:{number}") in self._ids:
                number += 1
            self._free[name] = number + 1
        self._open_call(name, call_id)

    def _name_and_index(self, header: str) -> tuple[str, int | None]:
        """The name in a call's id, and its number."""
        indexed = _INDEXED.fullmatch(header)
        name, index = (indexed[1], int(indexed[2])) if indexed else (header, None)
        prefixed = name.startswith(PREFIX) and name not in self._options.tools
        if prefixed:
            name = name.removeprefix(PREFIX)
        if self._options.tools and self._tool(name) not in self._options.tools:
            if (sanitised := _SANITISED.fullmatch(name)) and self._tool(sanitised[1]) in self._options.tools:
                self._defect("misspelled_name", header)
                return sanitised[1], int(sanitised[2]) if index is None and sanitised[2] else index
            if self._is_nameless(name):
                return name, int(name) if name.isdecimal() else index
        if indexed is None:
            self._defect("missing_index", header)
        if header and not prefixed:
            self._defect("missing_prefix", header)
        return name, index

    def _is_nameless(self, name: str) -> bool:
        """Whether what stands where a tool's name belongs is an id without one."""
        return self._tool(name) not in self._options.tools and _NAMELESS.fullmatch(name) is not None

    def _tool_of_arguments(self, header: str) -> Script[str | None]:
        """The tool that a call without a name must mean: the only one, or the only one that the arguments fit."""
        tools = [*self._options.tools]
        if len(tools) > 1:
            yield from self._skip(WHITESPACE, MOST_SPACE)
            arguments = yield from self._coming_object()
            tools = [name for name, schema in self._options.tools.items() if fits(arguments, schema)]
        if len(tools) != 1:
            return None
        self._defect("missing_name", header)
        return tools[0]

    def _coming_object(self) -> Script[str]:
        """The JSON object that comes next, of at most `FARTHEST_CALL` characters; else "". It stays unread."""
        if (yield from self._peek()) != "{":
            return ""
        end, length = JsonEnd(), 0
        while length <= FARTHEST_CALL:
            text = self._input[self._at + length : self._at + FARTHEST_CALL + 1]
            at = end.feed(text)
            if at is not None:
                return self._alphabet.spell(self._input[self._at : self._at + length + at])
            length += len(text)
            if self._over:
                break
            yield
        return ""


class KimiAnswers(AnswerGrammar):
    def call_id(self, name: str) -> Node:
        return Concat((ExactText(f"functions.{name}:"), Index()))


class KimiK2(Format):
    """K2: the model does not reason."""

    name = "kimi_k2"
    vllm_parsers = EngineParsers("kimi_k2")
    sglang_parsers = EngineParsers("kimi_k2")
    trtllm_parsers: EngineParsers | None = EngineParsers("kimi_k2")
    reasoning: ReasoningBlock = "none"
    history_rules = HistoryRules(call_id=lambda name, number: f"functions.{name}:{number}", developer=False)
    end_of_turn = (END,)
    reader_type = KimiReader
    shown_order: Callable[[Any], Any] = staticmethod(sorted_deeply)
    _answers = KimiAnswers

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        pieces = tools_as_json(tools)
        begins_itself = bool(messages) and messages[0]["role"] != "system"
        if begins_itself:
            pieces += DEFAULT_SYSTEM
        first = len(pieces)
        add_turns(pieces, messages, None, add_text_parts)
        if begins_itself:
            pieces[first] = "\n"  # the template writes a line break after its own system message, and only there
        if open_turn:
            pieces += OPENING
        return Prompt.alternating(pieces)

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        pieces: list[str] = []
        if thinking and (self.reasoning == "opened" or message.reasoning):
            if self.reasoning != "opened":
                pieces += ("", THINK)
            pieces += (message.reasoning, THINK_END)
        if message.calls:
            pieces += (message.content, SECTION)
            for call in message.calls:
                pieces += in_calls(call.id, call.arguments)
            pieces += AFTER_CALLS
        else:
            pieces += (message.content, END)
        return Prompt.alternating(pieces)


class KimiK2Thinking(KimiK2):
    """K2-Thinking: the model writes `<think>` itself, so that a prompt cannot turn reasoning off."""

    name = "kimi_k2_thinking"
    vllm_parsers = EngineParsers("kimi_k2", "kimi_k2")
    sglang_parsers = EngineParsers("kimi_k2", "kimi_k2")
    trtllm_parsers = None
    reasoning: ReasoningBlock = "written"

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        pieces = tools_as_json(tools)
        if not messages or messages[0]["role"] != "system":
            pieces += DEFAULT_SYSTEM
        reasoned = after_last_answer(messages)
        add_turns(pieces, messages, reasoned, add_text_parts)
        if open_turn:
            pieces += OPENING
        return Prompt.alternating(pieces)


class KimiK25(KimiK2):
    """K2.5 and K2.6: the prompt opens the reasoning, and tools are declared as TypeScript."""

    name = "kimi_k25"
    picture = _PICTURE
    vllm_parsers = EngineParsers("kimi_k2", "kimi_k2")
    sglang_parsers = EngineParsers("kimi_k2", "kimi_k2")
    trtllm_parsers = EngineParsers("kimi_k2", "kimi_k25")
    reasoning: ReasoningBlock = "opened"
    shown_order = staticmethod(typescript_order)

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        pieces = tools_as_typescript(tools)
        reasoned = after_last_answer(messages) if thinking else len(messages)
        add_turns(pieces, messages, reasoned, add_media_parts)
        if open_turn:
            pieces += (*OPENING, "", THINK)
            if not thinking:
                pieces += ("", THINK_END)
        return Prompt.alternating(pieces)

    def template_variables(self, tools: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any]:
        try:
            return {"tools_ts_str": in_typescript(tools or ())}
        except Undeclarable:
            return {}


def tools_as_json(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tool declaration of K2 and K2-Thinking; empty without tools."""
    return _declared(_json(tools)) if tools else []


def tools_as_typescript(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tool declaration of K2.5, as JSON if the schemas have no TypeScript form; empty without tools."""
    return _declared(_typescript(tools)) if tools else []


def _declared(text: str) -> list[str]:
    return ["", _SYSTEM, "tool_declare", MIDDLE, text, END]


_json = cached(sorted_json)


@cached
def _typescript(tools: Sequence[Mapping[str, Any]]) -> str:
    try:
        if declared := in_typescript(tools):
            return declared
    except Undeclarable:
        pass
    return sorted_json(tools)


def after_last_answer(messages: Sequence[Mapping[str, Any]]) -> int:
    """The index after the last assistant message without calls. Reasoning is kept from there on."""
    for i in range(len(messages) - 1, -1, -1):
        if messages[i]["role"] == "assistant" and not messages[i].get("tool_calls"):
            return i + 1
    return 0


def add_turns(
    pieces: list[str], messages: Sequence[Mapping[str, Any]], reasoned: int | None, add_parts: AddParts
) -> None:
    """Add every message. Reasoning blocks before message number `reasoned` are empty; None: there are no blocks."""
    for i, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        name = message.get("name") or role
        before, after, calls = "", END, None
        if role == "assistant":
            pieces += ("", _ASSISTANT, name, MIDDLE)
            if reasoned is not None:
                reasoning = message.get("reasoning_content", "") if i >= reasoned else ""
                # The template prints null as "None". `repair` removes it before.
                pieces += ("", THINK, "None" if reasoning is None else reasoning, THINK_END)
            if calls := message.get("tool_calls"):
                after = SECTION
        elif role == "tool":
            pieces += ("", _SYSTEM, name, MIDDLE)
            before = "## Return of " + message["tool_call_id"] + "\n"
        elif role == "user":
            pieces += ("", _USER, name, MIDDLE)
        elif role in ("system", "developer"):
            pieces += ("", _SYSTEM, name, MIDDLE)
        else:
            raise ValueError(f"unknown role: messages[{i}]")
        if isinstance(content, str):
            pieces += (before + content, after)
        elif content is None:
            pieces += (before, after)
        elif isinstance(content, Sequence):
            add_parts(pieces, content, before, after, i)
        else:
            raise TypeError(f"neither text nor parts: messages[{i}]")
        if calls:
            for call in calls:
                arguments = call["function"]["arguments"]
                pieces += in_calls(call["id"], arguments if isinstance(arguments, str) else arguments_json(arguments))
            pieces += AFTER_CALLS


def in_calls(call_id: str, arguments: str) -> tuple[str, ...]:
    """One call, inside the section of calls."""
    return ("", CALL, call_id, ARGUMENTS, arguments, CALL_END)


def add_text_parts(pieces: list[str], parts: Sequence[Mapping[str, Any]], before: str, after: str, i: int) -> None:
    """The `AddParts` of K2 and K2-Thinking, where an image is text."""
    for j, part in enumerate(parts):
        if part["type"] == "image" or "image" in part or "image_url" in part:
            before += _IMAGE_IN_WORDS
        else:
            before += text_of(part, i, j)
    pieces += (before, after)


def add_media_parts(pieces: list[str], parts: Sequence[Mapping[str, Any]], before: str, after: str, i: int) -> None:
    """The `AddParts` of K2.5, where an image is control tokens."""
    for j, part in enumerate(parts):
        if part["type"] in ("image", "image_url"):
            place = PicturePlace(_PICTURE, part)
            pieces += (before, "<|media_begin|>", "image", "<|media_content|>", "", place, "", "<|media_end|>")
            before = "\n"
        elif part["type"] in ("video", "video_url"):
            before += _VIDEO_IN_WORDS
        else:
            before += text_of(part, i, j)
    pieces += (before, after)
