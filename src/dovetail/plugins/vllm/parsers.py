"""The base classes of Dovetail's tool parsers and reasoning parsers in vLLM. `lazy_parsers` derives one per name.

vLLM combines a tool parser and a reasoning parser in a new class for each server. But one reader has to read both,
because a chunk of several tokens may contain the end of the reasoning, content and half a call. So `CompositionHook`
notices the new class, by Python's `__set_name__`, and makes `CombinedParser` its base; nothing of vLLM is patched. Each
parser also works alone: vLLM's engine asks the reasoning parser where reasoning ends.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.reasoning import ReasoningParser
from vllm.tool_parsers import ToolParser

from dovetail.events import CallArguments, CallStart, Content, Event, Message, Reasoning, fold
from dovetail.formats.base import Format
from dovetail.formats.prompts.history import UNMARKED_CALL
from dovetail.formats.turn import Turn
from dovetail.plugins.vllm import model_format, names
from dovetail.plugins.vllm.reasoning import ReasoningSpans
from dovetail.plugins.vllm.requests import choice_of, thinking_off, tools_of
from dovetail.plugins.vllm.stream import Stream


class CompositionHook(type):
    """The metaclass of both parsers. It is called when vLLM combines them in a class."""

    def __set_name__(cls, owner: type, attribute: str) -> None:
        from vllm.parser.abstract_parser import DelegatingParser

        if attribute in ("tool_parser_cls", "reasoning_parser_cls") and issubclass(owner, DelegatingParser):
            from dovetail.plugins.vllm.combined_parser import combine

            combine(owner)


class ToolReader(ToolParser, metaclass=CompositionHook):
    """A tool parser. `candidates`: the formats that its name may mean."""

    candidates: ClassVar[tuple[str, ...]]
    # A forced call is read in the model's own format too, and not as a JSON list.
    supports_required_and_named = False

    def __init__(self, tokenizer: Any, tools: Any = None, **_: Any) -> None:
        super().__init__(tokenizer, tools)
        self._format = model_format.format_of(self.candidates, tokenizer)
        self._stream: Stream | None = None

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        """The calls and the content of an output without its reasoning."""
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


class ReasoningReader(ReasoningParser, metaclass=CompositionHook):
    """A reasoning parser. `candidates`: the formats that its name may mean."""

    candidates: ClassVar[tuple[str, ...]]

    def __init__(self, tokenizer: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(tokenizer, *arguments, **options)
        self._format = model_format.format_of(self.candidates, tokenizer)
        self._spans = ReasoningSpans(self._format, model_format.tokenizer_of(tokenizer))
        self._thinking_off = thinking_off(options.get("chat_template_kwargs"))
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
        return self._thinking_off or self._spans.ended(input_ids)

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        return self._spans.ends_in(input_ids, tuple(delta_ids))

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return self._spans.after(input_ids)

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return self._spans.count(token_ids, self._left_open())

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """The reasoning, and all text after it; calls stay in the text as the model wrote them."""
        reasoning, content = self._spans.split(model_output, self._left_open())
        stream = self._open(request)
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
            self._stream = self._open(None)
        return delta(self._stream.feed(delta_text, delta_token_ids))

    def _open(self, request: Any) -> Stream:
        thinking = self._left_open()
        return open_stream(self._format, self.model_tokenizer, request, thinking=thinking, calls=False)

    def _left_open(self) -> bool:
        if self._prompt is not None:
            return self._spans.left_open(self._prompt)
        return self._format.reasoning == "opened" and not self._thinking_off


def open_stream(fmt: Format, tokenizer: Any, request: Any, *, thinking: bool, calls: bool = True) -> Stream:
    """A stream that reads one output of `request`. `thinking`: the prompt left a reasoning block open."""
    own = model_format.tokenizer_of(tokenizer)
    turn = Turn(
        fmt,
        tools=tools_of(request),
        tool_choice=choice_of(request) if calls else "none",
        on_malformed_call=names.on_malformed_call(os.environ.get(names.ON_MALFORMED_CALL, "")),
        bare_calls=UNMARKED_CALL not in names.repairs_off(os.environ.get(names.NO_REPAIR, "")),
        left_open=thinking,
    )
    return Stream(turn.reader(own, call_prefix=f"call_{uuid.uuid4().hex[:16]}_"), own)


def function_calls(message: Message) -> list[Any]:
    return [FunctionCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.calls]


def delta(events: Iterable[Event]) -> Any:
    """The `DeltaMessage` of one chunk; None if nothing is to be sent."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, Any] = {}
    for event in events:
        match event:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart(index, call_id, name):
                function = DeltaFunctionCall(name=name, arguments="")
                calls[index] = DeltaToolCall(index=index, id=call_id, type="function", function=function)
            case CallArguments(index, fragment):
                call = calls.get(index)
                if call is None:
                    call = calls[index] = DeltaToolCall(index=index, function=DeltaFunctionCall(arguments=""))
                call.function.arguments += fragment
            case _:
                pass
    fields: dict[str, Any] = {
        "content": "".join(content),
        "reasoning": "".join(reasoning),
        "tool_calls": [*calls.values()],
    }
    fields = {name: value for name, value in fields.items() if value}  # vLLM sends every field that is set
    return DeltaMessage(**fields) if fields else None
