"""LFM2's calls: `lfm2`. They are `pythonic`'s, always between markers.

    <|tool_call_start|>[get_weather(city='Paris')]<|tool_call_end|>

Sources: Liquid's documentation and the chat template of LFM2.5, which writes strings in single quotes, without escapes.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers
from dovetail.formats.families.pythonic import THINK, THINK_END, Pythonic, PythonicReader

CALLS, CALLS_END, TURN_END = "<|tool_call_start|>", "<|tool_call_end|>", "<|im_end|>"


class Lfm2Reader(PythonicReader):
    controls = (CALLS, CALLS_END, THINK, THINK_END, TURN_END)
    begin_of_text = ("<|startoftext|>", "<|im_start|>")
    ends = (CALLS_END, TURN_END)
    around_calls = (CALLS, CALLS_END)
    tag = ""
    openers: tuple[str, ...] = (CALLS,)


class Lfm2(Pythonic):
    name = "lfm2"
    vllm_parsers = EngineParsers("pythonic")
    sglang_parsers = EngineParsers("lfm2")
    end_of_turn = (TURN_END,)
    reader_type = Lfm2Reader
    always_marked = True
    quotes = "'"
