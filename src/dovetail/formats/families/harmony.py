"""gpt-oss' language, `harmony`: messages whose headers name a channel and, for a call, a recipient.

The prompt ends with `<|start|>assistant`, inside a header. An answer continues with
`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`, and a call is
`<|channel|>commentary to=functions.N <|constrain|>json<|message|>{…}<|call|>`. Source: OpenAI's description of harmony.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from dovetail.conversation import Tool
from dovetail.events import Content, Message, Reasoning
from dovetail.formats.answers import call_envelope
from dovetail.formats.answers.answer_grammar import AnswerGrammar
from dovetail.formats.base import EngineParsers, Format, Messages, ReasoningBlock
from dovetail.formats.families.harmony_prompt import (
    ANALYSIS,
    CALL,
    CHANNEL,
    COMMENTARY,
    CONSTRAIN,
    EFFORTS,
    END,
    FINAL,
    FUNCTIONS,
    MESSAGE,
    RETURN,
    ROLE,
    START,
    add_call,
    add_message,
    render,
)
from dovetail.grammar import Choice, Concat, ControlToken, ExactText, FreeText, Grammar, Maybe, Node
from dovetail.reading import CallReader, ReaderOptions, Script
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.prose import MOST_SPACE
from dovetail.tokens import Prompt, Tokenizer

Kind: TypeAlias = type[Content] | type[Reasoning]

_TEXT = FreeText()
_CHANNELS = (ANALYSIS, COMMENTARY, FINAL)
#: Recipients that are no tools.
_NO_TOOLS = (ROLE, "user", "system", "developer", "all", FUNCTIONS)

#: The content types of a message.
_TYPES = ("json", "code")
#: A part of a header: a name, a recipient and a content type, each of which may be missing.
_PART = re.compile(
    r"\s*(?:(?!to=)(?P<name>[A-Za-z][\w.-]*)(?!\S))?\s*(?:to=(?P<recipient>\S+))?\s*(?:(?:json|code)(?!\S))?\s*",
    re.ASCII,
)


class Header(msgspec.Struct):
    """The header of a message. `rest` is text that no header contains."""

    role: str = ""
    channel: str = ""
    recipient: str = ""
    rest: str = ""
    #: A marker that came twice.
    doubled: str = ""

    def add(self, opener: str, text: str) -> None:
        part = _PART.match(text)
        assert part is not None  # every part of the pattern may be missing
        rest = text[part.end() :]
        name = part["name"] or ""
        if opener == START:
            self.role = name
        elif opener == CONSTRAIN:
            rest = (name if name not in _TYPES else "") + rest
        elif name:
            rest = (self.channel if self.channel not in _CHANNELS else "") + rest
            self.channel = name
        if part["recipient"]:
            rest = self.recipient + rest
            self.recipient = part["recipient"]
        self.rest += rest


class HarmonyReader(CallReader):
    """Reads messages by their headers, and forgives text outside of messages and missing ends.

    Text outside of messages is content. Text before the first header continues the message that the prompt left open.
    If the prompt left reasoning open, it is reasoning. Otherwise it is content with a `Defect`, because the model
    should have begun with a header, unless it was to continue an answer, which a reader does not know.
    """

    unmarked = r"^\s*to="  # the prompt has begun the first header
    begin_of_text = ("<|startoftext|>",)
    controls = (START, END, MESSAGE, CHANNEL, CONSTRAIN, CALL, RETURN)
    #: The markers that end a message, that begin the next one, and that are inside a header.
    _message_ends, _next_headers, _in_headers = (END, RETURN, CALL), (START, CHANNEL), (CHANNEL, CONSTRAIN, MESSAGE)

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._has_text: set[Kind] = set()  # the kinds of text that messages have had
        super().__init__(options, tokenizer)

    def _read(self) -> Script[None]:
        first = True
        if (yield from self._next_is(" to=", "to=")):  # the header that the prompt began goes on
            self._unread()
            first = False
            yield from self._message()
        elif (yield from self._goes_on()):
            first = False
        while (yield from self._header_begins(first)):
            first = False
            yield from self._message()

    def _goes_on(self) -> Script[bool]:
        """Read text before the first header: the rest of a message, perhaps only its end. False if there is none."""
        if (yield from self._next_is(ROLE + CHANNEL, ROLE + MESSAGE)):
            self._unread()
            return False
        space = yield from self._skip(" \n", MOST_SPACE)
        following = yield from self._peek()
        if following in ("", START, *self._in_headers):
            return False
        kind: Kind = Reasoning if self._options.thinking else Content
        if following not in self._message_ends:
            self._has_text.add(kind)
            if kind is Content:
                self._defect("text_outside_message")
        if space:
            self._events.append(kind(space))
        marker = yield from self._prose(kind, *self._message_ends, START, *self._in_headers)
        if marker == CALL:
            self._defect("missing_name")
        elif marker not in (None, *self._message_ends):
            self._unread()
            if kind is Reasoning:
                self._defect("missing_message_end")
        return True

    def _header_begins(self, first: bool) -> Script[bool]:
        """Read up to the next header's role; False if no header comes."""
        self._stray = False

        def write(text: str) -> None:
            if not self._stray:
                text = text.lstrip()
                if not text:
                    return
                self._stray = True
                self._defect("text_outside_message")
            self._events.append(Content(text))

        marker = yield from self._next_is(ROLE + CHANNEL, ROLE + MESSAGE)
        if marker is None:
            marker = yield from self._pass(write, self._stray_marker, (START, *self._in_headers))
        if marker not in (None, START):
            self._unread()
            if not first or self._stray:
                self._defect("missing_start")
        return marker is not None

    def _message(self) -> Script[None]:
        header, text, marker = yield from self._header()
        if marker == "":
            self._abandon(text, "endless_header")
            return
        if marker != MESSAGE:
            self._defect("missing_message", text)
        if header.doubled:
            self._stray_marker(header.doubled)
        if header.role not in ("", ROLE):
            self._defect("unexpected_role", header.role)
        if header.channel not in _CHANNELS:
            self._defect("unknown_channel" if header.channel else "missing_channel", header.channel)
        if header.rest:
            self._defect("text_in_header", header.rest)
        if marker not in (MESSAGE, *self._message_ends):
            self._unread()
        kind: Kind = Reasoning if header.channel == ANALYSIS else Content
        if header.recipient not in ("", *_NO_TOOLS):
            if not self._options.calls:
                self._defect("call_not_allowed", header.recipient)
            elif marker in (MESSAGE, "{", *self._message_ends):
                yield from self._call(header, marker)
                return
            else:
                self._defect("truncated_call" if marker is None else "call_without_arguments", header.recipient)
            kind, header.rest = Content, f"to={header.recipient} {header.rest}"
        yield from self._text(kind, header.rest, marker)

    def _header(self) -> Script[tuple[Header, str, str | None]]:
        """Read a header. Returns it, its text, and the marker after it, which should be `<|message|>`."""
        header, parts, opener = Header(), [""], START
        left = LONGEST_HEADER
        while True:
            text, marker = yield from self._read_up_to(left, "{", *self.controls)
            if opener == marker and not text.strip():
                header.doubled = opener
            header.add(opener, text)
            parts.append(text)
            if marker not in (CHANNEL, CONSTRAIN):
                return header, " ".join(parts), marker
            opener = marker
            left -= len(text) + 1  # so that a header of nothing but markers ends too

    def _text(self, kind: Kind, before: str, marker: str | None) -> Script[None]:
        """Read a message that is no call. `before`: text of its header that is content."""
        following = yield from self._peek()
        if before or (marker not in self._message_ends and following not in ("", *self.controls)):
            # A newline separates the texts of several messages.
            if text := "\n" * (kind in self._has_text) + before:
                self._events.append(kind(text))
            self._has_text.add(kind)
        if marker in self._message_ends:
            return
        marker = yield from self._prose(kind, *self._message_ends, *self._next_headers)
        if marker in self._next_headers:
            self._defect("missing_message_end")
            self._unread()
        elif marker == CALL:
            self._defect("missing_name")  # it ended like a call, but has no recipient

    def _call(self, header: Header, marker: str | None) -> Script[None]:
        if header.rest:
            self._events.append(Content(header.rest))
        name = header.recipient
        if name.startswith(FUNCTIONS) and name not in self._options.tools:
            name = name.removeprefix(FUNCTIONS)
        elif "." not in name and name != "python":  # built-in tools have no prefix
            self._defect("missing_prefix", name)
        self._open_call(name)
        while marker == MESSAGE and (yield from self._next_is(MESSAGE)):
            self._stray_marker(MESSAGE)
        if marker not in self._message_ends:
            marker = yield from self._json_arguments(*self._message_ends, *self._next_headers)
        self._close_call(marker, CALL, None)  # engines treat `<|call|>` as the end of the turn and may drop it
        if marker in self._next_headers:
            self._unread()


