"""Llama 3 and 4 with JSON calls: `llama3_json`.

The whole output is `{"name": …, "parameters": {…}}`, or several of these separated by "; ". `<|python_tag|>` may come
before them, and has to after text. Source: Meta's chat templates and prompt formats.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.bare_calls import BareAnswers
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls
from dovetail.reading import Script
from dovetail.reading.bare_calls import BareCallReader

TAG = "<|python_tag|>"
END, END_OF_MESSAGE, END_OF_TEXT = "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"
TURN_ENDS = (END, END_OF_MESSAGE, "<|eot|>", "<|eom|>")  # the last two are Llama 4's


class LlamaReader(BareCallReader):
    def _section(self, opener: str) -> Script[None]:
        before = self._index
        marker = yield from self._calls(*self.controls)
        if marker:
            self._unread()
        elif marker == "" and self._index == before:
            self._defect("unreadable_call")


class Llama3Json(DeclaredFormat):
    name = "llama3_json"
    vllm_parsers = EngineParsers("llama3_json")
    sglang_parsers = EngineParsers("llama3")
    reasoning: ReasoningBlock = "none"
    controls = (TAG,)
    begin_of_text = ("<|begin_of_text|>",)
    end_of_turn = TURN_ENDS
    other_ends = (END_OF_TEXT,)
    calls = JsonCalls("{calls}", '{"name": "{name}", "parameters": {arguments}}', between="; ", after_content=TAG)
    other_calls = (
        JsonCalls("{calls}", '{"name": "{name}", "arguments": {arguments}}', between=", ", after_content=TAG),
        JsonCalls(TAG + "{calls}", '{"type": "function", "name": "{name}", "parameters": {arguments}}', between="; "),
    )
    script = LlamaReader
    _answers = BareAnswers
