"""Step 3.5's calls: `step3p5`. They are Qwen3-Coder's, with nothing between them, in a model that reasons.

Source: StepFun's chat template of Step 3.5 Flash.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.formats.base import EngineParsers
from dovetail.formats.declared.declared import DeclaredFormat
from dovetail.formats.families.qwen3_coder import Qwen3Coder


class Step3p5(DeclaredFormat):
    name = "step3p5"
    vllm_parsers = EngineParsers("step3p5", "step3p5")
    sglang_parsers = EngineParsers("step3p5", "step3p5")
    controls = Qwen3Coder.controls
    end_of_turn = Qwen3Coder.end_of_turn
    reasoning_block = "<think>\n{reasoning}\n</think>\n"
    newlines_in_prompt = True
    calls = replace(Qwen3Coder.calls, between="", after_content="")
