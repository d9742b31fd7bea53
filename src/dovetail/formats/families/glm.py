"""GLM's calls: `glm45` (4.5, 4.6) and `glm47`. A parameter's type comes from its tool's schema.

    <tool_call>search
    <arg_key>query</arg_key>
    <arg_value>words</arg_value>
    </tool_call>

All tags are control tokens. GLM-4.7 writes no newlines between them. Source: Zhipu's chat templates.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls

USER, OBSERVATION, END_OF_TEXT = "<|user|>", "<|observation|>", "<|endoftext|>"


class Glm45(DeclaredFormat):
    name = "glm45"
    vllm_parsers = EngineParsers("glm45", "glm45")
    sglang_parsers = EngineParsers("glm45", "glm45")
    reasoning: ReasoningBlock = "written"
    controls = (
        *("<think>", "</think>", "<tool_call>", "</tool_call>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    )
    begin_of_text = ("[gMASK]", "<sop>")
    end_of_turn = (USER, OBSERVATION, END_OF_TEXT)
    end_after_calls = OBSERVATION
    reasoning_block = "\n<think>{reasoning}</think>"
    answer = "\n{content}"
    calls = TagCalls(
        section="\n<tool_call>{call}</tool_call>",
        call="{name}\n{parameters}",
        parameter="<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    )


class Glm47(Glm45):
    name = "glm47"
    vllm_parsers = EngineParsers("glm47", "glm47")
    sglang_parsers = EngineParsers("glm47", "glm45")
    reasoning: ReasoningBlock = "opened"
    reasoning_block = "<think>{reasoning}</think>"
    answer = "{content}"
    calls = TagCalls(
        section="<tool_call>{call}</tool_call>",
        call="{name}{parameters}",
        parameter="<arg_key>{key}</arg_key><arg_value>{value}</arg_value>",
    )
