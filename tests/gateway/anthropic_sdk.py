"""Anthropic's own package judges streams and bodies; its client in front of the gateway, without a network."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from dovetail.formats.base import Format
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine

_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
#: The fields that are Dovetail's own, where Anthropic's types have none.
_OWN = {"dovetail", "speculation"}


def sse(body: bytes | str) -> list[dict[str, Any]]:
    """The data of each server-sent event, whose name is the type in its data."""
    text = body if isinstance(body, str) else body.decode()
    assert text.endswith("\n\n")
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def accumulated(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the SDK's own accumulator makes of a stream, with Dovetail's own fields; each event is checked first."""
    check_order(events)
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    own: dict[str, Any] = {}
    for event in events:
        if event["type"] == "ping":
            continue
        model = _EVENTS.validate_python(event, strict=True)
        check_extra(model)
        snapshot = accumulate_event(event=model, current_snapshot=snapshot, json_bufs=buffers)
        if event["type"] == "message_delta":
            own = {"usage": {key: event["usage"][key] for key in _OWN & event["usage"].keys()}}
            own |= {key: event[key] for key in _OWN & event.keys()}
    message: dict[str, Any] = snapshot.to_dict()
    message["usage"] |= own.pop("usage")
    return message | own


def checked(body: bytes | str) -> dict[str, Any]:
    """A whole body, which the SDK's own type takes without converting anything."""
    message: dict[str, Any] = json.loads(body)
    model = Message.model_validate(message, strict=True)
    check_extra(model)
    assert model.to_dict() == message
    return message


def check_order(events: list[dict[str, Any]]) -> None:
    """The documented order: one block after the other, and everything between message_start and message_stop."""
    first, *middle, delta, last = [event for event in events if event["type"] != "ping"]
    assert (first["type"], delta["type"], last["type"]) == ("message_start", "message_delta", "message_stop")
    assert events[0] == first and first["message"]["content"] == []
    index, is_open = 0, False
    for event in middle:
        assert event["index"] == index
        assert event["type"] == "content_block_start" if not is_open else event["type"] != "content_block_start"
        is_open = event["type"] != "content_block_stop"
        index += not is_open
        for field in ("text", "thinking", "partial_json", "signature"):
            assert event.get("delta", {}).get(field) != "", "an empty delta"
    assert not is_open


def check_extra(model: BaseModel) -> None:
    """No field of Dovetail's own but the documented ones."""
    assert set(model.model_extra or {}) <= _OWN, model.model_extra
    for value in dict(model).values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, BaseModel):
                check_extra(inner)


@asynccontextmanager
async def anthropic_client(
    engine: ScriptedEngine,
    tokenizer: Tokenizer,
    settings: Settings | None = None,
    fmt: Format | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    app = create_app(engine, fmt or KimiK25(), tokenizer, settings or Settings(served_model_name=MODEL))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        httpx2.AsyncClient(transport=transport, base_url="http://dovetail") as http,
        anthropic.AsyncAnthropic(
            base_url="http://dovetail", auth_token="any", max_retries=0, http_client=http, default_headers=headers
        ) as client,
    ):
        yield client
