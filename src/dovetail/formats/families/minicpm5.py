"""MiniCPM5's calls: `minicpm5`, one after another. A parameter's type comes from its tool's schema.

    <function name="search"><param name="query">words</param><param name="text"><![CDATA[a < b]]></param></function>

`<function`, `</function>`, `<param` and `</param>` are control tokens. A string with `<`, `&` or a newline stands in
CDATA, whose end is the `]]>` before `</param>`. Source: the model's chat template, vLLM #43175. (The template prints
values as Python does. We write JSON, and read both.)
"""

from __future__ import annotations

import functools
import re

from dovetail.formats.base import EngineParsers
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls
from dovetail.reading import Script
from dovetail.reading.alphabet import Literals
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.prose import MOST_SPACE
from dovetail.reading.tags import TagReader
from dovetail.reading.value_ends import OpenValue
from dovetail.reading.values import STRING

CDATA, CDATA_END = "<![CDATA[", "]]>"
_NEEDS_CDATA = re.compile(r"[<&\n]")


class MiniCPM5Reader(TagReader):
    quotes = (CDATA, CDATA_END)

    def _parameter_value(
        self, key: str, types: frozenset[str] | None = None, begun: str = "", *, lenient: bool = False
    ) -> Script[None]:
        if not begun:
            begun = yield from self._skip(WHITESPACE, MOST_SPACE)
            if (yield from self._next_is(CDATA)) is not None:
                yield from self._cdata(key)
                return
        yield from super()._parameter_value(key, types, begun, lenient=lenient)

    def _cdata(self, key: str) -> Script[None]:
        """Read a value in CDATA. Newlines around it mean nothing."""
        ends = tuple(CDATA_END + newline + self.parameter_end for newline in ("", "\n"))
        marker = yield from self._value(
            self._parameters.open(key, STRING), *ends, *self.value_stops, weigh=self._weigh_stop_in_cdata
        )
        if marker is None:
            return
        self._parameters.close()
        if marker not in ends:
            self._defect("missing_parameter_end", key)
            if marker != self.parameter_end:
                self._unread()

    def _weigh_stop_in_cdata(self, text: str, at: int) -> int | None:
        """Whether CDATA goes on at a stop, because its end comes before any other text that ends it."""
        if text[self._at] == CDATA_END[0]:
            return -1
        outside = self._ends
        end = _ends_in_cdata(type(self))
        ends = outside._replace(end=CDATA_END + outside.end, other=end, walk=end)
        return OpenValue(ends, (), self._is_foreign, self._opens_next).goes_on(text, at, self._over)


@functools.cache
def _ends_in_cdata(kind: type[MiniCPM5Reader]) -> re.Pattern[str]:
    return Literals((CDATA_END + kind.in_alphabet(kind.parameter_end),), controls=False).pattern


class MiniCPM5Calls(TagCalls):
    def _value(self, value: str, is_string: bool) -> str:
        return f"{CDATA}{value}{CDATA_END}" if is_string and _NEEDS_CDATA.search(value) else value


class MiniCPM5(DeclaredFormat):
    name = "minicpm5"
    vllm_parsers = EngineParsers("minicpm5", "qwen3")
    sglang_parsers = EngineParsers("minicpm5", "qwen3")
    controls = ("<think>", "</think>", "<function", "</function>", "<param", "</param>")
    begin_of_text = ("<|im_start|>",)
    end_of_turn = ("<|im_end|>",)
    reasoning_block = "<think>\n{reasoning}\n</think>\n\n"
    newlines_in_prompt = True
    calls = MiniCPM5Calls(
        section="{call}",
        call='<function name="{name}">{parameters}</function>',
        parameter='<param name="{key}">{value}</param>',
        between="\n",
        after_content="\n",
    )
    script = MiniCPM5Reader
