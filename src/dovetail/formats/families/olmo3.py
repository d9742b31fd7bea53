"""OLMo 3's calls: `olmo3`. They are `pythonic`'s, each on a line of its own in place of a list, with JSON's words.

    <function_calls>get_weather(city="Paris", now=true)
    get_time()</function_calls>

Sources: the chat template of OLMo 3.1, and vLLM's parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.python_values import JSON_WORDS
from dovetail.formats.families.pythonic import THINK, THINK_END, Pythonic, PythonicAnswers, PythonicReader
from dovetail.grammar import Concat, Maybe, Node, Regex, Repeat
from dovetail.reading import Script
from dovetail.reading.python_literals import SPACE

CALLS, CALLS_END, TURN_END = "<function_calls>", "</function_calls>", "<|im_end|>"
#: A name up to its bracket, and what may become that.
_NAME = re.compile(r"([^\W\d][\w.-]{0,127})[ \t]{0,16}\(")
_MAY_BE_NAME = re.compile(r"(?:[^\W\d][\w.-]{0,127})?[ \t]{0,16}")


class Olmo3Reader(PythonicReader):
    controls = (CALLS, CALLS_END, THINK, THINK_END, TURN_END)
    begin_of_text = ("<|im_start|>",)
    ends = (CALLS_END, TURN_END)
    around_calls = (CALLS, CALLS_END)
    tag = ""
    openers: tuple[str, ...] = (CALLS,)
    json_words = True

    def _section(self, opener: str) -> Script[None]:
        yield from super()._section(opener)
        if self._marked:
            self._defect("missing_section_end")

    def _call_alone(self) -> Script[bool]:
        """Read the calls of a section; False if none comes."""
        before = self._index
        while (match := (yield from self._look(_NAME, _MAY_BE_NAME))) is not None:
            self._at = match.end()
            yield from self._call(self._open_call(match[1]))
            yield from self._skip(SPACE)
            if (yield from self._next_is(",", ";")) is not None:
                self._defect("stray_separator")
                yield from self._skip(SPACE)
        return self._index > before


class Olmo3Answers(PythonicAnswers):
    syntax = JSON_WORDS

    def closer(self) -> Node:
        return self.mark(CALLS_END)

    def listed(self, call: Node, parallel: bool) -> Node:
        if not parallel:
            return call
        # White space may come before the model decides whether another call does.
        return Concat((call, Repeat(Concat((Regex("\n"), call)), 0), Maybe(Regex(r"[ \t\r\n]{1,16}"))))


class Olmo3(Pythonic):
    name = "olmo3"
    vllm_parsers = EngineParsers("olmo3", "olmo3")
    reasoning: ReasoningBlock = "none"
    end_of_turn = (TURN_END,)
    reader_type = Olmo3Reader
    always_marked = True
    _answers = Olmo3Answers

    def listed(self, calls: Sequence[str]) -> str:
        return "\n".join(calls)

    def value(self, value: str, is_string: bool) -> str:
        return json.dumps(value, ensure_ascii=False) if is_string else value
