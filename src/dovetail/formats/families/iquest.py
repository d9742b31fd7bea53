"""IQuest-Q1's calls: `iquest_q1`. They are GLM-4.7's between tokens of its own.

Source: IQuest's chat template.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.formats.base import EngineParsers
from dovetail.formats.declared.declared import DeclaredFormat
from dovetail.formats.families.glm import Glm47


class IQuestQ1(DeclaredFormat):
    name = "iquest_q1"
    sglang_parsers = EngineParsers("iquest_q1", "iquest_q1")
    controls = (
        *("<think>", "</think>", "<iquest_tool_call>", "</iquest_tool_call>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    )
    end_of_turn = ("<|iquest_end|>",)
    calls = replace(Glm47.calls, section="<iquest_tool_call>{call}</iquest_tool_call>")
