"""Calls as JSON in tags: `hermes` (Nous Hermes, Qwen2.5) and `qwen3`, which reasons.

A call is `{"name": …, "arguments": {…}}`, on a line of its own between `<tool_call>` and `</tool_call>`; the calls
come after the text. Source: the models' chat templates.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls
from dovetail.reading.two_languages import JsonOrTagReader


class Hermes(DeclaredFormat):
    name = "hermes"
    vllm_parsers = EngineParsers("hermes")
    sglang_parsers = EngineParsers("hermes")
    reasoning: ReasoningBlock = "none"
    controls = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    begin_of_text = ("<|im_start|>",)
    end_of_turn = ("<|im_end|>",)
    other_ends = ("<|endoftext|>",)
    calls = JsonCalls("<tool_call>\n{call}\n</tool_call>", between="\n", after_content="\n")
    script = JsonOrTagReader


class Qwen3(Hermes):
    """The model writes `<think>` itself. Where thinking is off, the prompt holds an empty block."""

    name = "qwen3"
    vllm_parsers = EngineParsers("hermes", "qwen3")
    sglang_parsers = EngineParsers("qwen", "qwen3")
    trtllm_parsers = EngineParsers("qwen3", "qwen3")
    reasoning: ReasoningBlock = "written"
    reasoning_block = "<think>\n{reasoning}\n</think>\n\n"
