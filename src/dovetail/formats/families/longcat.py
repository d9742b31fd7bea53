"""Meituan's calls: `longcat` (LongCat-2.0, LongCat-Flash-Thinking-2601) and `longcat_flash` (LongCat-Flash-Chat).

    <longcat_tool_call>search
    <longcat_arg_key>query</longcat_arg_key>
    <longcat_arg_value>words</longcat_arg_value>
    </longcat_tool_call>

These are GLM-4.5's calls by other names; earlier models write Hermes's JSON there. Sources: the cards of the models,
outputs of LongCat-2.0 as users recorded them, and vLLM's parser.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls, TagCalls

_CALL, _CALL_END = "<longcat_tool_call>", "</longcat_tool_call>"


class LongCatFlash(DeclaredFormat):
    name = "longcat_flash"
    vllm_parsers = EngineParsers("longcat")
    reasoning: ReasoningBlock = "none"
    controls = (_CALL, _CALL_END)
    end_of_turn = ("</longcat_s>",)
    calls = JsonCalls(f"{_CALL}\n{{call}}\n{_CALL_END}", between="\n", after_content="\n")


class LongCat(DeclaredFormat):
    name = "longcat"
    controls = (
        *("<longcat_think>", "</longcat_think>", _CALL, _CALL_END),
        *("<longcat_arg_key>", "</longcat_arg_key>", "<longcat_arg_value>", "</longcat_arg_value>"),
    )
    end_of_turn = LongCatFlash.end_of_turn
    reasoning_block = "<longcat_think>\n{reasoning}\n</longcat_think>\n"
    newlines_in_prompt = True
    calls = TagCalls(
        section=f"{_CALL}{{call}}{_CALL_END}\n",
        call="{name}\n{parameters}",
        parameter="<longcat_arg_key>{key}</longcat_arg_key>\n<longcat_arg_value>{value}</longcat_arg_value>\n",
    )
