"""gpt-oss' language, `harmony`: messages whose headers name a channel and, for a call, a recipient.

The prompt ends with `<|start|>assistant`, inside a header. An answer continues with
`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`, and a call is
`<|channel|>commentary to=functions.N <|constrain|>json<|message|>{…}<|call|>`. Source: OpenAI's description of harmony.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec

from dovetail.conversation import Tool
from dovetail.events import Content, Message, Reasoning
from dovetail.formats.answers import call_envelope
from dovetail.formats.answers.answer_grammar import AnswerGrammar, Asked
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
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.mentions import AFTER, BEFORE, QUOTES
from dovetail.reading.prose import MOST_SPACE
from dovetail.tokens import Prompt, Tokenizer

Kind: TypeAlias = type[Content] | type[Reasoning]

_TEXT = FreeText()
_CHANNELS = (ANALYSIS, COMMENTARY, FINAL)
#: Recipients that are no tools.
_NO_TOOLS = (ROLE, "user", "system", "developer", "all", FUNCTIONS)

#: A channel's name. Text may be glued to it, but `finally` is a word of its own.
_CHANNEL = rf"(?:{ANALYSIS}|{COMMENTARY}|{FINAL}(?!ly\b|i[sz]|ity\b|es?\b|s\b))"
_MARKS = r"[?!.,:;*–—-]"
#: A word of a header.
_WORD = re.compile(
    rf"\s*(?:(?P<channel>{_CHANNEL})|to\s?=\s?(?P<recipient>\S+)|(?P<type>json|code|xml)(?!\S)|(?P<marks>{_MARKS}+)"
    r"|(?P<other>\S+))"
)
#: Markup of another family.
_MARKUP = re.compile(r"<\|\w{1,32}\|?>")
_MAY_BE_MARKUP = re.compile(r"(?:<(?:\|\w{0,32}\|?)?)?")
#: What is no text of a message even if its marker is missing.
_JUNK = re.compile(rf"(?:\s|{_MARKS}|{_CHANNEL}|{ROLE}\b)*")
#: The content types of a message.
_TYPES = ("json", "code", "xml")
#: Words that a header may have by mistake. Others, and more, are text of its message.
_MISTAKES = re.compile(rf"(?:{_MARKS}|[\x20-\x7e]){{0,64}}")
_NAME = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
#: What stands before and after the name of a tool that is written as a path, in quotes, as a call and the like.
_BEFORE_NAME = re.compile(r"[\"'`(<\[]*(?:(?:to|functions?|tools?|assistant)[.:/=]+)*[\"'`]?")
_AFTER_NAME = re.compile(
    rf"(?:\(\)|[:.]\d+|<\|?\w*\|?>?|[\"'`>)\],;:.|]+)*(?:{COMMENTARY}|{ANALYSIS}|json|code)?[\"'`>)\],;:.|]*\Z"
)
#: `<|message|>` in another spelling, or what some write in its place.
_MISSPELLED_MESSAGE = re.compile(r"\s*(?:<\|?(?:message|msg|content|text)\|?>?|<?\|>|:(?=\s))\s*")
#: A header without any marker: the name of a channel glued to the text, or to the role before it.
_GLUED = tuple(ROLE + channel for channel in _CHANNELS)
_GAP = rf"\s{{0,{MOST_SPACE}}}"
_NAMES = "|".join(_CHANNELS)
_BEGUN_NAMES = "|".join(name[:n] for name in _CHANNELS for n in range(len(name)))
_UNMARKED = re.compile(rf"{_GAP}(?:{ROLE}\n?(?:{_NAMES})|(?:{_NAMES})(?=[A-Z0-9\n]|[^\x00-\x7f\ud800-\udfff]| ?to=))")
_MAY_BE_UNMARKED = re.compile(
    rf"{_GAP}(?:{'|'.join(ROLE[:n] for n in range(len(ROLE)))}|(?:{ROLE}\n?)?(?:{_BEGUN_NAMES}|(?:{_NAMES}) ?(?:to?)?))"
)
_OBJECT, _MAY_BE_OBJECT = re.compile(_GAP + r"\{"), re.compile(_GAP)
_EMPTY = rf"\{{{_GAP}\}}{_GAP}"
_MAY_BE_EMPTY_OBJECT = re.compile(rf"\{{{_GAP}(?:\}}{_GAP})?")
_MAY_BE_MESSAGE_AGAIN = re.compile(rf"{_GAP}(?:j(?:s(?:o(?:n{_GAP})?)?)?|c(?:o(?:d(?:e{_GAP})?)?)?)?")


class Header(msgspec.Struct):
    """The header of a message."""

    role: str = ""
    channel: str = ""
    recipient: str = ""
    #: Words right behind the recipient, which may be part of it.
    behind: str = ""
    #: Words that no header contains.
    junk: str = ""
    #: Text of the message, if it has no `<|message|>` in front of it.
    text: str = ""
    #: What stands in place of its `<|message|>`.
    misspelled: str = ""
    #: A recipient that only resembles the name of a tool.
    resembling: str = ""
    #: A marker that came twice.
    doubled: str = ""
    #: Two parts with nothing between them.
    glued: str = ""

    def add(self, opener: str, text: str, ends: bool) -> None:
        """Add the text after the marker `opener`. `ends`: whether the message's own text comes next, without marker."""
        if opener == START and text.lstrip().startswith(ROLE):
            self.role, text = ROLE, text.lstrip().removeprefix(ROLE)
        named, at = opener == CONSTRAIN, 0
        while (match := _WORD.match(text, at)) is not None:
            kind = match.lastgroup
            word, rest = match[match.lastindex or 0], text[match.end() :]
            begins = kind == "other" or (named and kind != "recipient" and not (kind == "type" and not rest.strip()))
            if ends and begins and not _JUNK.fullmatch(text, at):
                instead = _MISSPELLED_MESSAGE.match(text, at)
                self.misspelled = instead.group().strip() if instead else ""
                self.text = text[instead.end() if instead else at :].lstrip()
                return
            if (kind == "recipient" and at and not match[0][0].isspace()) or (kind == "channel" and opener == START):
                self.glued = match[0].strip()
            at = match.end()
            if kind == "recipient":
                self.leave(self.recipient)
                self.recipient, self.behind = word, ""
            elif kind == "channel" and not named:
                if self.channel not in _CHANNELS:
                    self.leave(self.channel)
                self.channel, named = word, True
            elif kind != "other" or not _NAME.fullmatch(word):
                if kind != "type":
                    self.leave(word)
            elif opener == START and not (self.role or self.channel or self.recipient):
                self.role = word
            elif not (named or self.channel in _CHANNELS or self.recipient):
                self.leave(self.channel)
                self.channel, named = word, True
            elif self.recipient:
                self.behind += f" {word}"
            else:
                self.leave(word)

    def leave(self, word: str) -> None:
        self.junk += " " * bool(self.junk and word) + word


