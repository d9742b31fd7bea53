"""MiMo-V2's calls: `mimo` (V2, V2.5, V2.6). They are Qwen3-Coder's, without newlines around values and between calls.

A value's own newlines and spaces count. Source: Xiaomi's chat template. MiMo-VL and MiMo-7B write Hermes's JSON.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls


class MiMo(DeclaredFormat):
    name = "mimo"
    vllm_parsers = EngineParsers("mimo", "mimo")
    sglang_parsers = EngineParsers("mimo", "mimo")
    reasoning: ReasoningBlock = "written"
    controls = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    end_of_turn = ("<|im_end|>",)
    calls = TagCalls(
        section="<tool_call>\n{call}</tool_call>",
        call="<function={name}>\n{parameters}</function>\n",
        parameter="<parameter={key}>{value}</parameter>\n",
    )
