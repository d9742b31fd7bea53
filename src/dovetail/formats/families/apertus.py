"""Apertus's calls: `apertus` (Apertus 8B and 70B, 2509), a list in which a call's name is its key.

    <|tools_prefix|>[{"search": {"query": "words"}}, {"ping": {}}]<|tools_suffix|>

The template keeps reasoning between two tokens, which it writes in a history only. Source: Swiss AI's chat template.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat
from dovetail.formats.declared.named_calls import KeyedCalls


class Apertus(DeclaredFormat):
    name = "apertus"
    vllm_parsers = EngineParsers("apertus")
    sglang_parsers = EngineParsers("apertus2509")
    reasoning: ReasoningBlock = "written"
    controls = ("<|inner_prefix|>", "<|inner_suffix|>", "<|tools_prefix|>", "<|tools_suffix|>")
    end_of_turn = ("<|assistant_end|>",)
    reasoning_block = "<|inner_prefix|>{reasoning}<|inner_suffix|>"
    calls = KeyedCalls("<|tools_prefix|>[{calls}]<|tools_suffix|>", between=", ")
