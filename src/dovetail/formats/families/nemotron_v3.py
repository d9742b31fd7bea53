"""Nemotron 3's calls: `nemotron_v3`. They are Qwen3-Coder's, with a newline after each, in a model that reasons.

Source: NVIDIA's chat template of Nemotron 3 Nano.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.formats.base import EngineParsers
from dovetail.formats.declared.declared import DeclaredFormat
from dovetail.formats.families.qwen3_coder import Qwen3Coder


class NemotronV3(DeclaredFormat):
    name = "nemotron_v3"
    vllm_parsers = EngineParsers("qwen3_coder", "nemotron_v3")
    sglang_parsers = EngineParsers("qwen3_coder", "nemotron_3")
    controls = Qwen3Coder.controls
    end_of_turn = Qwen3Coder.end_of_turn
    reasoning_block = "<think>\n{reasoning}\n</think>\n"
    newlines_in_prompt = True
    calls = replace(Qwen3Coder.calls, section="<tool_call>\n{call}</tool_call>\n", between="", after_content="\n")
