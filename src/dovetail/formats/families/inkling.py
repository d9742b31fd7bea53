"""Inkling's answers: `inkling`, a message for reasoning, one for content, and one for each call.

A message is `<|message_model|>`, which the prompt writes of the first, the kind of its block (`<|content_thinking|>`,
`<|content_text|>`, `<|content_invoke_tool_json|>`), text and `<|end_message|>`. A call has its tool's name before the
kind, too, and its text is `{"name":"get_weather","args":{"city":"Paris"}}`. `<|content_model_end_sampling|>` ends the
turn. Sources: as for the prompts (`inkling_prompt`), and the parsers of vLLM and SGLang.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Self

from dovetail.conversation import Tool
from dovetail.events import Content, Message, Reasoning
from dovetail.formats.answers import call_envelope
from dovetail.formats.answers.answer_grammar import BLANKS, AnswerGrammar, Asked
from dovetail.formats.answers.input_grammar import ClientGrammar
from dovetail.formats.base import EngineParsers, Format, Messages, ReasoningBlock
from dovetail.formats.declarations import sorted_deeply
from dovetail.formats.families import inkling_prompt
from dovetail.formats.families.inkling_prompt import (
    CALL,
    EFFORTS,
    END,
    END_OF_TURN,
    MODEL,
    TEXT,
    THINK,
    UNNAMED_XML,
    XML,
)
from dovetail.formats.prompts.history import HistoryRules
from dovetail.grammar import Choice, Concat, ControlToken, ExactText, FreeText, Grammar, Maybe, Node, Repeat
from dovetail.reading import Script
from dovetail.reading.json_calls import JsonCallReader
from dovetail.reading.json_objects import Keys
from dovetail.reading.mentions import Prose
from dovetail.reading.prose import MOST_SPACE
from dovetail.tokens import Prompt, Segment

_SPACE = rf"[ \t\r\n]{{0,{MOST_SPACE}}}"
#: The name in front of a block, if it has one, and what follows; and what may become that.
_HEADER = re.compile(rf"{_SPACE}([\w.:/-]{{0,128}}){_SPACE}([\ud800-\udfff{{])")
_MAY_BE_HEADER = re.compile(rf"{_SPACE}[\w.:/-]{{0,128}}{_SPACE}")
#: The same after the marker that begins a message.
_MESSAGE = re.compile(rf"[\ud800-\udfff]{_HEADER.pattern}")
_MAY_BE_MESSAGE = re.compile(rf"[\ud800-\udfff]{_MAY_BE_HEADER.pattern}")


class InklingReader(JsonCallReader):
    controls = (MODEL, TEXT, THINK, CALL, END, END_OF_TURN)
    ends = (END, END_OF_TURN, MODEL)
    section, section_end = CALL, END
    openers = (CALL,)
    one_call_in_section = True
    keys = Keys(arguments=("args", *Keys().arguments))

    def _read(self) -> Script[None]:
        marker = (yield from self._block(Reasoning)) if self._options.thinking else MODEL
        while marker is not None:
            marker = yield from self._message(marker)

    def _message(self, before: str) -> Script[str | None]:
        """Read a message after the marker `before`. Returns the marker that ends it; None at the end of the output."""
        begun = before == MODEL
        while (marker := (yield from self._after_space(*self.ends))) is not None:
            if marker == MODEL and not begun:
                begun = True
            elif marker != END_OF_TURN:
                self._stray_marker(marker)
        if not (yield from self._peek()):
            return None
        if not begun:
            self._defect("missing_start")
        self._shown = ""
        match = yield from self._look(_HEADER, _MAY_BE_HEADER)
        name, kind = ("", "") if match is None else (match[1], self._alphabet.spell(match[2]))
        if match is not None and (kind == CALL or (kind == "{" and self._tool(name) in self._options.tools)):
            if kind == "{":
                self._defect("missing_separator", name)
            self._mark, self._at = self._at, match.start(2) + (kind == CALL)
            if not (yield from self._section_or_mention(CALL, Content)):
                return (yield from self._block(Content))
            if name and self._options.tools and self._tool(name) not in self._options.tools:
                self._defect("text_in_header", name)  # the object has the call's own name
            return END
        if match is None or kind not in (TEXT, THINK):
            self._defect("text_outside_message")
            return (yield from self._block(Content))
        self._at = match.end()
        if name:
            self._defect("text_in_header", name)
            self._events.append(Content(name))
        return (yield from self._block(Reasoning if kind == THINK else Content))

    def _block(self, kind: Prose) -> Script[str | None]:
        """Read the text of a block. Returns as `_message` does."""
        if kind is Content:
            yield from self._bare_call()
        while (marker := (yield from self._text(kind, *self.openers, *self.ends))) is not None:
            if marker == CALL:
                if (yield from self._section_or_mention(marker, kind)):
                    if kind is Content:
                        self._defect("missing_message_end")
                    return END
            elif marker not in self.ends:
                yield from self._stray_or_text(marker, kind)
            elif not (yield from self._is_mentioned_mark(marker, kind)):
                break
        if marker == MODEL:
            self._defect("missing_message_end")
        return marker

    def _is_mentioned_mark(self, marker: str, kind: Prose) -> Script[bool]:
        """Whether `marker`, the last one, which may end a block, is text. Then it is emitted as `kind`."""
        written = self._last_marker()
        match = (yield from self._look(_HEADER, _MAY_BE_HEADER)) if marker == MODEL else None
        if marker == END and (yield from self._peek()) == MODEL:
            match = yield from self._look(_MESSAGE, _MAY_BE_MESSAGE)
        if match is not None and self._alphabet.spell(match[2]) in (TEXT, THINK, CALL, "{"):
            return False
        # Behind the end of one message, another may lack its beginning.
        return (yield from (self._is_mention if marker == END else self._is_mentioned_end)(kind, written))


class InklingAnswers(AnswerGrammar):
    def answer(self, asked: Asked) -> Grammar:
        calls = self.calls(asked.tools, asked.parallel)
        if asked.required:
            return self._after_reasoning(calls, asked.thinking)
        before = _block(TEXT, FreeText() if asked.silent else Maybe(BLANKS))
        said = _block(TEXT, asked.text)
        called = Concat((Maybe(Concat((Choice((before, said)), ControlToken(MODEL)))), calls))
        return self._after_reasoning(Choice((called, said)), asked.thinking)

    def content_only(self, asked: Asked) -> Grammar:
        return self._after_reasoning(_block(TEXT, asked.text), asked.thinking)

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        said = None if content is None else _block(TEXT, content)
        return self._after_reasoning(Choice(tuple(node for node in (calls, said) if node)), thinking)

    def _after_reasoning(self, answer: Node, thinking: bool) -> Grammar:
        return Grammar(Concat((*self.reasoning(thinking), answer)))

    def reasoning(self, thinking: bool) -> tuple[Node, ...]:
        return (Maybe(Concat((_block(THINK, FreeText()), ControlToken(MODEL)))),) if thinking else ()

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        called = []
        for index, tool in tools.items():
            arguments = self.slots(index, tool)[call_envelope.ARGUMENTS]
            opening = ExactText(f'{{"name":"{tool.name}","args":')
            called.append(Concat((ExactText(tool.name), _block(CALL, opening, arguments, ExactText("}")))))
        call = Choice(tuple(called))
        return Concat((call, Repeat(Concat((ControlToken(MODEL), call)), 0))) if parallel else call

    def after_calls(self) -> None:
        """None: every call is closed."""

    def custom_input(self, grammar: ClientGrammar) -> Node:
        return grammar.in_json()


def _block(kind: str, *nodes: Node) -> Node:
    return Concat((ControlToken(kind), *nodes, ControlToken(END)))


class Inkling(Format):
    """`reasoning_effort` is a level with a name (`inkling_prompt.EFFORTS`) or a number from 0 to 0.99."""

    name = "inkling"
    vllm_parsers = EngineParsers("inkling", "inkling")
    sglang_parsers = EngineParsers("inkling", "inkling")
    history_rules = HistoryRules(parts="text", arguments="object")
    template_options = ("reasoning_effort",)
    efforts = tuple(EFFORTS)
    reasoning: ReasoningBlock = "written"
    end_of_turn = (END_OF_TURN,)
    inside_turns = (MODEL, END)
    reader_type = InklingReader
    shown_order = staticmethod(sorted_deeply)
    _answers = InklingAnswers
    _xml = XML

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        effort = inkling_prompt.level(options.get("reasoning_effort"), thinking)
        return inkling_prompt.prompt(messages, tools, self._xml, effort, open_turn)

    def spelled_for(self, controls: Container[str]) -> Self:
        fmt = copy.copy(self)
        fmt._xml = XML if XML in controls else UNNAMED_XML
        return fmt

    def left_open(self, prompt: Prompt) -> bool:
        return next((token for token in reversed(prompt.pieces[1::2]) if token in (THINK, END)), "") == THINK

    @property
    def reasoning_tags(self) -> None:
        """None: reasoning is a message, and its end may be the end of another message."""

    @property
    def _reasoning_ends(self) -> tuple[str, str]:
        return THINK, END + MODEL

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        blocks = [("", THINK, message.reasoning)] if thinking and message.reasoning else []
        if message.content or not (blocks or message.calls):
            blocks.append(("", TEXT, message.content))
        for call in message.calls:
            blocks.append((call.name, CALL, f'{{"name":"{call.name}","args":{call.arguments}}}'))
        segments: list[Segment] = []
        for name, kind, text in blocks:
            segments += [Segment(MODEL, True)] if segments else []
            segments += (Segment(name, False), Segment(kind, True), Segment(text, False), Segment(END, True))
        return Prompt([*segments, Segment(END_OF_TURN, True)])
