"""IBM Granite's calls: `granite` (3.0 to 3.3), a list after `<|tool_call|>`.

Granite 4 writes Hermes' calls, which this family reads too. Granite 3.3 reasons in tags of ordinary text, if its prompt
asks for that. Source: IBM's and vLLM's chat templates.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls


class Granite(DeclaredFormat):
    name = "granite"
    vllm_parsers = EngineParsers("granite", "granite")
    reasoning: ReasoningBlock = "written"
    controls = ("<|tool_call|>", "<tool_call>", "</tool_call>")
    end_of_turn = ("<|end_of_text|>",)
    wrapped_answer = "<response>{answer}</response>"
    calls = JsonCalls("<|tool_call|>[{calls}]", between=", ")
    other_calls = (JsonCalls("<tool_call>\n{call}\n</tool_call>", between="\n", after_content="\n"),)
