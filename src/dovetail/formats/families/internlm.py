"""InternLM's calls: `internlm` (InternLM2 and 2.5), an object between control tokens.

Shanghai AI Laboratory's page on the chat format has the key `parameters`; the only published template that shows calls,
vLLM's, has `arguments`. Source: these two.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls

OPENER = "<|action_start|><|plugin|>\n"


class InternLM(DeclaredFormat):
    name = "internlm"
    vllm_parsers = EngineParsers("internlm")
    reasoning: ReasoningBlock = "none"
    controls = ("<|action_start|>", "<|plugin|>", "<|interpreter|>", "<|action_end|>")
    end_of_turn = ("<|im_end|>",)
    calls = JsonCalls(OPENER + "{call}<|action_end|>")
    other_calls = (JsonCalls(OPENER + "{call}<|action_end|>", '{"name": "{name}", "parameters": {arguments}}'),)
