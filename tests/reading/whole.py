"""Whole outputs, read at once and character by character, which must give the same message."""

from __future__ import annotations

from typing import Any

import dovetail
from dovetail.events import Message
from tests.reading.families import TOOLS, stream


def read(name: str, text: str, tools: Any = TOOLS, reason: str = "stop", **options: Any) -> Message:
    """What the format called `name` reads, the same for any pieces."""
    whole = dovetail.fold(stream(name, [text], reason, tools, **options))
    assert dovetail.fold(stream(name, list(text), reason, tools, **options)) == whole
    return whole


def calls(message: Message) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in message.calls]


def kinds(message: Message) -> list[str]:
    return [defect.kind for defect in message.defects]
