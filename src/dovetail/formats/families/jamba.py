"""AI21 Jamba's calls: `jamba` (Jamba 1.5 and later), a list between control tokens.

The models write a space before an answer. Source: vLLM's tests, which use the model's own tokenizer.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls


class Jamba(DeclaredFormat):
    name = "jamba"
    vllm_parsers = EngineParsers("jamba")
    reasoning: ReasoningBlock = "none"
    controls = ("<tool_calls>", "</tool_calls>")
    end_of_turn = ("<|eom|>",)
    other_ends = ("<|endoftext|>",)
    calls = JsonCalls("<tool_calls>[\n    {calls}\n]</tool_calls>", between=",\n    ")
