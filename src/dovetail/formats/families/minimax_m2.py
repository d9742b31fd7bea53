"""MiniMax-M2's calls: `minimax_m2`. A parameter's type comes from its tool's schema.

    <minimax:tool_call>
    <invoke name="search">
    <parameter name="query">words</parameter>
    </invoke>
    </minimax:tool_call>

Only the outer tags are control tokens. Source: MiniMax's chat template.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls
from dovetail.reading.tags import TagReader, other_sections
from dovetail.reading.two_languages import JsonInTags


class MiniMaxM2Reader(TagReader, JsonInTags):
    _other_language = JsonInTags._json_section
    other_marks, other_openers = other_sections(
        "minimax:tool_call", "tool_call", "tool_calls", "function_calls", "minimax:tool_calls"
    )


class MiniMaxM2(DeclaredFormat):
    name = "minimax_m2"
    vllm_parsers = EngineParsers("minimax_m2", "minimax_m2")
    sglang_parsers = EngineParsers("minimax-m2", "minimax")
    controls = ("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>")
    begin_of_text = ("]~!b[", "]~b]")
    end_of_turn = ("[e~[",)
    reasoning_block = "<think>\n{reasoning}\n</think>\n\n"
    newlines_in_prompt = True
    calls = TagCalls(
        section="\n<minimax:tool_call>\n{calls}</minimax:tool_call>",
        call='<invoke name="{name}">\n{parameters}</invoke>\n',
        parameter='<parameter name="{key}">{value}</parameter>\n',
    )
    script = MiniMaxM2Reader
