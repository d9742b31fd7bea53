"""Kimi K3's language, XTML: `<|open|>NAME attributes<|sep|>…<|close|>NAME<|sep|>`. Only the marks are control tokens.

An assistant's `message` contains `think`, `response` and `tools`. The prompt opens `think`, or `response` if thinking
is off. `tools` contains a `call` (attribute `tool`) for each call. A `call` contains an `argument` (attributes `key`
and `type`) for each argument, or all arguments as one `json`. Attributes escape `&` and `"`; values escape nothing.
Source: Moonshot's encoder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.events import Content, Message, Reasoning
from dovetail.formats.answers import call_envelope
from dovetail.formats.answers.answer_grammar import AnswerGrammar, Asked
from dovetail.formats.base import EngineParsers, Format, Messages, Tools
from dovetail.formats.declared.declared import parameters
from dovetail.formats.families import kimi_k3_prompt
from dovetail.formats.families.kimi_k3_prompt import CLOSE, END, OPEN, SEP
from dovetail.grammar import Choice, Concat, FreeText, Grammar, Node
from dovetail.reading import Script
from dovetail.reading.alphabet import any_control
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.mentions import QUOTES, Prose
from dovetail.reading.parameter_reader import ParameterReader
from dovetail.reading.value_ends import OpenValue
from dovetail.tokens import Prompt, Segment

_NAMES = ("message", "think", "response", "tools", "call", "argument", "json")
_MESSAGE, _THINK, _RESPONSE, _TOOLS, _CALL, _ARGUMENT, _JSON = (OPEN + name for name in _NAMES)
_MESSAGE_END, _THINK_END, _RESPONSE_END, _TOOLS_END, _CALL_END, _ARGUMENT_END, _JSON_END = (
    CLOSE + name for name in _NAMES
)
_TYPES = {kind: frozenset((kind,)) for kind in ("string", "boolean", "null", "object", "array", "integer")}
_TYPES["number"] = frozenset(("number", "integer"))
_ATTRIBUTE = re.compile(r"""\s*+([\w.:-]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'=]++))""")
_WORD = re.compile(r"\s*+([\w.:-]++)\s*+")
_INDEX = re.compile('" index="[0-9]+"')
_ESCAPED = re.compile("&(amp|quot);")


class Tag(NamedTuple):
    """An opening tag, after its name."""

    attributes: dict[str, str]
    text: str
    #: The part of the text that is no attribute.
    rest: str
    #: The marker after the tag; "" for other text, None for the end of the output.
    stop: str | None = SEP


class KimiK3Reader(ParameterReader):
    controls = (OPEN, CLOSE, SEP, END)
    begin_of_text = ("[BOS]",)
    ends = (END,)
    think, think_end = _THINK + SEP, _THINK_END + SEP
    section, section_end = _TOOLS + SEP, _TOOLS_END + SEP
    parameter_end, after_parameter_end = _ARGUMENT_END, SEP
    openers = (_TOOLS, _CALL)
    inner = (_ARGUMENT, _JSON, _TOOLS_END, _CALL_END, _ARGUMENT_END, _JSON_END)
    #: The beginnings of all known tags. A mark before anything else is misplaced.
    tags = (*openers, *inner, _MESSAGE, _THINK, _RESPONSE, _MESSAGE_END, _THINK_END, _RESPONSE_END)

    @classmethod
    def stops_of_values(cls) -> tuple[str, ...]:
        return (_ARGUMENT_END, _ARGUMENT, _CALL_END, _CALL, _TOOLS_END, _TOOLS, _MESSAGE_END, *cls.ends)

    @classmethod
    def marks_after_values(cls) -> tuple[str, ...]:
        return (*cls.tags, *cls.ends)

    @classmethod
    def nested_tags(cls) -> tuple[str, ...]:
        return (_ARGUMENT,)

    def _opens_next(self, text: str, at: int, tag: int) -> bool:
        opened = any_control.split(text[tag + 1 : tag + LONGEST_HEADER], maxsplit=1)[0]
        key = re.search(r'key="([^"]*)"', opened)
        return key is not None and self._lacks(key[1], text, at)

    def _read(self) -> Script[None]:
        inside = "think" if self._options.thinking else "response"
        if inside == "response":
            yield from self._bare_call()
        while True:
            kind = Reasoning if inside == "think" else Content
            stops = (*self.tags, *self.ends)
            marker = yield from (self._text(kind, *stops) if inside else self._between(*stops))
            if marker is None:
                return
            if inside and marker != CLOSE + inside and self._is_quoted():
                self._mentioned = True
                self._show(kind, self._last_marker())
            elif marker in self.openers and inside:
                if (yield from self._section_or_mention(marker, kind)):
                    inside = ""
            elif marker in self.openers and self._options.calls:
                yield from self._section(marker)
            elif marker in (_MESSAGE, _THINK, _RESPONSE):
                if marker == OPEN + inside:
                    self._stray_marker(marker)
                elif inside:
                    self._leave(kind)
                inside = yield from self._block(marker)
                self._shown = ""
                if inside == "response":
                    yield from self._bare_call()
            elif marker in (_MESSAGE_END, _THINK_END, _RESPONSE_END):
                if marker != CLOSE + (inside or "message"):
                    self._stray_marker(marker)
                inside = ""
                yield from self._separator()
            elif marker in self.ends:
                if not (inside and (yield from self._is_mentioned_end(kind))):
                    inside = ""
            elif inside:
                yield from self._stray_or_text(marker, kind)
            else:
                self._defect("stray_marker" if self._options.calls else "call_not_allowed", marker)

    def _is_quoted(self) -> bool:
        """Whether the last marker comes right after a quotation mark."""
        return self._shown[-1:] in QUOTES

    def _leave(self, kind: Prose) -> None:
        self._defect("reasoning_not_closed" if kind is Reasoning else "response_not_closed")

    def _block(self, opener: str) -> Script[str]:
        """Read the opening tag of a block of text, and return the block's name; "" for a message."""
        tag = yield from self._tag()
        if opener == _MESSAGE:
            if tag.attributes.pop("role", "assistant") != "assistant":
                self._defect("unexpected_role", tag.text)
            self._extra(tag)
            self._misplaced(tag.rest)
            return ""
        self._extra(tag)
        if tag.rest:
            self._events.append((Reasoning if opener == _THINK else Content)(tag.rest))
        return opener.removeprefix(OPEN)

    # -- calls --------------------------------------------------------------------------------------------------------

    def _section(self, opener: str) -> Script[None]:
        if opener == _CALL:
            self._defect("missing_section")
            self._unread()
        else:
            self._misplaced((yield from self._tag()).text)
        while True:
            marker = yield from self._between(*self.tags, *self.ends)
            if marker == _CALL:
                yield from self._call()
            elif marker in (_ARGUMENT, _JSON) and (name := self._only_tool()):
                self._defect("missing_name", marker)
                self._begin_call(name)
                self._unread()
                yield from self._body()
            elif marker == _TOOLS_END:
                yield from self._separator()
                return
            elif marker in (_TOOLS, *self.inner):
                self._stray_marker(marker)
                yield from self._next_is(SEP)
            else:
                self._defect("missing_section_end")
                self._unread()
                return

    def _call(self) -> Script[None]:
        tag = yield from self._tag()
        name, rest = self._named(tag, "tool", "index")
        if tag.stop is None and not name:
            self._abandon(tag.text, "truncated_call")
            return
        if not name:
            self._defect("missing_name", tag.text)
            name = self._only_tool()
        if name:
            self._begin_call(name)
            self._misplaced(rest)
            yield from self._body()
        else:
            self._misplaced(tag.text)

    def _body(self) -> Script[None]:
        """Read the open call, from the end of its tag to the end of the call."""
        yield from self._skip(WHITESPACE)
        block = yield from self._next_is(_JSON)
        if block:
            tag = yield from self._tag()
            self._extra(tag, "type")
            self._misplaced(tag.rest)
        if block or (yield from self._peek()) == "{":
            marker = yield from self._json_arguments(*self.value_stops, _JSON_END)
            if marker == _JSON_END:
                yield from self._separator()
                marker = yield from self._between(*self.tags, *self.ends)
            self._close_call(marker, _CALL_END)
        else:
            while (marker := (yield from self._between(*self.tags, *self.ends))) in (_ARGUMENT, _ARGUMENT_END):
                if marker == _ARGUMENT:
                    yield from self._argument()
                else:
                    self._stray_marker(marker)
                    yield from self._next_is(SEP)
            self._close_parameters(marker, _CALL_END)
        if marker == _CALL_END:
            yield from self._separator()
        elif marker is not None:
            self._unread()

    def _argument(self) -> Script[None]:
        tag = yield from self._tag()
        key, rest = self._named(tag, "key", "type")
        if key is None:
            if tag.stop is None and self._cut_off and self._begins_argument(tag.text.strip()):
                return
            self._abandon(tag.text, "truncated_argument" if tag.stop is None else "missing_key")
            return
        types = _TYPES.get(tag.attributes.get("type", ""))
        if types is None:
            self._defect("missing_type", key)  # the schema's type is used
        if tag.stop == SEP:
            self._misplaced(rest)
        write = self._parameters.open(key, types)
        if tag.stop != SEP and rest:
            write(rest)
        self._open_value = OpenValue(self._ends, (), self._is_foreign, self._opens_next)
        marker = yield from self._up_to_end(write, *self.value_stops)
        if marker is None:
            return
        self._parameters.close()
        if marker == _ARGUMENT_END:
            yield from self._separator()
        else:
            self._defect("missing_parameter_end", key)
            self._unread()

    def _begins_argument(self, text: str) -> bool:
        """Whether `text`, at the end of an output that was cut off, begins the attributes of one of the arguments."""
        attribute = 'key="'
        return attribute.startswith(text) or (
            text.startswith(attribute) and self._parameters.begins_key(text.removeprefix(attribute))
        )

    # -- tags ---------------------------------------------------------------------------------------------------------

    def _tag(self) -> Script[Tag]:
        """Read an opening tag after its name, up to its `<|sep|>` or to where that is missing."""
        if (yield from self._next_is(SEP)):
            return Tag({}, "", "")
        following = yield from self._peek()
        if following not in (*WHITESPACE,):
            self._defect("missing_separator")
            return Tag({}, "", "", following or None)
        tag, stop = yield from self._read_up_to(LONGEST_HEADER, SEP, *self.tags, *self.ends)
        if stop != SEP:
            self._unread()
            self._defect("missing_separator" if stop != "" else "endless_header", tag)
        attributes: dict[str, str] = {}
        rest, end = "", 0
        for match in _ATTRIBUTE.finditer(tag):
            rest += tag[end : match.start()]
            end = match.end()
            key, value = match[1], match[match.lastindex or 0]
            if match.lastindex != 2:
                self._defect("attribute_quotes", match.group())
            if attributes.setdefault(key, _unescaped(value)) != _unescaped(value):
                rest += match.group()
        rest += tag[end:]
        return Tag(attributes, tag, rest if rest.strip() else "", stop)

    def _named(self, tag: Tag, name: str, other: str) -> tuple[str | None, str]:
        """The value of the attribute `name`, and the text of the tag that is no attribute."""
        value, rest = tag.attributes.get(name, tag.attributes.get("name")), tag.rest
        if value is None and tag.stop and (word := _WORD.fullmatch(rest)):
            value, rest = word[1], ""
        if value is not None and name not in tag.attributes:
            self._defect("missing_attribute", tag.text)
        self._extra(tag, name if name in tag.attributes else "name", other)
        return value, rest

    def _extra(self, tag: Tag, *known: str) -> None:
        if tag.attributes.keys() - known or not tag.attributes.get("index", "1").isdecimal():
            self._defect("extra_attributes", tag.text)

    def _separator(self) -> Script[None]:
        if not (yield from self._next_is(SEP)):
            self._defect("missing_separator")


def _unescaped(value: str) -> str:
    return _ESCAPED.sub(lambda escape: "&" if escape[1] == "amp" else '"', value)


class KimiK3Answers(AnswerGrammar):
    """Content is in tags, too."""

    def answer(self, asked: Asked) -> Grammar:
        reasoning, calls = self.reasoning(asked.thinking), self.calls(asked.tools, asked.parallel)
        if asked.required:
            return self.calls_or_structured(calls, None, asked.thinking)
        text = Concat((asked.text, self._ending()))
        return Grammar(Concat((*reasoning, Choice((Concat((FreeText(), calls)), text)))))

    def content_only(self, asked: Asked) -> Grammar:
        return Grammar(Concat((*self.reasoning(asked.thinking), asked.text, self._ending())))

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        response = content and Concat((content, self._ending()))
        either = tuple(node for node in (calls, response) if node is not None)
        return Grammar(Concat((*self.reasoning(thinking), Choice(either))))

    def reasoning(self, thinking: bool) -> tuple[Node, ...]:
        if not thinking:
            return ()
        ending = self._ending()
        return (FreeText(), *self._nodes(thinking=True)[: -len(ending.items)])

    def _ending(self) -> Concat:
        """The markup after content without calls."""
        return Concat(self._nodes(thinking=False))

    def _nodes(self, thinking: bool) -> tuple[Node, ...]:
        return call_envelope.nodes(
            self.format.in_known_tokens(self.format.write(Message(), thinking=thinking)), self.format.end_of_turn
        )

    def write_indexed(self, message: Message) -> Prompt:
        return Prompt(
            Segment(text if control else _INDEX.sub(f'" index="{call_envelope.INDEX}"', text), control)
            for text, control in self.format.write(message, thinking=False).segments
        )

    def attribute(self, name: str) -> str:
        return kimi_k3_prompt.escaped(name)


class KimiK3(Format):
    """Options: OpenAI's `tool_choice` and `response_format`; `thinking_effort`: low, high, max, or None for none."""

    name = "kimi_k3"
    picture = kimi_k3_prompt.PICTURE
    vllm_parsers = EngineParsers("kimi_k3", "kimi_k3")
    sglang_parsers = EngineParsers("kimi_k3", "kimi_k3")
    template_options = ("thinking_effort", "tool_choice", "response_format")
    efforts = ("low", "high", "max")
    end_of_turn = (END,)
    reader_type = KimiK3Reader
    _answers = KimiK3Answers

    def render(
        self, messages: Messages, tools: Tools = None, *, continue_final_message: bool = False, **options: Any
    ) -> Prompt:
        """See `Format.render`. `continue_final_message` excludes options that are written after the last message."""
        if continue_final_message:
            kimi_k3_prompt.refuse_after_last(options)
        return super().render(messages, tools, continue_final_message=continue_final_message, **options)

    def _render(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]],
        thinking: bool,
        open_turn: bool,
        thinking_effort: Any = "max",
        tool_choice: Any = None,
        response_format: Any = None,
        **options: Any,
    ) -> Prompt:
        pieces: list[str] = []
        kimi_k3_prompt.add_tools(pieces, tools)
        if thinking:
            kimi_k3_prompt.add_effort(pieces, thinking_effort)
        kimi_k3_prompt.add_messages(pieces, messages, thinking)
        kimi_k3_prompt.add_tool_choice(pieces, tool_choice)
        kimi_k3_prompt.add_response_format(pieces, response_format)
        if open_turn:
            kimi_k3_prompt.open_answer(pieces, thinking)
        return Prompt.alternating(pieces)

    def left_open(self, prompt: Prompt) -> bool:
        pieces = prompt.pieces
        for i in range(len(pieces) - 1 - len(pieces) % 2, 0, -2):
            if pieces[i] in (CLOSE, END):
                return False
            if pieces[i] == OPEN:
                return pieces[i + 1] == _THINK.removeprefix(OPEN)
        return False

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        pieces: list[str] = []
        calls = [(call.name, parameters(call)) for call in message.calls]
        kimi_k3_prompt.add_answer(pieces, message.reasoning if thinking else None, message.content, calls)
        return Prompt.alternating(pieces)
