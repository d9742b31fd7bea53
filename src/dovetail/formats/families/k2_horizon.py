"""K2-Horizon's calls: `k2_horizon` (LLM360), keys and values in tags, all calls in one section.

    <ifm|tool_calls>
    <ifm|tool_call>search
    <ifm|arg_key>query</ifm|arg_key>
    <ifm|arg_value>words</ifm|arg_value>
    </ifm|tool_call>
    </ifm|tool_calls>

This is the template's default, `tool_call_format=xml`. The tags around reasoning depend on the effort. Sources: the
parsers of vLLM and SGLang, and a renderer in C that is compared with the chat template byte for byte.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls
from dovetail.formats.declared.declared_answers import DeclaredAnswers
from dovetail.grammar import Choice, Concat, FreeText, Node
from dovetail.reading.key_tags import SectionKeyTagReader
from dovetail.tokens import Prompt

#: What opens and what closes reasoning at high, medium and low effort.
THINK, *_LESS = "<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"
THINK_END, *_LESS_END = "</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"


class K2HorizonReader(SectionKeyTagReader):
    other_thoughts = dict.fromkeys(_LESS, THINK) | dict.fromkeys(_LESS_END, THINK_END)


class K2HorizonAnswers(DeclaredAnswers):
    def reasoning(self, thinking: bool) -> tuple[Node, ...]:
        closes = Choice(tuple(map(self.mark, (THINK_END, *_LESS_END))))
        return (Concat((FreeText(), closes)),) if thinking else ()


class K2Horizon(DeclaredFormat):
    name = "k2_horizon"
    vllm_parsers = EngineParsers("k2_horizon", "k2_horizon")
    sglang_parsers = EngineParsers("k2_horizon", "k2_horizon")
    controls = (
        *(THINK, THINK_END, *_LESS, *_LESS_END, "<ifm|tool_calls>", "</ifm|tool_calls>", "<ifm|tool_call>"),
        *("</ifm|tool_call>", "<ifm|arg_key>", "</ifm|arg_key>", "<ifm|arg_value>", "</ifm|arg_value>"),
    )
    end_of_turn = ("<|ifm|im_end|>",)
    reasoning_block = THINK + "\n{reasoning}" + THINK_END
    newlines_in_prompt = True
    calls = TagCalls(
        section="<ifm|tool_calls>\n{calls}</ifm|tool_calls>",
        call="<ifm|tool_call>{name}\n{parameters}</ifm|tool_call>\n",
        parameter="<ifm|arg_key>{key}</ifm|arg_key>\n<ifm|arg_value>{value}</ifm|arg_value>\n",
    )
    script = K2HorizonReader
    _answers = K2HorizonAnswers

    def left_open(self, prompt: Prompt) -> bool:
        opens, closes = (THINK, *_LESS), (THINK_END, *_LESS_END, *self.end_of_turn)
        return next((token for token in reversed(prompt.pieces[1::2]) if token in opens + closes), "") in opens