class HarmonyReader(CallReader):
    """Reads messages by their headers, and forgives text outside of messages and missing ends.

    Text outside of messages is content. Text before the first header continues the message that the prompt left open.
    If the prompt left reasoning open, it is reasoning. Otherwise it is content with a `Defect`, because the model
    should have begun with a header, unless it was to continue an answer, which a reader does not know.

    Inside a message, a marker that begins no header is text. So is one that stands in code, or like a word or a
    quotation in a line, if more text follows.
    """

    unmarked = r"^\s*to="  # the prompt has begun the first header
    begin_of_text: ClassVar[tuple[str, ...]] = ("<|startoftext|>",)
    controls = (START, END, MESSAGE, CHANNEL, CONSTRAIN, CALL, RETURN)
    #: The markers that end a message, that begin the next one, and that are inside a header.
    _message_ends, _next_headers, _in_headers = (END, RETURN, CALL), (START, CHANNEL), (CHANNEL, CONSTRAIN, MESSAGE)
    #: What a call's arguments begin with.
    _bodies: tuple[str, ...] = ("{",)

    #: What begins a header that lacks its first marker.
    _without_marker = (ROLE + CHANNEL, *(name + MESSAGE for name in (ROLE, *_CHANNELS)))

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._with_text: set[Kind] = set()  # the kinds of text that messages have had
        self._glued: tuple[str, ...] = ()  # what begins headers in an output without markers
        super().__init__(options, tokenizer)

    def _read(self) -> Script[None]:
        first = True
        if (yield from self._after_space("to=")):  # the header that the prompt began goes on
            self._unread()
            first = False
            yield from self._message()
        elif not self._options.thinking and (yield from self._unmarked_header()):
            self._glued = _GLUED
            first = False
            self._defect("missing_start")
            yield from self._message()
        elif (yield from self._goes_on()):
            first = False
        while (yield from self._header_begins(first)):
            first = False
            yield from self._message()

    def _unmarked_header(self) -> Script[bool]:
        """Whether a header without any marker comes next."""
        return (yield from self._look(_UNMARKED, _MAY_BE_UNMARKED)) is not None

    def _goes_on(self) -> Script[bool]:
        """Read text before the first header: the rest of a message, perhaps only its end. False if there is none."""
        if (yield from self._next_is(*self._without_marker)):
            self._unread()
            return False
        space = yield from self._skip(" \n", MOST_SPACE)
        following = yield from self._peek()
        if following in ("", START, *self._in_headers):
            return False
        kind: Kind = Reasoning if self._options.thinking else Content
        if following not in self._message_ends:
            self._with_text.add(kind)
            if kind is Content:
                self._defect("text_outside_message")
        marker = yield from self._message_text(kind, space)
        if marker == CALL:
            self._defect("missing_name")
        elif marker in self._next_headers and kind is Reasoning:
            self._defect("missing_message_end")
        return True

    def _header_begins(self, first: bool) -> Script[bool]:
        """Read up to the next header's role; False if no header comes."""
        outside = False
        marker = yield from self._next_is(*self._without_marker, *self._glued)
        while marker is None:
            if not outside:
                yield from self._skip(WHITESPACE)
            if (marker := (yield from self._next_is(START, *self._in_headers))) is not None:
                break
            if (end := (yield from self._next_is(*self._message_ends))) is not None:
                self._stray_marker(end)
                continue
            if not (yield from self._peek()):
                return False
            if not outside and (yield from self._unmarked_header()):
                self._defect("missing_start")
                return True
            if self._cut_off and _MAY_BE_UNMARKED.fullmatch(self._input, self._at):
                self._defect("truncated_marker", self._input[self._at :])
                self._at = len(self._input)
                return False
            if not outside:
                self._defect("text_outside_message")
            outside = True
            marker = yield from self._message_text(Content, "")
            if marker in self._message_ends:
                self._stray_marker(marker)
                marker = None
            elif marker is None:
                return False
            else:
                yield from self._next_is(marker)
        if marker != START:
            self._unread()
            if not first or outside:
                self._defect("missing_start")
        return True

    def _message(self) -> Script[None]:
        header, text, marker = yield from self._header()
        begun = text.strip()
        if marker is None and self._cut_off and begun not in ("", ROLE) and ROLE.startswith(begun):
            self._defect("truncated_marker", begun)
            return
        if marker == "" and not (header.channel in _CHANNELS and header.text):
            self._abandon(text, "endless_header")
            return
        if marker not in (MESSAGE, *self._message_ends):
            self._unread()
        if marker == "{" and header.recipient:
            marker = yield from self._after_empty_object(header)
        yield from self._settle(header, marker)
        if header.misspelled:
            self._defect("misspelled_marker", header.misspelled)
        elif marker != MESSAGE:
            self._defect("missing_message", text)
        if header.doubled:
            self._stray_marker(header.doubled)
        if header.role not in ("", ROLE):
            self._defect("unexpected_role", header.role)
        if header.channel not in _CHANNELS:
            self._defect("unknown_channel" if header.channel else "missing_channel", header.channel)
        if header.glued:
            self._defect("missing_separator", header.glued)
        if header.resembling:
            self._defect("misspelled_name", header.resembling)
        if header.junk:
            self._defect("text_in_header", header.junk)
        kind: Kind = Reasoning if header.channel == ANALYSIS else Content
        before = ("" if _MISTAKES.fullmatch(header.junk) else f"{header.junk} ") + header.text
        if header.recipient not in ("", *_NO_TOOLS):
            if not self._options.calls:
                self._defect("call_not_allowed", header.recipient)
            elif marker in (MESSAGE, *self._bodies, *self._message_ends):
                if marker in self._message_ends and not header.text and self._is_tool(header.recipient):
                    # It may stand where `<|message|>` should.
                    marker = marker if (yield from self._look(_OBJECT, _MAY_BE_OBJECT)) is None else "{"
                if before != header.text:
                    self._events.append(Content(header.junk))
                yield from self._call(header, marker)
                return
            else:
                self._defect("truncated_call" if marker is None else "call_without_arguments", header.recipient)
            if marker is None and not before and self._begins_call(header.recipient):
                return  # the output is cut off in the name
            kind, before = Content, f"to={header.recipient} {before}"
        yield from self._rest_of_message(kind, before, marker)

    def _header(self) -> Script[tuple[Header, str, str | None]]:
        """Read a header. Returns it, its text, and the marker after it, which should be `<|message|>`."""
        header, parts, opener = Header(), [""], START
        left = LONGEST_HEADER
        before = (yield from self._next_is(*self._glued)) or ""
        while True:
            text, marker = yield from self._read_up_to(left, *self._bodies, *self.controls, *self._glued)
            text, before = before + text, ""
            if opener == marker and not text.strip():
                header.doubled = opener
            header.add(opener, text, marker not in self._in_headers)
            parts.append(text)
            if marker not in (CHANNEL, CONSTRAIN):
                return header, " ".join(parts), marker
            opener = marker
            left -= len(text) + 1  # so that a header of nothing but markers ends too

    def _settle(self, header: Header, marker: str | None) -> Script[None]:
        """Tell the recipient of the message from other words of its header."""
        alone = header.text.strip()
        begun = marker is None and any(name.startswith(alone) for name in _CHANNELS)
        if not header.channel and (begun or self._is_tool(alone)):
            header.channel, header.text = alone, ""
        name = header.recipient
        if not name:
            begins = marker in (MESSAGE, *self._bodies) and (yield from self._body_begins())
            parts = f"{header.junk} {header.text}".split() if header.channel in _CHANNELS else [header.channel]
            named = next(filter(None, map(self._resembled, parts)), "") if begins and header.channel != FINAL else ""
            if named:
                header.recipient = FUNCTIONS + named
                header.text = ""
            return
        words = (header.behind or header.text).split()
        used = 0
        if not self._is_tool(name):
            joined = [(" ".join((name, *words[:n])), n) for n in range(len(words), 0, -1)]
            meant = [(longer, n) for longer, n in joined if self._is_tool(longer)]
            glued = [(name.removesuffix(kind), 0) for kind in _TYPES if self._is_tool(name.removesuffix(kind))]
            header.recipient, used = next(iter((*meant, *glued)), (name, 0))
            header.glued = name if glued and not meant else header.glued
            if not (meant or glued) and (named := self._resembled(name)):
                header.recipient, header.resembling = FUNCTIONS + named, name
        if used or header.behind or marker in self._bodies:
            header.leave(" ".join(words[used:]))
            header.text = ""

    def _body_begins(self) -> Script[bool]:
        """Whether a call's arguments come next."""
        begins = (yield from self._next_is(*self._bodies)) is not None
        if begins:
            self._unread()
        return begins

    def _resembled(self, word: str) -> str:
        """The tool that `word` of a header must mean; "" if none."""
        bare = _BEFORE_NAME.sub("", word, count=1)
        for name in (bare, _AFTER_NAME.sub("", bare, count=1)):
            if (tool := self._tool(name)) in self._options.tools:
                return tool
        return ""

    def _after_empty_object(self, header: Header) -> Script[str]:
        """Read an empty object in a header that goes on with `<|message|>`. Returns the marker that comes next."""
        match = yield from self._look(_patterns().empty_object, _MAY_BE_EMPTY_OBJECT)
        if match is None:
            return "{"
        self._at = match.end()
        header.leave("{}")
        return MESSAGE

    def _is_tool(self, name: str) -> bool:
        return self._tool(name) in self._options.tools

    def _rest_of_message(self, kind: Kind, before: str, marker: str | None) -> Script[None]:
        """Read a message that is no call. `before`: text of its header."""
        following = yield from self._peek()
        if before or (marker not in self._message_ends and following not in ("", *self.controls)):
            # A newline separates the texts of several messages.
            before = "\n" * (kind in self._with_text) + before
            self._with_text.add(kind)
        if marker in (*self._message_ends, *self._next_headers, *self._glued):
            if before:
                self._events.append(kind(before))
        else:
            if kind is Content and not before:
                yield from self._bare_call()
            marker = yield from self._message_text(kind, before)
            if marker == CALL:
                self._defect("missing_name")  # it ended like a call, but has no recipient
        if marker in (*self._next_headers, *self._glued):
            self._defect("missing_message_end")

    # -- the text of a message ----------------------------------------------------------------------------------------

    def _message_text(self, kind: Kind, before: str) -> Script[str | None]:
        """Emit `before` and the text after it, up to what ends a message, or begins one and is left unread.

        Returns that marker; None at the end of the output.
        """
        self._shown = ""
        if before:
            self._show(kind, before)
        while (marker := (yield from self._text(kind, *self._glued))) is not None:
            if marker in self._glued:
                self._unread()
                break
            in_code, last = self._in_code(), self._shown[-1:]
            if marker in self._next_headers:
                self._unread()
                if not in_code and (yield from self._is_header(marker, last)):
                    break
                self._at += 1
            elif not in_code and self._opens_quotation() and (yield from self._is_mention(kind)):
                continue
            elif not (yield from self._is_text(last, in_code, marker)):
                if marker in self._message_ends:
                    break
                self._stray_marker(marker)
                continue
            self._show(kind, marker)
        return marker

    def _is_text(self, last: str, in_code: bool, marker: str) -> Script[bool]:
        """Whether `marker`, the last one, which stands after the character `last`, is text of its message."""
        following = yield from self._peek()
        if marker in self._message_ends:
            mentioned = last in BEFORE and (following == "\n" or following in AFTER)
            if not (in_code or mentioned or (yield from self._look(_MARKUP, _MAY_BE_MARKUP)) is not None):
                return False
        elif marker == MESSAGE and not last and following not in AFTER:
            return False  # it came twice
        # In code, a transcript may have a marker in its next line. No message that ended has.
        return (in_code and following in tuple(WHITESPACE)) or (yield from self._text_follows())

    def _is_header(self, marker: str, last: str) -> Script[bool]:
        """Whether `marker`, which comes next, after the character `last`, begins a header."""
        patterns = _patterns()
        match = yield from self._look(*patterns.headers[marker])
        if match is None:
            begun = self._over and patterns.headers[marker][1].fullmatch(self._input, self._at) is not None
            return begun and (self._cut_off or last not in BEFORE)
        length = match.end() - match.start()
        in_line = last in BEFORE
        whole = yield from self._look((patterns.strict if in_line else patterns.loose)[marker], patterns.within)
        if whole is not None:
            following = self._input[whole.end() - 1]
            # A message may begin with a blank, after one that ended with a blank and not with its marker.
            return not in_line or following not in AFTER or (last not in QUOTES and following in WHITESPACE)
        if self._cut_off and patterns.begun_rest.fullmatch(self._input, self._at + length):
            return True
        glued = self._input[self._at + length : self._at + length + 1]
        return not in_line and glued.isalnum()

    def _call(self, header: Header, marker: str | None) -> Script[None]:
        name = header.recipient
        if name.startswith(FUNCTIONS) and name not in self._options.tools:
            name = name.removeprefix(FUNCTIONS)
        elif "." not in name and name != "python":  # built-in tools have no prefix
            self._defect("missing_prefix", name)
        self._open_call(name)
        while (
            marker == MESSAGE
            and (again := (yield from self._look(_patterns().message_again, _MAY_BE_MESSAGE_AGAIN))) is not None
        ):
            self._at = again.end()
            self._stray_marker(MESSAGE)
        if marker not in self._message_ends:
            marker = yield from self._json_arguments(*self._message_ends, *self._next_headers)
        elif header.text:
            self._take_arguments(header.text)
        self._close_call(marker, CALL, None)  # engines treat `<|call|>` as the end of the turn and may drop it
        if marker in self._next_headers:
            self._unread()


