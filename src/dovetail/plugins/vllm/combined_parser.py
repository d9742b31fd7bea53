"""The parser of vLLM's chat and responses endpoints for one request: one reader for its whole output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from vllm.parser.abstract_parser import DelegatingParser

from dovetail.errors import PlanError
from dovetail.events import Event, fold
from dovetail.formats.base import Format
from dovetail.plugins.vllm import model_format, tool_call_grammar
from dovetail.plugins.vllm.parsers import ReasoningReader, ToolReader, delta, function_calls, open_stream
from dovetail.plugins.vllm.reasoning import ReasoningSpans
from dovetail.plugins.vllm.requests import thinking_off
from dovetail.plugins.vllm.stream import Stream


class CombinedParser(DelegatingParser):
    """Parses reasoning, content and calls with one reader, streamed or not."""

    candidates: ClassVar[tuple[str, ...]]
    always_adjust_request = True  # control tokens must not be removed, even if the request has no tools

    def __init__(self, tokenizer: Any, tools: Any = None, *arguments: Any, **options: Any) -> None:
        super().__init__(tokenizer, tools, *arguments, **options)
        self._format: Format = model_format.format_of(self.candidates, tokenizer)
        self._thinking_off = thinking_off(options.get("chat_template_kwargs"))
        self._prompt: Sequence[int] | None = None
        self._stream: Stream | None = None
        self._ends = _end_ids(self._format, tokenizer)

    def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
        self._prompt = prompt_token_ids
        if self._reasoning_parser is not None:
            self._reasoning_parser.set_prompt_token_ids(prompt_token_ids)

    def adjust_request(self, request: Any) -> Any:
        """Keep control tokens in the text, and constrain calls as far as the request or the server asks."""
        request.skip_special_tokens = False
        if "spaces_between_special_tokens" in type(request).model_fields:
            request.spaces_between_special_tokens = False
        if self._tool_parser is None:
            return request
        left_open = self._left_open() if self._prompt is not None else None
        state = tool_call_grammar.ReasoningState(left_open, self._thinking_off)
        own = model_format.tokenizer_of(self.model_tokenizer)
        tool_call_grammar.constrain(request, self._format, own, self.tool_strict_level, state)
        return request

    def parse(
        self,
        model_output: str,
        request: Any,
        enable_auto_tools: bool = False,
        model_output_token_ids: Sequence[int] = (),
    ) -> tuple[str | None, str | None, list[Any] | None]:
        forced = request.tool_choice not in ("auto", "none", None)
        stream = self._open(request, calls=enable_auto_tools or forced)
        events = stream.feed(model_output, model_output_token_ids)
        message = fold(events + stream.finish(self._finish_reason(request, model_output_token_ids)))
        return message.reasoning or None, message.content or None, function_calls(message)

    def parse_delta(
        self,
        delta_text: str,
        delta_token_ids: list[int],
        request: Any,
        prompt_token_ids: list[int] | None = None,
        *,
        finished: bool,
    ) -> Any:
        if self._stream is None:
            if prompt_token_ids is not None:
                self.set_prompt_token_ids(prompt_token_ids)
            self._stream = self._open(request)
        events: list[Event] = self._stream.feed(delta_text, delta_token_ids)
        if finished:
            events += self._stream.finish(self._finish_reason(request, delta_token_ids))
            self._stream = None
        message = delta(events)
        if message is not None and not request.include_reasoning and message.reasoning:
            message.reasoning = None
            if not message.content and not message.tool_calls:
                return None
        return message

    def _open(self, request: Any, calls: bool = True) -> Stream:
        calls = calls and self._tool_parser is not None
        return open_stream(self._format, self.model_tokenizer, request, thinking=self._left_open(), calls=calls)

    def _left_open(self) -> bool:
        if self._prompt is not None:
            return ReasoningSpans(self._format, model_format.tokenizer_of(self.model_tokenizer)).left_open(self._prompt)
        return self._format.reasoning == "opened" and not self._thinking_off

    def _finish_reason(self, request: Any, ids: Sequence[int]) -> str:
        """Why the output ended. vLLM does not tell parsers, so an output without a final end token is cut off."""
        ended = not ids or ids[-1] in self._ends or ids[-1] in (getattr(request, "stop_token_ids", None) or ())
        return "stop" if ended else "length"


def _end_ids(fmt: Format, tokenizer: Any) -> frozenset[int]:
    own = model_format.tokenizer_of(tokenizer)
    control = own.control if own is not None else {}
    ids = {control[literal] for literal in fmt.end_of_turn if literal in control}
    eos = getattr(tokenizer, "eos_token_id", None)
    return frozenset(ids if eos is None else {*ids, eos})


def combine(composed: type[DelegatingParser]) -> None:
    """Make `CombinedParser` the base of `composed`, vLLM's combination of a reasoning parser and a tool parser.

    Raises `PlanError` if only one of the two is Dovetail's, or if they are of different formats.
    """
    parts = [part for part in (composed.reasoning_parser_cls, composed.tool_parser_cls) if part is not None]
    foreign = [part for part in parts if not issubclass(part, ToolReader | ReasoningReader)]
    if foreign:
        raise PlanError(
            f"Dovetail reads reasoning and calls with one parser, which cannot be combined with {foreign[0].__name__}: "
            "give --tool-call-parser and --reasoning-parser the same name of Dovetail's"
        )
    candidates = tuple(fmt for fmt in parts[0].candidates if all(fmt in part.candidates for part in parts))
    if not candidates:
        both = " and ".join(part.parser_name for part in parts)
        raise PlanError(f"{both} are parsers of different formats: name one format with both flags")
    composed.__bases__ = (CombinedParser,)
    composed.candidates = candidates
    model_format.set_candidates(candidates)
