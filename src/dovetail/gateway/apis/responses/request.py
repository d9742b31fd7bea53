"""The body of `POST /v1/responses` as a typed request; every error names the field.

`input`, `tools` and `tool_choice` are read in `conversation.py` and `tools.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.gateway.apis.request_body import (
    Effort,
    ReasoningField,
    ReasoningSwitches,
    SamplingFields,
    Unsupported,
    check_own_fields,
    check_unsupported,
    decode_body,
)
from dovetail.gateway.turn.turn_request import Extension

MAX_TOP_LOGPROBS = 20
_MAX_METADATA = 16

_Short = Annotated[str, msgspec.Meta(max_length=512)]

#: What `include` may ask for. The others belong to tools that are left out.
LOGPROBS, RECORD = "message.output_text.logprobs", "reasoning.encrypted_content"
_Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class Reasoning(msgspec.Struct, frozen=True):
    """`summary` decides whether reasoning is sent as a summary, which is the whole reasoning, or as text."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class Text(msgspec.Struct, frozen=True):
    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`. `input`, `tools`, `tool_choice` and `text.format` are as sent."""

    model: str
    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, msgspec.Meta(ge=1)] | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    include: list[_Includable] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[Annotated[str, msgspec.Meta(max_length=64)], _Short] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: _Short | None = None
    user: str | None = None
    stream: bool | None = None
    # Other servers have added these, and some of the inherited fields.
    chat_template_kwargs: dict[str, Any] | None = None
    dovetail: Extension | None = None
    # Not supported: refused unless they have one of the values in `_UNSUPPORTED`.
    background: Any = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    stop: Any = None
    logit_bias: Any = None
    n: Any = None

    @property
    def effort(self) -> Effort | None:
        """How much the model is to reason; None if the request does not say."""
        return self.reasoning.effort if self.reasoning else None

    @property
    def switches(self) -> ReasoningSwitches:
        """The fields about reasoning."""
        return ReasoningSwitches(self.chat_template_kwargs or {}, None, None, None, ReasoningField(self.effort))

    @property
    def summarizes(self) -> bool:
        """Whether reasoning is sent as a summary."""
        return self.reasoning is not None and (self.reasoning.summary or self.reasoning.generate_summary) is not None

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens to report at each place; None: no log probabilities at all."""
        return (self.top_logprobs or 0) if self.top_logprobs or LOGPROBS in (self.include or ()) else None

    @property
    def wants_record(self) -> bool:
        """Whether the answer's record is sent as `encrypted_content`."""
        return RECORD in (self.include or ())

    @property
    def response_format(self) -> dict[str, Any] | None:
        """`text.format` in the shape of chat completions."""
        shape = self.text.format if self.text else None
        if shape is None or shape.get("type") != "json_schema":
            return shape
        return {"type": "json_schema", "json_schema": {key: shape[key] for key in shape if key != "type"}}


_UNSUPPORTED: Unsupported = {
    "background": ((None, False), "background is not supported: stream the response"),
    "conversation": ((None,), "conversation is not supported: use previous_response_id"),
    "prompt": ((None,), "prompt is not supported: there are no stored prompt templates, send instructions and input"),
    "context_management": ((None, []), "context_management is not supported: use truncation"),
    "stop": ((None, []), "stop is not supported by the Responses API"),
    "logit_bias": ((None, {}), "logit_bias is not supported by the Responses API"),
    "n": ((None, 1), "n is not supported by the Responses API"),
}


class InputTokensRequest(ResponsesRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/responses/input_tokens`. The model may be left out."""

    model: str = ""


_DECODERS = {kind: msgspec.json.Decoder(kind) for kind in (ResponsesRequest, InputTokensRequest)}


def decode(body: bytes, kind: type[ResponsesRequest] = ResponsesRequest) -> ResponsesRequest:
    """The request in `body`. Raises `InvalidRequest` naming the field at fault."""
    request = decode_body(_DECODERS[kind], body)
    check_unsupported(request, _UNSUPPORTED)
    check_own_fields(request.chat_template_kwargs, request.dovetail)
    if len(request.metadata or ()) > _MAX_METADATA:
        raise InvalidRequest(f"metadata has more than {_MAX_METADATA} keys", param="metadata")
    return request
