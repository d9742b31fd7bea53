"""Muse Glimmer's calls: `muse`, tags in messages to the tools.

     to=get_weather<|message|><atem:function_calls>
    <atem:invoke name="get_weather">
    <atem:parameter name="city">Paris</atem:parameter>
    </atem:invoke>
    </atem:function_calls>

The prompt ends in `<|start|>assistant`, inside a header. Reasoning is a message to `self`, content one to `user`, and
`<|eom|><|start|>assistant` stands between two messages, and `<|eot|>` behind the last. The tags are text. Source: the
model's chat template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from dovetail.conversation import Tool
from dovetail.events import Content, Message, Reasoning
from dovetail.formats.answers.answer_grammar import TEXT_AFTER_CALLS, Asked
from dovetail.formats.base import ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls
from dovetail.formats.declared.declared_answers import DeclaredAnswers
from dovetail.grammar import (
    Choice,
    Concat,
    ControlToken,
    ExactText,
    FreeText,
    Grammar,
    Maybe,
    Node,
    Repeat,
    VisibleText,
)
from dovetail.reading import Script
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.tags import TagReader
from dovetail.tokens import Prompt, Segment

Kind: TypeAlias = type[Content] | type[Reasoning]

START, MESSAGE, NEXT, END = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
ROLE, TO = "assistant", " to="
#: The recipients of reasoning and of content.
SELF, USER = "self", "user"
_SECTION, _INVOKE = "<atem:function_calls>", '<atem:invoke name="'

#: What follows `<|start|>` if it begins a message; `assistant` may also be a word that it is mentioned with.
_HEADER = re.compile(
    rf"\s{{0,{MOST_SPACE}}}(?:{ROLE}(?=[A-Za-z0-9\n]|\Z)|(?:{ROLE})?\s{{0,{MOST_SPACE}}}(?:to=|[\ud800-\udfff]|\Z))"
)
_HEADER_LONG, _HEADER_CUT = re.compile(r"[\s\S]{48}"), re.compile(r"[\s\S]{0,47}")


class MuseReader(TagReader):
    """Reads messages by their recipients. In all but those to `self`, tags are calls, whoever the recipient is.

    If the prompt left reasoning open, text before the first header is reasoning.
    """

    unmarked = r"^\s*to="  # the prompt has begun the first header

    def _read(self) -> Script[None]:
        marker: str | None = START
        if self._options.thinking:
            marker = yield from self._message_text(Reasoning)
        while marker is not None:
            marker = yield from self._message(marker)

    def _message(self, before: str) -> Script[str | None]:
        """Read a message after the marker `before`. Returns the marker after it; None at the end of the output."""
        space = yield from self._skip(WHITESPACE, MOST_SPACE)
        while (marker := (yield from self._next_is(START, NEXT, END))) is not None:
            if before == START or marker != START:
                self._stray_marker(marker)
            before = START if marker == START else before
            space = yield from self._skip(WHITESPACE, MOST_SPACE)
        if not (yield from self._peek()):
            return None
        role = yield from self._next_is(ROLE)
        if role is not None:
            space = yield from self._skip(WHITESPACE, MOST_SPACE)
        if (yield from self._next_is("to=")) is None:
            if (yield from self._next_is(MESSAGE)) is None:
                self._defect("text_outside_message")
                if role or space:
                    self._events.append(Content((role or "") + space))
            else:
                self._defect("missing_channel")
            return (yield from self._message_text(Content))
        if before != START:
            self._defect("missing_start")
        recipient, marker = yield from self._read_up_to(LONGEST_HEADER, MESSAGE, "\n", "<", "{", *self.ends)
        name = recipient.strip()
        if marker != MESSAGE:
            if marker:
                self._unread()
            if marker is None and self._begins_call(name):
                self._defect("truncated_call", name)
                return None
            if self._tool(name) not in self._options.tools:
                self._abandon(f"to={recipient}", "missing_message" if marker != "" else "endless_header")
                return (yield from self._message_text(Content))
            self._defect("missing_message", name)
            yield from self._skip(WHITESPACE, MOST_SPACE)
        elif self._tool(name) not in self._options.tools and not (name.isprintable() and " " not in name):
            self._abandon(f"to={recipient}", "unknown_channel")
            name = USER
        while (yield from self._next_is(MESSAGE)) is not None:
            self._stray_marker(MESSAGE)
        return (yield from self._message_text(Reasoning if name == SELF else Content, name))

    def _message_text(self, kind: Kind, recipient: str = USER) -> Script[str | None]:
        """Read a message's text, and the calls in it. Returns as `_message` does."""
        stops, before = self.ends, self._index
        if kind is Content and self._options.calls:
            stops = (*stops, *self.text_openers)
        if recipient not in (SELF, USER):
            yield from self._call_to(recipient)
            stops = (*stops, self.section_end, self.call_end) if self._options.calls else stops
        self._shown = ""
        if kind is Content and recipient == USER:
            yield from self._bare_call()
        while (marker := (yield from self._text(kind, *stops))) is not None:
            if marker in self.ends:
                if not (yield from self._is_mentioned_mark(marker, kind)):
                    break
            elif marker == MESSAGE:
                yield from self._stray_or_text(marker, kind)
            elif marker not in self.openers:
                self._stray_marker(marker)
            elif recipient != USER:
                yield from self._section(marker)
            elif (yield from self._section_or_mention(marker, kind)):
                self._defect("missing_call_start")
        if recipient in self._options.tools and self._options.calls and self._index == before:
            self._defect("call_without_arguments", recipient)
        if marker == START:
            self._defect("missing_message_end")
        return marker

    def _is_mentioned_mark(self, marker: str, kind: Kind) -> Script[bool]:
        """Whether `marker`, the last one, which may end a message, is text. Then it is emitted as `kind`."""
        in_line = self._shown[-1:] not in ("", "\n")
        if marker == START:
            yield from self._look(_HEADER_LONG, _HEADER_CUT)
            if not (self._opens_quotation() or self._in_code()) and _HEADER.match(self._input, self._at) is not None:
                return False
        elif marker == NEXT and (yield from self._peek()) == START:
            return False
        # Behind the end of one message, another may lack its header.
        end = in_line and marker != NEXT
        return (yield from (self._is_mentioned_end if end else self._is_mention)(kind, marker))

    def _call_to(self, recipient: str) -> Script[None]:
        """Read a call whose arguments are a JSON object without tags, if one comes next."""
        if not self._options.calls:
            self._defect("call_not_allowed", recipient)
        elif self._options.tools and self._tool(recipient) not in self._options.tools:
            self._defect("unknown_channel", recipient)
        elif (yield from self._peek()) == "{":
            self._open_call(recipient)
            self._defect("json_arguments", self._id)
            marker = yield from self._json_arguments(*self.ends)
            self._close_call(marker, *self.ends, None)
            if marker is not None:
                self._unread()