class HarmonyAnswers(AnswerGrammar):
    """Every part of an answer is a message with a header."""

    def answer(
        self, tools: Mapping[int, Tool], required: bool, thinking: bool, parallel: bool, others: Sequence[str]
    ) -> Grammar:
        calls = self.calls(tools, parallel)
        if required:
            return self.calls_or_structured(calls, None, thinking)
        calling = Concat((Maybe(self._message(COMMENTARY)), calls))
        return Grammar(Concat((*self.reasoning(thinking), Choice((calling, self._message(FINAL))))))

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        """One call, whose end is the end of the turn. Its recipient comes after the channel, as in OpenAI's library, or
        before it, as in the chat template."""
        channel, recipient = ControlToken(CHANNEL), f" to={FUNCTIONS}"
        typed = Concat((ExactText(" "), self.mark(CONSTRAIN), ExactText("json")))
        either = Choice((typed, ExactText(" json")))
        after: list[Node] = []
        before: list[Node] = []
        for index, tool in tools.items():
            name = ExactText(tool.name)
            arguments = ControlToken(MESSAGE), self.slots(index, tool)[call_envelope.ARGUMENTS]
            after.append(Concat((name, typed, *arguments)))
            before.append(Concat((name, channel, ExactText(COMMENTARY), either, *arguments)))
        # Two choices of names, and not two layouts for each name, because xgrammar is faster with that.
        first = Concat((channel, ExactText(COMMENTARY + recipient), Choice(tuple(after))))
        second = Concat((ExactText(recipient), Choice(tuple(before))))
        return Choice((first, second))

    def after_calls(self) -> None:
        """None: the end of a call is the end of the turn."""

    def content_only(self, thinking: bool) -> Grammar:
        return Grammar(Concat((*self.reasoning(thinking), self._message(FINAL))))

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        final = self._message(FINAL, content) if content else None
        either = Choice(tuple(node for node in (calls, final) if node))
        return Grammar(Concat((*self.reasoning(thinking), either)))

    def reasoning(self, thinking: bool) -> tuple[Node, ...]:
        return (Maybe(self._message(ANALYSIS)),) if thinking else ()

    def _message(self, channel: str, content: Node = _TEXT) -> Node:
        """A message to the user; only a final one ends the turn."""
        header = (ControlToken(CHANNEL), ExactText(channel), ControlToken(MESSAGE), content)
        more = (ControlToken(END), ControlToken(START), ExactText(ROLE)) if channel != FINAL else ()
        return Concat((*header, *more))


