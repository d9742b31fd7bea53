"""Files of recordings, as `serve --record` writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from dovetail.events import Call, CallEnd, CallStart, Content, Defect
from dovetail.gateway.observe.recording import (
    PromptSegment,
    RecordedCall,
    RecordedMessage,
    RecordedPrompt,
    RecordedStep,
    Recording,
    Token,
)
from dovetail.gateway.observe.recording_folder import SUFFIX

FIRST_NS = 1_700_000_000_000_000_000


def step(*tokens: str, **more: Any) -> RecordedStep:
    """A step with these texts as content tokens."""
    fields: dict[str, Any] = {
        "choice": 0,
        "at": 0.01,
        "tokens": tuple(Token(number, text) for number, text in enumerate(tokens)),
        "drafted": 3,
        "accepted": max(0, len(tokens) - 1),
        "forced": 0,
        "cached": 0,
        "events": tuple(Content(text) for text in tokens),
    }
    return RecordedStep(**fields | more)


def recording(**more: Any) -> Recording:
    """The recording of a short answer."""
    fields: dict[str, Any] = {
        "id": "chatcmpl-1",
        "request_id": "r-1",
        "api": "chat",
        "model": "m",
        "began": "2026-11-23T12:00:00.000+00:00",
        "request": msgspec.Raw(b'{"seed": 9007199254740993}'),
        "prompt": RecordedPrompt(3, False, (PromptSegment("<|user|>", True, 1), PromptSegment("Good day", False, 2))),
        "steps": (step("It", " rains"), step(".", finish="stop")),
        "messages": (RecordedMessage(0, "It rains.", "", ()),),
        "times": {"ended": 0.5},
    }
    return Recording(**fields | more)


def with_call() -> Recording:
    """The recording of a call that fails its check, with a defect."""
    events = (CallStart(0, "a:0", "look_up"), CallEnd(0), Defect("stray_marker", "x"))
    steps = (step("x", events=events, checks=(RecordedCall("look_up", "schema_mismatch"),), finish="tool_calls"),)
    return recording(
        id="chatcmpl-2", steps=steps, messages=(RecordedMessage(0, "", "", (Call("a:0", "look_up", '{"q": "Ünï"}'),)),)
    )


def write(folder: Path, name: str, content: Recording | bytes, written: int) -> None:
    """Write a recording that has the time `written`, in seconds after the first."""
    path = folder / f"{name}{SUFFIX}"
    path.write_bytes(content if isinstance(content, bytes) else msgspec.json.encode(content))
    os.utime(path, ns=(FIRST_NS + written * 10**9,) * 2)
