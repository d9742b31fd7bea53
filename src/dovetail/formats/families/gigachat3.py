"""GigaChat 3's calls: `gigachat3` (3.1 writes them otherwise), one call in a message of its own.

    I will look.<|message_sep|>

    function call<|role_sep|>
    {"name": "get_weather", "arguments": {"city": "Paris"}}<|message_sep|>

The prompt begins the first message, which is content and may be empty. The newlines belong to the tokens. A message's
end does not end the turn, because a call may follow. Source: the model's chat template, llama.cpp #17922, vLLM #36664.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dovetail.conversation import Tool
from dovetail.events import Content, Message
from dovetail.formats.answers import call_envelope
from dovetail.formats.answers.answer_grammar import BLANKS, AnswerGrammar, Asked
from dovetail.formats.answers.input_grammar import ClientGrammar
from dovetail.formats.base import EngineParsers, Format, ReasoningBlock
from dovetail.grammar import Choice, Concat, ExactText, Grammar, Maybe, Node
from dovetail.reading import Script
from dovetail.reading.json_calls import JsonCallReader
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.prose import MOST_SPACE
from dovetail.tokens import Prompt, Segment

#: What ends a message, and what ends the name of a message's role.
NEXT, ROLE_END = "<|message_sep|>\n\n", "<|role_sep|>\n"
END = "</s>"
#: The role of a call.
CALL = "function call"


class GigaChat3Reader(JsonCallReader):
    controls = (NEXT, ROLE_END, END)
    begin_of_text = ("<s>",)
    ends = (END, NEXT)
    section = CALL + ROLE_END
    openers = (section,)
    inner = (ROLE_END,)
    around_messages = (NEXT, ROLE_END)
    one_call_in_section = True

    def _end_passed(self, end: str, in_reasoning: bool) -> Script[None]:
        """Read the call that may follow a message."""
        if end != NEXT:
            return
        self._unread()
        begins = yield from self._look(_NEXT_CALL, _MAY_BE_NEXT_CALL)
        self._mark, self._at = self._at, self._at + 1
        if begins is not None:
            if in_reasoning:
                self._defect("reasoning_not_closed")
            yield from self._section_or_mention(NEXT, Content)
            return
        if self._mentioned and (yield from self._text_follows()):
            self._show(Content, NEXT)
            return
        space = yield from self._skip(WHITESPACE, MOST_SPACE)
        while (yield from self._next_is(NEXT)) is not None:
            self._stray_marker(NEXT)
            space = yield from self._skip(WHITESPACE, MOST_SPACE)
        if space and len((yield from self._peek())) == 1:
            self._events.append(Content(space))

    def _section(self, opener: str) -> Script[None]:
        if opener == NEXT:
            yield from self._skip(WHITESPACE, MOST_SPACE)
            while (yield from self._next_is(NEXT)) is not None:
                self._stray_marker(NEXT)
                yield from self._skip(WHITESPACE, MOST_SPACE)
            yield from self._next_is(CALL)
            yield from self._skip(WHITESPACE, MOST_SPACE)
            if (yield from self._next_is(ROLE_END)) is None:
                self._defect("missing_separator")
        else:
            self._defect("missing_message_end")
        yield from self._call_message()

    def _call_message(self) -> Script[None]:
        while (yield from self._next_is(ROLE_END)) is not None:
            self._stray_marker(ROLE_END)
        yield from super()._section(self.openers[0])


_BETWEEN = rf"[{GigaChat3Reader.in_alphabet(NEXT)}\s]{{0,{2 * MOST_SPACE}}}"
#: The end of a message that a call follows, and what may become that.
_NEXT_CALL = re.compile(rf"{_BETWEEN}{CALL}\s{{0,{MOST_SPACE}}}[{GigaChat3Reader.in_alphabet(ROLE_END)}{{]")
_MAY_BE_NEXT_CALL = re.compile(
    rf"{_BETWEEN}(?:{'|'.join(CALL[:n] for n in range(len(CALL) + 1))}|{CALL}\s{{0,{MOST_SPACE}}})"
)


class GigaChat3Answers(AnswerGrammar):
    def answer(self, asked: Asked) -> Grammar:
        calls = self.calls(asked.tools, asked.parallel)
        if asked.required:
            return Grammar(calls)
        more = Maybe(Concat((self.mark(NEXT), Maybe(self._call(asked.tools)))))
        return Grammar(Choice((Concat((Maybe(BLANKS), calls)), Concat((asked.text, more)))))

    def content_only(self, asked: Asked) -> Grammar:
        return Grammar(Concat((asked.text, self._end())))

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        message = Concat((content, self._end())) if content else None
        return Grammar(Choice(tuple(node for node in (calls, message) if node)))

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        """The message of one call, after an empty one of content: the model makes one call a turn."""
        return Concat((self.mark(NEXT), self._call(tools)))

    def after_calls(self) -> None:
        """None: the model makes one call a turn."""

    def custom_input(self, grammar: ClientGrammar) -> Node:
        return grammar.in_json()

    def _call(self, tools: Mapping[int, Tool]) -> Node:
        """The message of a call, without the end of the message before it."""
        called = []
        for index, tool in tools.items():
            arguments = self.slots(index, tool)[call_envelope.ARGUMENTS]
            called.append(Concat((ExactText(f'{{"name": "{tool.name}", "arguments": '), arguments)))
        return Concat((ExactText(CALL), self.mark(ROLE_END), Choice(tuple(called)), ExactText("}"), self._end()))

    def _end(self) -> Node:
        return Maybe(self.mark(NEXT))


class GigaChat3(Format):
    name = "gigachat3"
    vllm_parsers = EngineParsers("gigachat3")
    sglang_parsers = EngineParsers("gigachat3")
    reasoning: ReasoningBlock = "none"
    end_of_turn = (END,)
    inside_turns = (NEXT, ROLE_END)
    reader_type = GigaChat3Reader
    _answers = GigaChat3Answers

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        segments = [Segment(message.content, False), Segment(NEXT, True)]
        for call in message.calls:
            written = f'{{"name": "{call.name}", "arguments": {call.arguments}}}'
            segments += (Segment(CALL, False), Segment(ROLE_END, True), Segment(written, False), Segment(NEXT, True))
        return Prompt([*segments, Segment(END, True)])
