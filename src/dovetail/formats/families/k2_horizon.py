"""K2-Horizon's calls: `k2_horizon` (LLM360), keys and values in tags, all calls in one section.

    <ifm|tool_calls>
    <ifm|tool_call>search
    <ifm|arg_key>query</ifm|arg_key>
    <ifm|arg_value>words</ifm|arg_value>
    </ifm|tool_call>
    </ifm|tool_calls>

This is the template's default, `tool_call_format=xml`. Sources: the parsers of vLLM and SGLang, and a renderer in C
that is compared with the chat template byte for byte.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls


class K2Horizon(DeclaredFormat):
    name = "k2_horizon"
    vllm_parsers = EngineParsers("k2_horizon", "k2_horizon")
    sglang_parsers = EngineParsers("k2_horizon", "k2_horizon")
    controls = (
        *(
            "<ifm|think>",
            "</ifm|think>",
            "<ifm|tool_calls>",
            "</ifm|tool_calls>",
            "<ifm|tool_call>",
            "</ifm|tool_call>",
        ),
        *("<ifm|arg_key>", "</ifm|arg_key>", "<ifm|arg_value>", "</ifm|arg_value>"),
    )
    end_of_turn = ("<|ifm|im_end|>",)
    reasoning_block = "<ifm|think>\n{reasoning}</ifm|think>"
    newlines_in_prompt = True
    calls = TagCalls(
        section="<ifm|tool_calls>\n{calls}</ifm|tool_calls>",
        call="<ifm|tool_call>{name}\n{parameters}</ifm|tool_call>\n",
        parameter="<ifm|arg_key>{key}</ifm|arg_key>\n<ifm|arg_value>{value}</ifm|arg_value>\n",
    )
