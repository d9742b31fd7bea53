"""The body of Anthropic's Messages API as a typed `MessagesRequest`, checked once; every error names the field.

Fields that do not change the answer are ignored: `metadata`, `cache_control`, `service_tier`, `container` and others.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from dovetail.completion import Sampling
from dovetail.gateway.apis.request_body import Unsupported, check_own_fields, check_unsupported, decode_body
from dovetail.gateway.turn.turn_request import Extension

MAX_STOP_SEQUENCES = 64
MAX_MESSAGES = 100_000

_StopSequence = Annotated[str, msgspec.Meta(min_length=1)]


class Thinking(msgspec.Struct, frozen=True):
    """`budget_tokens` belongs to "enabled". With the display "omitted", thinking blocks come without their text."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ContextEdits(msgspec.Struct, frozen=True):
    edits: list[dict[str, Any]] = []


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`: what the prompt depends on. `tools` and blocks are as sent."""

    model: str
    messages: Annotated[list[Any], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    #: The older place of `output_config.format`.
    output_format: OutputFormat | None = None
    context_management: ContextEdits | None = None
    mcp_servers: list[Any] | None = None
    thread: Any = None
    dovetail: Extension | None = None

    @property
    def context_edits(self) -> list[dict[str, Any]]:
        return self.context_management.edits if self.context_management else []


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    stop_sequences: Annotated[list[_StopSequence], msgspec.Meta(max_length=MAX_STOP_SEQUENCES)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    stream: bool | None = None

    @property
    def sampling(self) -> Sampling:
        """How to choose tokens, with Anthropic's defaults."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k if self.top_k is not None and self.top_k > 0 else None,
        )


Checked = TypeVar("Checked", bound=CountTokensRequest)

_UNSUPPORTED: Unsupported = {"thread": ((None,), "thread is not supported: send the whole conversation in messages")}
_MESSAGES = msgspec.json.Decoder(MessagesRequest)
_COUNT_TOKENS = msgspec.json.Decoder(CountTokensRequest)


def decode_messages(body: bytes) -> MessagesRequest:
    """The request in `body`. Raises `InvalidRequest` naming the field at fault."""
    return _checked(decode_body(_MESSAGES, body))


def decode_count_tokens(body: bytes) -> CountTokensRequest:
    """The request in `body`. Raises `InvalidRequest` naming the field at fault."""
    return _checked(decode_body(_COUNT_TOKENS, body))


def _checked(request: Checked) -> Checked:
    check_unsupported(request, _UNSUPPORTED)
    check_own_fields(None, request.dovetail)
    return request
