"""Gemma's calls: `gemma4`, and `functiongemma` with other markers. Each is an object with bare keys.

    <|tool_call>call:search{limit:3,query:<|"|>words<|"|>}<tool_call|>

The model writes a turn's reasoning, content and calls, and its tools' results follow within the turn. Keys are sorted,
whatever their case. Sources: Google's chat template and documentation of Gemma 4; the same of FunctionGemma, in vLLM.
"""

from __future__ import annotations

from typing import Any

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declarations import sorted_deeply
from dovetail.formats.declared.bare_keys import BareKeyCalls
from dovetail.formats.declared.declared import DeclaredFormat


def _sorted(schema: Any) -> Any:
    return sorted_deeply(schema, str.lower)


class Gemma4(DeclaredFormat):
    name = "gemma4"
    vllm_parsers = sglang_parsers = EngineParsers("gemma4", "gemma4")
    reasoning: ReasoningBlock = "written"
    controls = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')
    end_of_turn = ("<turn|>", "<|tool_response>")
    end_after_calls = "<|tool_response>"
    reasoning_block = "<|channel>thought\n{reasoning}\n<channel|>"
    calls = BareKeyCalls("<|tool_call>{call}<tool_call|>", call="call:{name}{arguments}", string='<|"|>{text}<|"|>')
    shown_order = staticmethod(_sorted)


class FunctionGemma(DeclaredFormat):
    name = "functiongemma"
    vllm_parsers = EngineParsers("functiongemma")
    reasoning: ReasoningBlock = "none"
    controls = ("<start_function_call>", "<end_function_call>", "<escape>")
    end_of_turn = ("<end_of_turn>", "<start_function_response>")
    end_after_calls = "<start_function_response>"
    calls = BareKeyCalls(
        section="<start_function_call>{call}<end_function_call>",
        call="call:{name}{arguments}",
        string="<escape>{text}<escape>",
    )
    shown_order = staticmethod(_sorted)
