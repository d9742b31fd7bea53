"""DeepSeek's calls in DSML: `deepseek_v32`, `deepseek_v4` and `deepseek_v41`.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="search">
    <｜DSML｜parameter name="query" string="true">words</｜DSML｜parameter>
    <｜DSML｜parameter name="topn" string="false">10</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

Only `｜DSML｜` is a control token; what stands around it is ordinary text. V4 calls the section `tool_calls`; V4.1
calls it `calls`, with a space in front of every tag's name. Source: DeepSeek's encoders and their fixtures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.conversation import Message
from dovetail.errors import InvalidRequest
from dovetail.formats.base import EngineParsers, Format, Messages
from dovetail.formats.deepseek_dsml_prompt import DSML, V32_TAGS, Tags, v32, with_request
from dovetail.formats.deepseek_v3_prompt import END, THINK, THINK_END
from dovetail.formats.deepseek_v4_prompt import V4, V4_TAGS, V41, V41_TAGS
from dovetail.formats.history import HistoryRules
from dovetail.formats.markup import parameters
from dovetail.reading.tags import TagReader
from dovetail.tokens import Prompt


class DsmlReader(TagReader):
    controls = (THINK, THINK_END, DSML, END)
    ends = (END,)
    says_string = True
    tags: Tags

    def __init_subclass__(cls, *, tags: Tags | None = None) -> None:
        if tags is None:  # another reader of the same tags
            return
        cls.tags = tags
        cls.section, cls.section_end = f"<{DSML}{tags.section}>", f"</{DSML}{tags.section}>"
        cls.call, cls.call_end = f"<{DSML}{tags.call}", f"</{DSML}{tags.call}>"
        cls.parameter, cls.parameter_end = f"<{DSML}{tags.parameter}", f"</{DSML}{tags.parameter}>"
        cls.call_in_text, cls.parameter_in_text = cls.call, cls.parameter
        cls.openers = ("\n\n" + cls.section, cls.call)
        cls.inner = (cls.section_end, cls.call_end, cls.parameter, cls.parameter_end)


class Dsml32Reader(DsmlReader, tags=V32_TAGS):
    """V3.2's."""


class Dsml4Reader(DsmlReader, tags=V4_TAGS):
    """V4's."""


class Dsml41Reader(DsmlReader, tags=V41_TAGS):
    """V4.1's."""


class DeepSeekV32(Format):
    """`response_format` is what the answer is to look like, as a schema or an object of OpenAI's.

    The developer role was trained for DeepSeek's own search agent only: `repair` makes it the system's.
    """

    name = "deepseek_v32"
    vllm_parsers = EngineParsers("deepseek_v32", "deepseek_v3")
    sglang_parsers = EngineParsers("deepseekv32", "deepseek-v3")
    trtllm_parsers: EngineParsers | None = EngineParsers("deepseek_v32", tokenizer="deepseek_v32")
    history_rules = HistoryRules(parts="text", developer=False, results_in_order=True)
    template_options: tuple[str, ...] = ("response_format",)
    end_of_turn = (END,)
    _reader: type[DsmlReader] = Dsml32Reader

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        pieces = [message.reasoning, THINK_END] if thinking else []
        text = message.content
        if message.calls:
            calls = [(call.name, list(parameters(call))) for call in message.calls]
            text = self._reader.tags.add_calls(pieces, text, calls)
        pieces += (text, END)
        return Prompt.alternating(pieces)

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        shown = with_request(messages, tools, options.get("response_format"), ("system", "developer"))
        return v32(shown, len(shown) - len(messages), thinking, open_turn)


class DeepSeekV4(DeepSeekV32):
    """`reasoning_effort` is low, high or max. (V4's first release had no low; its max is this high.)

    `drop_thinking` keeps the reasoning of turns before the last user's when False.
    """

    name = "deepseek_v4"
    vllm_parsers = EngineParsers("deepseek_v4", "deepseek_v4")
    sglang_parsers = EngineParsers("deepseekv4", "deepseek-v4")
    trtllm_parsers = None
    history_rules = HistoryRules(developer=False)
    template_options = ("drop_thinking", "reasoning_effort", "response_format")
    _reader: type[DsmlReader] = Dsml4Reader
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
    vllm_parsers = EngineParsers("deepseek_v41", "deepseek_v41")
    sglang_parsers = EngineParsers("deepseekv41", "deepseek-v41")
    _reader = Dsml41Reader
    _prompts = V41()