class MuseAnswers(DeclaredAnswers):
    def answer(self, asked: Asked) -> Grammar:
        reasoning, calls = self.reasoning(asked.thinking), self.calls(asked.tools, asked.parallel)
        if asked.required:
            return Grammar(Concat((*reasoning, calls)))
        calling = Concat((Maybe(Concat((*_message(USER, self.content()), *_NEXT))), calls))
        said = self.content() if asked.silent else VisibleText(self.text_openers)
        return Grammar(Concat((*reasoning, Choice((calling, Concat(_message(USER, said)))))))

    def content_only(self, asked: Asked) -> Grammar:
        return Grammar(Concat((*self.reasoning(asked.thinking), *_message(USER, asked.text))))

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        message = Concat(_message(USER, content)) if content else None
        return Grammar(Concat((*self.reasoning(thinking), Choice(tuple(node for node in (calls, message) if node)))))

    def reasoning(self, thinking: bool) -> tuple[Node, ...]:
        return (Maybe(Concat((*_message(SELF, FreeText()), *_NEXT))),) if thinking else ()

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        called = []
        for index, tool in tools.items():
            section = self._envelope.section([self.slots(index, tool)], parallel=False)
            called.append(Concat(_message(tool.name, section)))
        call = Choice(tuple(called))
        return Concat((call, Repeat(Concat((*_NEXT, call)), 0))) if parallel else call

    def after_calls(self) -> Node:
        return Concat((*_NEXT, *_message(USER, TEXT_AFTER_CALLS)))


_NEXT = ControlToken(NEXT), ControlToken(START), ExactText(ROLE)


def _message(recipient: str, *nodes: Node) -> tuple[Node, ...]:
    """A message without its end."""
    return ExactText(TO + recipient), ControlToken(MESSAGE), *nodes


class Muse(DeclaredFormat):
    name = "muse"
    reasoning: ReasoningBlock = "written"
    controls = (START, MESSAGE)
    end_of_turn = (END,)
    other_ends = (NEXT, START)
    calls = TagCalls(
        section=_SECTION + "\n{call}</atem:function_calls>",
        call=_INVOKE + '{name}">\n{parameters}</atem:invoke>\n',
        parameter='<atem:parameter name="{key}">{value}</atem:parameter>\n',
    )
    script = MuseReader
    _answers = MuseAnswers

    def left_open(self, prompt: Prompt) -> bool:
        """Whether `prompt` ends inside a message to `self`."""
        header = prompt.pieces[: len(prompt.pieces) // 2 * 2][-3:]
        return header == [START, f"{ROLE}{TO}{SELF}", MESSAGE]

    @property
    def reasoning_tags(self) -> None:
        """None: reasoning is a message."""

    @property
    def _reasoning_ends(self) -> tuple[str, str]:
        return TO + SELF + MESSAGE, NEXT

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        return Prompt([*self._messages(message, thinking), Segment(END, True)])

    def forms(self, message: Message, *, thinking: bool = True) -> Iterator[Prompt]:
        yield self.write(message, thinking=thinking)

    def _messages(self, message: Message, thinking: bool) -> Iterator[Segment]:
        messages: list[tuple[str, Sequence[Segment]]] = []
        if thinking and message.reasoning:
            messages.append((SELF, [Segment(message.reasoning, False)]))
        if message.content or not message.calls:
            messages.append((USER, [Segment(message.content, False)]))
        for call in message.calls:
            section = self.calls.segments([call], self.reader_type.controls, after_content=False)
            messages.append((call.name, [*section]))
        for i, (recipient, segments) in enumerate(messages):
            if i:
                yield from (Segment(NEXT, True), Segment(START, True), Segment(ROLE, False))
            yield from (Segment(TO + recipient, False), Segment(MESSAGE, True), *segments)