class _Patterns(msgspec.Struct, frozen=True):
    """What may follow a marker, in the alphabet of the reader.

    `headers`: by the marker, the beginning of a header up to the name of its channel, and what may become that.
    `strict`: a header up to its `<|message|>` and one more character; `loose`: the same with any words in it;
    `within`: what may become that. `begun_rest`: the beginning of what follows the name of the channel.
    `empty_object`: an empty object and `<|message|>`. `message_again`: `<|message|>`, perhaps after a type.
    """

    headers: Mapping[str, tuple[re.Pattern[str], re.Pattern[str]]]
    strict: Mapping[str, re.Pattern[str]]
    loose: Mapping[str, re.Pattern[str]]
    within: re.Pattern[str]
    begun_rest: re.Pattern[str]
    empty_object: re.Pattern[str]
    message_again: re.Pattern[str]


@functools.cache
def _patterns() -> _Patterns:
    start, channel, constrain, message = map(HarmonyReader.in_alphabet, (START, CHANNEL, CONSTRAIN, MESSAGE))
    control = "\ud800-\udfff"
    recipient = rf"to=[^\s{control}]{{1,128}}"
    begun = "|".join(name[:n] for name in _CHANNELS for n in range(len(name) + 1))
    role_begun = "|".join(ROLE[:n] for n in range(len(ROLE)))
    name = rf"{channel} ?{_CHANNEL}"
    role = rf"{start} ?(?:{ROLE})?(?: ?{recipient})? ?"
    recipient_begun = rf" ?(?:to?|to=[^\s{control}]{{0,128}})"
    role_in_part = rf" ?(?:{role_begun}|(?:{ROLE})?(?:{recipient_begun})? ?(?:{channel} ?(?:{begun}))?)"
    strict = rf"(?: ?{recipient})? ?(?:json|code)? ?(?:{constrain} ?\w{{0,32}} ?)?{message}[\s\S]"
    words = rf"[^\n{control}]{{0,160}}"
    loose = rf"{words}(?:[{channel}{constrain}]{words}){{0,2}}{message}[\s\S]"
    type_begun = "|".join(name[:n] for name in _TYPES for n in range(len(name) + 1))
    return _Patterns(
        {
            START: (
                re.compile(rf"{role}(?:{name}|{message}|{_CHANNEL}(?={message}))"),
                re.compile(rf"{start}(?:{role_in_part}| ?(?:{begun}))"),
            ),
            CHANNEL: (re.compile(name), re.compile(rf"{channel} ?(?:{begun})")),
        },
        {START: re.compile(rf"{role}(?:{name})?{strict}"), CHANNEL: re.compile(name + strict)},
        {START: re.compile(rf"{role}(?:{name})?{loose}"), CHANNEL: re.compile(name + loose)},
        re.compile(rf"[{control}]{words}(?:[{control}]{words}){{0,4}}"),
        re.compile(rf"(?:{recipient_begun})? ?(?:{type_begun})(?: ?{constrain} ?\w{{0,32}})? ?"),
        re.compile(rf"{_EMPTY}{message}"),
        re.compile(rf"{_GAP}(?:json|code)?{_GAP}{message}"),
    )


