"""The items of a response's output, as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.gateway.turn.logprobs import ContentLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[ContentLogprob, ...] = ()


class Message(msgspec.Struct, frozen=True, tag="message"):
    id: str
    status: Status
    content: tuple[OutputText, ...] = ()
    role: Literal["assistant"] = "assistant"


class SummaryText(msgspec.Struct, frozen=True, tag="summary_text"):
    text: str


class ReasoningText(msgspec.Struct, frozen=True, tag="reasoning_text"):
    text: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    """Reasoning is in `summary` or in `content`. `encrypted_content` is the record of the whole answer."""

    id: str
    status: Status
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class FunctionCall(msgspec.Struct, frozen=True, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status
    namespace: str | UnsetType = UNSET


class CustomToolCall(msgspec.Struct, frozen=True, tag="custom_tool_call"):
    id: str
    call_id: str
    name: str
    input: str
    status: Status
    namespace: str | UnsetType = UNSET


class Compaction(msgspec.Struct, frozen=True, tag="compaction"):
    """`encrypted_content` is the sealed summary of a conversation."""

    id: str
    encrypted_content: str


Item = Message | Reasoning | FunctionCall | CustomToolCall | Compaction
