"""MiniMax-M3's calls: `minimax_m3`. Each tag has a control token in front of it, and objects and arrays are tags, too.

Source: MiniMax's chat template. (It leaves null out. We write the word `null`, as in other formats with tags.)
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat
from dovetail.formats.declared.nested_tags import NestedTagCalls


class MiniMaxM3(DeclaredFormat):
    name = "minimax_m3"
    sglang_parsers = EngineParsers("minimax-m3", "minimax-m3")
    reasoning: ReasoningBlock = "written"
    controls = ("<mm:think>", "</mm:think>", "]<]minimax[>[")
    end_of_turn = ("[e~[",)
    reasoning_block = "<mm:think>{reasoning}</mm:think>"
    lone_think_end = True
    calls = NestedTagCalls(
        section="]<]minimax[>[<tool_call>\n{calls}]<]minimax[>[</tool_call>",
        call=']<]minimax[>[<invoke name="{name}">{parameters}]<]minimax[>[</invoke>\n',
        mark="]<]minimax[>[",
        older=(
            '<minimax:tool_call><invoke name="{name}"><parameter name="{key}">{value}</parameter></invoke>'
            "</minimax:tool_call>"
        ),
    )
