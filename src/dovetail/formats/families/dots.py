"""Rednote's calls: `dots` (dots 3). They are MiniMax-M2's by another name, with newlines around values.

    <dots_function_call>
    <invoke name="search">
    <parameter name="query">
    words
    </parameter>
    </invoke>
    </dots_function_call>

Each call has a section of its own; several in one are read as well. Sources: the parsers of vLLM and SGLang with their
tests, and a renderer in C of the model's chat template.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls


class Dots(DeclaredFormat):
    name = "dots"
    vllm_parsers = EngineParsers("dots")
    sglang_parsers = EngineParsers("dots")
    reasoning: ReasoningBlock = "written"
    controls = ("<think>", "</think>", "<dots_function_call>", "</dots_function_call>")
    end_of_turn = ("<|endofassistant|>",)
    reasoning_block = "<think>\n{reasoning}\n</think>\n\n"
    calls = TagCalls(
        section="\n<dots_function_call>\n{call}</dots_function_call>",
        call='<invoke name="{name}">\n{parameters}</invoke>\n',
        parameter='<parameter name="{key}">\n{value}\n</parameter>\n',
    )
