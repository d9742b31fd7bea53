"""Tencent Hunyuan's calls: `hunyuan` (A13B), a list in tags of ordinary text.

All of its markup is ordinary text, and what follows the reasoning stands in `<answer>`. A prompt with tools asks for
"assistant:" in front of content. Source: Tencent's page on its model's calls, and vLLM's chat template.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls
from dovetail.reading import Script
from dovetail.reading.json_calls import JsonCallReader

ASSISTANT = "助手："


class HunyuanReader(JsonCallReader):
    def _content_begins(self) -> Script[None]:
        yield from super()._content_begins()
        if self._options.tools:
            yield from self._next_is(ASSISTANT)


class Hunyuan(DeclaredFormat):
    name = "hunyuan"
    vllm_parsers = EngineParsers("hunyuan_a13b", "hunyuan_a13b")
    reasoning: ReasoningBlock = "written"
    controls = ()
    end_of_turn = ("<|eos|>",)
    reasoning_block = "<think>\n{reasoning}\n</think>\n"
    wrapped_answer = "<answer>\n{answer}\n</answer>"
    calls = JsonCalls("<tool_calls>[{calls}]</tool_calls>", between=", ")
    script = HunyuanReader
