"""Cohere's calls: `command_a` (Command R7B, Command A) and `command_4` (newer), a list between control tokens.

A call has a number, which is its id. The two have other tokens around content. Source: Cohere's chat templates.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls


class CommandA(DeclaredFormat):
    name = "command_a"
    vllm_parsers = EngineParsers("cohere_command3", "cohere_command3")
    reasoning: ReasoningBlock = "written"
    controls: ClassVar[tuple[str, ...]] = (
        *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        *("<|START_ACTION|>", "<|END_ACTION|>"),
    )
    end_of_turn = ("<|END_OF_TURN_TOKEN|>",)
    reasoning_block = "<|START_THINKING|>{reasoning}<|END_THINKING|>"
    answer = "<|START_RESPONSE|>{content}<|END_RESPONSE|>"
    calls = JsonCalls(
        section="<|START_ACTION|>[\n    {calls}\n]<|END_ACTION|>",
        call='{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": {arguments}}',
        between=",\n    ",
    )


class Command4(CommandA):
    name = "command_4"
    vllm_parsers = EngineParsers("cohere_command4", "cohere_command4")
    controls = (*CommandA.controls, "<|START_TEXT|>", "<|END_TEXT|>")
    answer = "<|START_TEXT|>{content}<|END_TEXT|>"
