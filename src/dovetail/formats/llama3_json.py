"""Llama 3 and 4 with JSON calls: `llama3_json`.

The whole output is `{"name": …, "parameters": {…}}`, or several of these separated by "; ". `<|python_tag|>` may come
before them, and has to after text. Source: Meta's chat templates and prompt formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.conversation import Tool
from dovetail.events import Content
from dovetail.formats import call_envelope, plain_text
from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared import DeclaredFormat, JsonCalls
from dovetail.grammar import Choice, Concat, ExactText, Grammar, Maybe, Node, Regex, Repeat
from dovetail.reading import Script
from dovetail.reading.arguments import WHITESPACE
from dovetail.reading.calls import MOST_SPACE
from dovetail.reading.json_calls import JsonCallReader, Keys

TAG = "<|python_tag|>"
END, END_OF_MESSAGE, END_OF_TEXT = "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"
TURN_ENDS = (END, END_OF_MESSAGE, "<|eot|>", "<|eom|>")  # the last two are Llama 4's

_SPACE = rf"[ \t\r\n]{{0,{MOST_SPACE}}}"
_BLANK = Regex(rf"[ \t\r\n]{{1,{MOST_SPACE}}}")
#: Some models write a type before the name, or OpenAI's key for the arguments.
_BEFORE_NAME = Regex(rf'\{{{_SPACE}(?:"type"{_SPACE}:{_SPACE}"function"{_SPACE},{_SPACE})?"name"{_SPACE}:{_SPACE}')
_BEFORE_ARGUMENTS = Regex(rf'{_SPACE},{_SPACE}"(?:parameters|arguments)"{_SPACE}:{_SPACE}')
_CALL_END = Regex(rf"{_SPACE}\}}")
_BETWEEN = Regex(rf"{_SPACE}[;,]{_SPACE}|[ \t\r\n]{{1,{MOST_SPACE}}}")


class LlamaReader(JsonCallReader):
    """Without the tag, content is a call only if it begins with an object that has a call's keys."""

    unmarked = r"\{"

    def _content_begins(self) -> Script[None]:
        if not self._options.calls or self._options.structured:
            return
        raw = [(yield from self._skip(WHITESPACE, MOST_SPACE))]
        if (yield from self._peek()) == "{":
            raw += ((yield from self._skip("{", 1)), (yield from self._skip(WHITESPACE, MOST_SPACE)))
            if (yield from self._next_is(*self.keys.quoted())) is not None:
                self._unread()
                before = self._index
                marker = yield from self._object(raw, *self.controls, certain=False)
                if marker == "" and self._index > before:
                    marker = yield from self._calls(*self.controls, read=1)
                if marker:
                    self._unread()
                return
        if text := "".join(raw):
            self._events.append(Content(text))

    def _section(self, opener: str) -> Script[None]:
        before = self._index
        marker = yield from self._calls(*self.controls)
        if marker:
            self._unread()
        elif marker == "" and self._index == before:
            self._defect("unreadable_call")


class LlamaAnswers(plain_text.PlainTextAnswers):
    def answer(
        self, tools: Mapping[int, Tool], required: bool, thinking: bool, parallel: bool, others: Sequence[str]
    ) -> Grammar:
        """Calls are the whole answer, or follow text and the tag. Other text does not begin like a call."""
        text = self._text()
        tagged = Concat((Maybe(text), self.mark(TAG), Maybe(_BLANK)))
        calls: Node = Concat((Maybe(Choice((tagged, _BLANK))), self.calls(tools, parallel)))
        answer = calls if required else Choice((calls, Maybe(text)))
        return Grammar(Concat((*self.reasoning(thinking), answer)))

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        called = []
        for index, tool in tools.items():
            arguments = self.slots(index, tool)[call_envelope.ARGUMENTS]
            called.append(Concat((ExactText(f'"{tool.name}"'), _BEFORE_ARGUMENTS, arguments)))
        call = Concat((_BEFORE_NAME, Choice(tuple(called)), _CALL_END))
        more = Repeat(Concat((Maybe(_BETWEEN), call)), 0)
        return Concat((call, more)) if parallel else call

    def call_marker(self) -> str:
        return TAG

    def _text(self) -> Node:
        """Content that the reader does not take for a call."""
        marks = self.marks()
        stops = plain_text.stops(marks)
        tags = plain_text.pieces(marks, stops)
        begun = Regex(rf"\{{{plain_text.after_blanks(stops, Keys().quoted())}?")
        return plain_text.text((begun, *tags, plain_text.words(stops, "{")), tags)


class Llama3Json(DeclaredFormat):
    name = "llama3_json"
    vllm_parsers = EngineParsers("llama3_json")
    sglang_parsers = EngineParsers("llama3")
    reasoning: ReasoningBlock = "none"
    controls = (TAG,)
    end_of_turn = TURN_ENDS
    other_ends = (END_OF_TEXT,)
    calls = JsonCalls("{calls}", '{"name": "{name}", "parameters": {arguments}}', between="; ", after_content=TAG)
    other_calls = (
        JsonCalls("{calls}", '{"name": "{name}", "arguments": {arguments}}', between=", ", after_content=TAG),
        JsonCalls(TAG + "{calls}", '{"type": "function", "name": "{name}", "parameters": {arguments}}', between="; "),
    )
    script = LlamaReader
    _answers = LlamaAnswers
