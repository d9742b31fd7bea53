"""The user's own prompts: a file with one chat request on each line, or a folder of recordings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.gateway.observe.recording import decode
from dovetail.gateway.observe.recording_folder import SUFFIX

#: What of a request makes its prompt and the shape of its answer.
_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "chat_template_kwargs",
    "reasoning_effort",
)
#: So many are measured with.
MOST = 64


def own_prompts(path: Path, most: int = MOST) -> list[dict[str, Any]]:
    """The requests in a file or a folder, without sampling: `most` of them, evenly over all.

    Raises `InvalidRequest` with the line or the file.
    """
    try:
        requests = [*(_recorded(path) if path.is_dir() else _lines(path))]
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    if not requests:
        what = "recording of a chat request with its text" if path.is_dir() else "request"
        raise InvalidRequest(f"{path} has no {what}")
    step = max(len(requests) / most, 1)
    return [requests[int(i * step)] for i in range(min(len(requests), most))]


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            request = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{file}, line {number}: it is not JSON: {error}") from error
        prompt = _prompt(request)
        if prompt is None:
            raise InvalidRequest(f"{file}, line {number}: it is no chat request: an object with a list of messages")
        yield prompt


def _recorded(folder: Path) -> Iterator[dict[str, Any]]:
    """The chat requests among the recordings. Other APIs' requests are no chat requests; redacted ones have no text."""
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        recording = decode(file.read_bytes(), str(file))
        if recording.api == "chat" and not recording.redacted:
            prompt = _prompt(msgspec.json.decode(recording.request))
            if prompt is not None:
                yield prompt


def _prompt(request: Any) -> dict[str, Any] | None:
    if not isinstance(request, Mapping) or not isinstance(request.get("messages"), list) or not request["messages"]:
        return None
    return {name: request[name] for name in _FIELDS if request.get(name) is not None}
