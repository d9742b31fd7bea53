"""Seed-OSS's calls: `seed_oss`. They are Qwen3-Coder's with other markers, and without newlines around values.

Source: ByteDance's chat template. Its `<seed:…>` markers are control tokens.
"""

from __future__ import annotations

from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls
from dovetail.reading.tags import other_sections
from dovetail.reading.two_languages import TagOrJsonReader


class SeedOssReader(TagOrJsonReader):
    other_marks, _sections = other_sections("seed:tool_call", "tool_call", "tool_calls", "seed:tool_calls")
    other_openers = (*TagOrJsonReader.other_openers, *_sections)


class SeedOss(DeclaredFormat):
    name = "seed_oss"
    vllm_parsers = EngineParsers("seed_oss", "seed_oss")
    reasoning: ReasoningBlock = "written"
    controls = ("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>")
    end_of_turn = ("<seed:eos>",)
    reasoning_block = "<seed:think>{reasoning}</seed:think>\n"
    calls = TagCalls(
        section="<seed:tool_call>\n{call}</seed:tool_call>",
        call="<function={name}>\n{parameters}</function>\n",
        parameter="<parameter={key}>{value}</parameter>\n",
        between="\n",
        after_content="\n\n",
    )
    script = SeedOssReader
