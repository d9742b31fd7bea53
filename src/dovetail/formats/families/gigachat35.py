"""GigaChat 3.5's calls: `gigachat35`. They are DeepSeek's DSML by another name.

    <｜GCML｜tool_calls>
    <｜GCML｜invoke name="search">
    <｜GCML｜parameter name="query" string="true">words</｜GCML｜parameter>
    <｜GCML｜parameter name="topn" string="false">10</｜GCML｜parameter>
    </｜GCML｜invoke>
    </｜GCML｜tool_calls>

Reasoning, content and calls are one message, with an empty line between them. Source: the model's chat template.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers
from dovetail.formats.declared.declared import DeclaredFormat
from dovetail.formats.families.deepseek_dsml import DsmlCalls
from dovetail.formats.families.gigachat3 import END


class GigaChat35(DeclaredFormat):
    name = "gigachat35"
    sglang_parsers = EngineParsers("gigachat35", "gigachat35")
    controls = ("<think>", "</think>", "｜GCML｜")
    begin_of_text = ("<s>",)
    end_of_turn = (END,)
    reasoning_block = "<think>{reasoning}</think>\n\n"
    calls = DsmlCalls(
        section="<｜GCML｜tool_calls>\n{calls}</｜GCML｜tool_calls>",
        call='<｜GCML｜invoke name="{name}">\n{parameters}</｜GCML｜invoke>\n',
        parameter='<｜GCML｜parameter name="{key}" string="{is_string}">{value}</｜GCML｜parameter>\n',
        after_content="\n\n",
    )