class Harmony(Format):
    """gpt-oss, which always reasons. Without `thinking` and `reasoning_effort`, the effort is low."""

    name = "harmony"
    vllm_parsers = EngineParsers("openai", "openai_gptoss")
    sglang_parsers = EngineParsers("gpt-oss", "gpt-oss")
    #: `current_date`: a string, or None for no date; today by default.
    #: `builtin_tools`: a list of "browser" and "python", which the prompt declares.
    #: `auto_drop_analysis`: False keeps all reasoning of the history.
    #: `response_format`: OpenAI's field, of which the prompt shows the schema.
    template_options = (
        *("reasoning_effort", "model_identity", "builtin_tools", "current_date", "auto_drop_analysis"),
        "response_format",
    )
    efforts = EFFORTS
    reasoning: ReasoningBlock = "written"
    end_of_turn = (RETURN, CALL)
    reader_type = HarmonyReader
    _answers = HarmonyAnswers

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        if options.get("reasoning_effort") is None:
            options["reasoning_effort"] = "medium" if thinking else "low"
        options.setdefault("current_date", datetime.date.today().isoformat())
        return render(messages, tools, open_turn, **options)

    def left_open(self, prompt: Prompt) -> bool:
        """Whether `prompt` ends inside a message on the analysis channel."""
        header = prompt.pieces[: len(prompt.pieces) // 2 * 2][-4:]
        return header[1:] == [CHANNEL, ANALYSIS, MESSAGE]

    @property
    def reasoning_tags(self) -> None:
        """None: reasoning is a channel."""

    @property
    def _reasoning_ends(self) -> tuple[str, str]:
        return CHANNEL + ANALYSIS + MESSAGE, END

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        pieces: list[str] = []
        if thinking and message.reasoning:
            add_message(pieces, ANALYSIS, message.reasoning)
        if message.content and message.calls:
            add_message(pieces, COMMENTARY, message.content)
        for call in message.calls:
            add_call(pieces, call.name, call.arguments)
        if not message.calls:
            add_message(pieces, FINAL, message.content, RETURN)
        return Prompt.alternating(["", *pieces[3:]])  # the prompt begins the first message: `<|start|>assistant`
