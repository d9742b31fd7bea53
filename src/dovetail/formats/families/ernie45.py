"""Baidu ERNIE's calls: `ernie45` (ERNIE-4.5-21B-A3B-Thinking), an object in tags.

All tags are control tokens. Content stands in `<response>`. Source: Baidu's FastDeploy and vLLM, whose tests use the
model's own tokenizer.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls
from dovetail.reading.two_languages import JsonOrTagReader


class Ernie45(DeclaredFormat):
    name = "ernie45"
    vllm_parsers = EngineParsers("ernie45", "ernie45")
    controls = ("<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>")
    end_of_turn = ("<|im_end|>", "</s>")
    reasoning_block = "<think>\n{reasoning}\n</think>\n\n"
    newlines_in_prompt = True
    answer = "<response>\n{content}\n</response>\n"
    calls = JsonCalls("<tool_call>\n{call}\n</tool_call>\n")
    script = JsonOrTagReader
