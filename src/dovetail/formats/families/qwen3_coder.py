"""Qwen3-Coder's calls: `qwen3_coder`. A parameter's type comes from its tool's schema.

    <tool_call>
    <function=search>
    <parameter=query>
    words
    </parameter>
    </function>
    </tool_call>

Only `<tool_call>` and `</tool_call>` are control tokens. Source: Qwen's chat template. (It prints a true boolean as
`True`. We write JSON, and read both.)
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls


class Qwen3Coder(DeclaredFormat):
    name = "qwen3_coder"
    vllm_parsers = EngineParsers("qwen3_coder")
    sglang_parsers = EngineParsers("qwen3_coder")
    trtllm_parsers = EngineParsers("qwen3_coder")
    reasoning: ReasoningBlock = "none"
    controls = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    begin_of_text = ("<|im_start|>",)
    end_of_turn = ("<|im_end|>",)
    reasoning_block = "<think>\n{reasoning}\n</think>\n\n"
    calls = TagCalls(
        section="<tool_call>\n{call}</tool_call>",
        call="<function={name}>\n{parameters}</function>\n",
        parameter="<parameter={key}>\n{value}\n</parameter>\n",
        between="\n",
        after_content="\n\n",
    )
