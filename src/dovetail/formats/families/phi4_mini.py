"""Microsoft's calls: `phi4_mini` (Phi-4-mini), a list after the word `functools`.

The list may stand between `<|tool_call|>` and `<|/tool_call|>`, and vLLM's chat template shows a history's calls with
nothing around them: both are read as well. Source: that template, vLLM's tests, and Ollama's template.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.bare_calls import BareAnswers
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls
from dovetail.reading.bare_calls import BareCallReader


class Phi4MiniAnswers(BareAnswers):
    bare = False


class Phi4Mini(DeclaredFormat):
    name = "phi4_mini"
    vllm_parsers = EngineParsers("phi4_mini_json")
    reasoning: ReasoningBlock = "none"
    controls = ("<|tool_call|>", "<|/tool_call|>")
    end_of_turn = ("<|end|>",)
    other_ends = ("<|endoftext|>",)
    calls = JsonCalls("functools[{calls}]", between=", ")
    other_calls = (JsonCalls("<|tool_call|>[{calls}]<|/tool_call|>", between=", "),)
    script = BareCallReader
    _answers = Phi4MiniAnswers
