"""DeepSeek's calls in DSML: `deepseek_v32`, `deepseek_v4` and `deepseek_v41`.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="search">
    <｜DSML｜parameter name="query" string="true">words</｜DSML｜parameter>
    <｜DSML｜parameter name="topn" string="false">10</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

Only `｜DSML｜` is a control token; the text around it is ordinary. The section is called `tool_calls` in V4. In V4.1 it
is called `calls`, and every tag's name has a space before it. Source: DeepSeek's encoders and their fixtures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.errors import InvalidRequest
from dovetail.formats.base import EngineParsers, Messages
from dovetail.formats.declared.declared import DeclaredFormat, TagCalls
from dovetail.formats.families.deepseek_dsml_prompt import DSML, V32_TAGS, Tags, v32, with_request
from dovetail.formats.families.deepseek_v3_prompt import BEGIN, END, THINK, THINK_END
from dovetail.formats.families.deepseek_v4_prompt import V4, V4_TAGS, V41, V41_TAGS
from dovetail.formats.prompts.history import HistoryRules
from dovetail.reading import CallReader
from dovetail.reading.tags import TagReader
from dovetail.reading.two_languages import JsonInTags
from dovetail.tokens import Prompt


class DsmlReader(TagReader, JsonInTags):
    """Reads the tags of every version, and with the spellings of the token that models write when they miss it."""

    _other_language = JsonInTags._json_section


class DsmlCalls(TagCalls):
    """Calls in DSML, or in the same tags with another word between the bars of the token."""

    def reader(self, controls: tuple[str, ...]) -> tuple[type[CallReader], dict[str, Any]]:
        _, own = super().reader(controls)
        sections, calls, parameters = own["section"], own["call"], own["parameter"]
        word = self.call.split("｜")[1]
        own_token = f"｜{word}｜"
        opening: dict[str, str] = {"<function>": calls}
        closing: dict[str, str] = {}
        for token in (spelling.replace("DSML", word) for spelling in _TOKENS):
            for section in (*_SECTIONS, *(_MISSPELLED_SECTIONS if own_token in token else ())):
                opening[f"<{token}{section}>"] = sections
                closing[f"</{token}{section}>"] = own["section_end"]
            for tag, opener, end in (("invoke", calls, "call_end"), ("parameter", parameters, "parameter_end")):
                opening[f"<{token}{tag}{'' if token else ' name='}"] = opener
                closing[f"</{token}{tag}>"] = own[end]
        others = {tag: mark for tag, mark in (opening | closing).items() if tag != mark}
        openers = [tag for tag, mark in others.items() if tag in opening and mark in (sections, calls)]
        own["openers"] += tuple(tag for tag in openers if own_token in tag)
        own["other_openers"] = tuple(tag for tag in openers if own_token not in tag)
        own["inner"] += tuple(tag for tag in closing if own_token in tag and tag in others)
        return DsmlReader, own | {"other_marks": others}


#: The token, other spellings of it, and nothing in its place; and the names of sections.
_SPELLINGS = (DSML, "｜｜DSML｜｜", "|DSML|", "||DSML||", "｜DSML|", "|DSML｜", "DSML｜", "DSML|")
_TOKENS = (*(spelling + space for spelling in _SPELLINGS for space in ("", " ")), "")
_SECTIONS = ("function_calls", "tool_calls", "calls", "toolcalls", "functioncalls")
_MISSPELLED_SECTIONS = ("toolcall", "tool_call", "function_call", "_tool_calls", "_function_calls")


def dsml_calls(tags: Tags) -> TagCalls:
    """How the calls of one version are written."""
    opens, ends = f"<{DSML}", f"</{DSML}"
    return DsmlCalls(
        section=f"\n\n{opens}{tags.section}>\n{{calls}}{ends}{tags.section}>",
        call=f'{opens}{tags.call} name="{{name}}">\n{{parameters}}{ends}{tags.call}>\n',
        parameter=f'{opens}{tags.parameter} name="{{key}}" string="{{is_string}}">{{value}}{ends}{tags.parameter}>\n',
        no_parameters="\n",
    )


class DeepSeekV32(DeclaredFormat):
    """`response_format` is OpenAI's field or a JSON Schema, which the prompt shows.

    DeepSeek trained the developer role for its own search agent only, so `repair` turns it into the system role.
    """

    name = "deepseek_v32"
    vllm_parsers = EngineParsers("deepseek_v32", "deepseek_v3")
    sglang_parsers = EngineParsers("deepseekv32", "deepseek-v3")
    trtllm_parsers: EngineParsers | None = EngineParsers("deepseek_v32", tokenizer="deepseek_v32")
    history_rules = HistoryRules(parts="text", developer=False, system="first", results_in_order=True)
    template_options: tuple[str, ...] = ("response_format",)
    controls = (THINK, THINK_END, DSML)
    end_of_turn = (END,)
    begin_of_text = (BEGIN,)
    calls = dsml_calls(V32_TAGS)

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        shown = with_request(messages, tools, options.get("response_format"), ("system", "developer"))
        return v32(shown, len(shown) - len(messages), thinking, open_turn)


class DeepSeekV4(DeepSeekV32):
    """`reasoning_effort` is low, high or max. (V4's first release had no low, and its max is today's high.)

    `drop_thinking=False` keeps the reasoning of turns before the last user message.
    """

    name = "deepseek_v4"
    vllm_parsers = EngineParsers("deepseek_v4", "deepseek_v4")
    sglang_parsers = EngineParsers("deepseekv4", "deepseek-v4")
    trtllm_parsers = None
    history_rules = HistoryRules(developer=False, system="first")
    template_options = ("drop_thinking", "reasoning_effort", "response_format")
    efforts = ("low", "high", "max")
    calls = dsml_calls(V4_TAGS)
    _prompts = V4()

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        drop_thinking = options.get("drop_thinking", True)
        if not isinstance(drop_thinking, bool):
            raise InvalidRequest("drop_thinking must be true or false", param="chat_template_kwargs.drop_thinking")
        shown = with_request(messages, tools, options.get("response_format"), self._prompts.carriers)
        return self._prompts.prompt(
            shown,
            len(shown) - len(messages),
            self._prompts.effort(options.get("reasoning_effort")),
            thinking=thinking,
            drop_thinking=drop_thinking,
            open_turn=open_turn,
        )


class DeepSeekV41(DeepSeekV4):
    """`reasoning_effort` is low, high, max or a number from 1 to 100."""

    name = "deepseek_v41"
    history_rules = HistoryRules(developer=False)
    vllm_parsers = EngineParsers("deepseek_v41", "deepseek_v41")
    sglang_parsers = EngineParsers("deepseekv41", "deepseek-v41")
    calls = dsml_calls(V41_TAGS)
    _prompts = V41()
