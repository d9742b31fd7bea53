"""Dovetail's parsers as vLLM knows parsers: a class for tools and one for reasoning, from which each name has its own.

vLLM puts the two together in a class of its own, made anew for each server. One reader has to own both ends (a chunk of
several tokens may hold the end of reasoning, content and half a call), so when that class is made, `Served` becomes
what it rests on: Python tells a class that becomes an attribute of another (`__set_name__`), and nothing of vLLM is
patched. Whoever calls one of the two on its own, as vLLM's engine does to learn where reasoning ends, gets what it says
by itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from vllm.entrypoints.generate.base.protocol import ExtractedToolCallInformation, FunctionCall, ToolCall
from vllm.reasoning import ReasoningParser
from vllm.tool_parsers import ToolParser

from dovetail.conversation import Message
from dovetail.events import fold
from dovetail.formats.base import Format
from dovetail.plugins.vllm import served
from dovetail.plugins.vllm.deltas import delta
from dovetail.plugins.vllm.reasoning import Spans
from dovetail.plugins.vllm.requests import choice_of, thinking_off, tools_of
from dovetail.plugins.vllm.stream import Stream


class Joining(type):
    """The type of both classes: it hears of the class that vLLM makes of them."""

    def __set_name__(cls, owner: type, attribute: str) -> None:
        from vllm.parser.abstract_parser import DelegatingParser

        if attribute in ("tool_parser_cls", "reasoning_parser_cls") and issubclass(owner, DelegatingParser):
            from dovetail.plugins.vllm.unified import join

            join(owner)


class ToolReader(ToolParser, metaclass=Joining):
    """A tool parser. `candidates` are the formats that its name may stand for."""

    candidates: ClassVar[tuple[str, ...]]
    # Calls are read as the model makes them, whatever the choice of tools.
    supports_required_and_named = False

    def __init__(self, tokenizer: Any, tools: Any = None, **_: Any) -> None:
        super().__init__(tokenizer, tools)
        self._format = served.format_of(self.candidates, tokenizer)
        self._stream: Stream | None = None

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        """Of an output without its reasoning."""
        stream = open_stream(self._format, self.model_tokenizer, request, thinking=False)
        message = fold([*stream.feed(model_output, ()), *stream.finish("stop")])
        calls = [ToolCall(id=call.id, function=call) for call in function_calls(message)]
        return ExtractedToolCallInformation(tools_called=bool(calls), tool_calls=calls, content=message.content or None)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> Any:
        if self._stream is None:
            self._stream = open_stream(self._format, self.model_tokenizer, request, thinking=False)
        return delta(self._stream.feed(delta_text, delta_token_ids))


class ReasoningReader(ReasoningParser, metaclass=Joining):
    """A reasoning parser. `candidates` are the formats that its name may stand for."""

    candidates: ClassVar[tuple[str, ...]]

    def __init__(self, tokenizer: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(tokenizer, *arguments, **options)
        self._format = served.format_of(self.candidates, tokenizer)
        self._spans = Spans(self._format, served.tokenizer_of(tokenizer))
        self._off = thinking_off(options.get("chat_template_kwargs"))
        self._prompt: Sequence[int] | None = None
        self._stream: Stream | None = None

    @property
    def reasoning_start_str(self) -> str | None:
        return self._spans.opener

    @property
    def reasoning_end_str(self) -> str | None:
        return self._spans.closer

    def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
        self._prompt = prompt_token_ids

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        return self._off or self._spans.over(input_ids)

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        return self._spans.closes(input_ids, tuple(delta_ids))

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return self._spans.behind(input_ids)

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return self._spans.count(token_ids, self._left_open())

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Content is what stands behind the reasoning, calls as they were written."""
        reasoning, content = self._spans.parted(model_output, self._left_open())
        stream = self._opened(request)
        message = fold([*stream.feed(reasoning, ()), *stream.finish("stop")])
        return message.reasoning or None, (message.content + content) or None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> Any:
        if self._stream is None:
            self._stream = self._opened(None)
        return delta(self._stream.feed(delta_text, delta_token_ids))

    def _opened(self, request: Any) -> Stream:
        thinking = self._left_open()
        return open_stream(self._format, self.model_tokenizer, request, thinking=thinking, calls=False)

    def _left_open(self) -> bool:
        if self._prompt is not None:
            return self._spans.left_open(self._prompt)
        return self._format.reasoning == "opened" and not self._off


def open_stream(fmt: Format, tokenizer: Any, request: Any, *, thinking: bool, calls: bool = True) -> Stream:
    """A stream over one output of `request`. `thinking`: the prompt left a reasoning block open."""
    own = served.tokenizer_of(tokenizer)
    reader = fmt.reader(
        tools_of(request),
        thinking=thinking,
        tool_choice=choice_of(request) if calls else "none",
        tokenizer=own,
        call_prefix=f"call_{uuid.uuid4().hex[:16]}_",
    )
    return Stream(reader, own)


def function_calls(message: Message) -> list[Any]:
    return [FunctionCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.calls]
