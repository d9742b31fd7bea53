"""Salesforce xLAM's calls: `xlam` (xLAM-2), a list that is the whole answer.

vLLM also reads the list in `<tool_call>`, which has to begin calls after text here. Source: vLLM's chat templates for
the models, and its tests.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.bare_calls import BareAnswers
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls
from dovetail.reading.bare_calls import BareCallReader

END = "</tool_call>"


class XlamReader(BareCallReader):
    unmarked = r"[\[{]"
    text_end = END


class XlamAnswers(BareAnswers):
    end = END


class Xlam(DeclaredFormat):
    name = "xlam"
    vllm_parsers = EngineParsers("xlam")
    reasoning: ReasoningBlock = "none"
    controls = ()
    end_of_turn = ("<|eot_id|>", "<|im_end|>")
    calls = JsonCalls("[{calls}]", between=", ", after_content="<tool_call>")
    script = XlamReader
    _answers = XlamAnswers