class HarmonyAnswers(AnswerGrammar):
    """Every part of an answer is a message with a header."""

    #: The channel of content before calls, and what stands between two messages.
    channel_before_calls = COMMENTARY
    next: tuple[Node, ...] = (ControlToken(END), ControlToken(START), ExactText(ROLE))

    def answer(self, asked: Asked) -> Grammar:
        calls = self.calls(asked.tools, asked.parallel)
        if asked.required:
            return self.calls_or_structured(calls, None, asked.thinking)
        calling = Concat((Maybe(self._message(self.channel_before_calls, _TEXT, *self.next)), calls))
        said = self._message(FINAL, asked.text)
        return Grammar(Concat((*self.reasoning(asked.thinking), Choice((calling, said)))))

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

    def content_only(self, asked: Asked) -> Grammar:
        return Grammar(Concat((*self.reasoning(asked.thinking), self._message(FINAL, asked.text))))

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        final = self._message(FINAL, content) if content else None
        either = Choice(tuple(node for node in (calls, final) if node))
        return Grammar(Concat((*self.reasoning(thinking), either)))

    def reasoning(self, thinking: bool) -> tuple[Node, ...]:
        return (Maybe(self._message(ANALYSIS, _TEXT, *self.next)),) if thinking else ()

    def _message(self, channel: str, *content: Node) -> Node:
        """A message to the user, without its end."""
        return Concat((ControlToken(CHANNEL), ExactText(channel), ControlToken(MESSAGE), *content))


class ChannelFormat(Format):
    """Answers whose reasoning is a message on the channel `analysis`."""

    reasoning: ReasoningBlock = "written"
    end_of_turn = (RETURN, CALL)

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


class Harmony(ChannelFormat):
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
    reader_type = HarmonyReader
    _answers = HarmonyAnswers

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        if options.get("reasoning_effort") is None:
            options["reasoning_effort"] = "medium" if thinking else "low"
        options.setdefault("current_date", datetime.date.today().isoformat())
        return render(messages, tools, open_turn, **options)

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
