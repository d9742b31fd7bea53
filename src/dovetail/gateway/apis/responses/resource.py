"""The response object: what the request asked for, the output, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.errors import ContextExceeded, DovetailError
from dovetail.gateway.apis.responses.items import Item
from dovetail.gateway.apis.responses.request import ResponsesRequest
from dovetail.gateway.apis.totals import ChoiceTotals, Extension, Speculation, speculation

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class InputTokensDetails(msgspec.Struct, frozen=True):
    """`cache_write_tokens` is always 0: writing to the cache has no price here."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    speculation: Speculation | UnsetType


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str
    param: str | None


class Reasoning(msgspec.Struct, frozen=True):
    effort: str | None
    summary: str | None


class Text(msgspec.Struct, frozen=True):
    format: dict[str, Any]
    verbosity: str


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A response. All fields of OpenAI's object that clients rely on are there, null where there is nothing to say."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: tuple[Item, ...] = ()
    usage: Usage | None = None
    previous_response_id: str | None
    instructions: str | None
    tools: Sequence[dict[str, Any]]
    tool_choice: Any
    parallel_tool_calls: bool
    max_output_tokens: int | None
    max_tool_calls: int | None
    reasoning: Reasoning
    text: Text
    truncation: str
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    metadata: dict[str, str]
    store: bool
    background: Literal[False] = False
    service_tier: Literal["default"] = "default"
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None
    dovetail: Extension | UnsetType = UNSET


def begun(
    request: ResponsesRequest, name: str, created: int, tools: Sequence[dict[str, Any]], *, stored: bool
) -> Resource:
    """The response to `request` before there is any output. `tools`: those that the response lists."""
    sampling = request.sampling
    reasoning, text = request.reasoning, request.text
    return Resource(
        id=name,
        created_at=created,
        model=request.model,
        previous_response_id=request.previous_response_id,
        instructions=request.instructions,
        tools=tools,
        tool_choice="auto" if request.tool_choice is None else request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        reasoning=Reasoning(request.effort, (reasoning.summary or reasoning.generate_summary) if reasoning else None),
        text=Text(_shown_format(text.format if text else None), (text and text.verbosity) or "medium"),
        truncation=request.truncation or "disabled",
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        top_logprobs=request.top_logprobs or 0,
        metadata=request.metadata or {},
        store=stored,
        prompt_cache_key=request.prompt_cache_key,
        safety_identifier=request.safety_identifier,
        user=request.user,
    )


def _shown_format(shape: dict[str, Any] | None) -> dict[str, Any]:
    """A request's `text.format` with all fields. A schema is enforced unless the request says otherwise."""
    if shape is None or shape.get("type") != "json_schema":
        return shape or {"type": "text"}
    return {**shape, "description": shape.get("description"), "strict": shape.get("strict") is not False}


def ended(resource: Resource, output: tuple[Item, ...], totals: ChoiceTotals, now: int, *, cut: bool) -> Resource:
    """`resource` at the end of the answer.

    `now`: seconds since the epoch. `cut`: the answer is incomplete.
    """
    return msgspec.structs.replace(
        resource,
        status="incomplete" if cut else "completed",
        completed_at=None if cut else now,
        incomplete_details=IncompleteDetails() if cut else None,
        output=output,
        usage=_usage(totals),
        dovetail=totals.extension(),
    )


def failed(resource: Resource, output: tuple[Item, ...], error: DovetailError) -> Resource:
    """`resource` after a failure. The codes are those that clients know from OpenAI's streams."""
    code = ContextExceeded.code if isinstance(error, ContextExceeded) else "server_error"
    assert code is not None
    shown = ResponseError(code, error.message, error.param)
    return msgspec.structs.replace(resource, status="failed", error=shown, output=output, store=False)


def _usage(totals: ChoiceTotals) -> Usage:
    prompt, new = totals.prompt_tokens, len(totals.ids)
    return Usage(
        prompt,
        InputTokensDetails(totals.cached or 0),
        new,
        OutputTokensDetails(totals.reasoning_tokens),
        prompt + new,
        speculation([totals]),
    )
