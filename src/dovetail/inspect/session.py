"""The conversations in a folder of recordings: their turns in order, what of each was computed again, and why.

A conversation is known by the first message of its user.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.gateway.observe.recording import Recording, decode
from dovetail.gateway.turn.prefix import Prefix


class SessionTurn(msgspec.Struct, frozen=True):
    """One turn. `cached`: the tokens that the engine found in its cache, None if it did not report them."""

    id: str
    began: str
    prompt_tokens: int
    cached: int | None
    prefix: Prefix | None


class Session(msgspec.Struct, frozen=True):
    """One conversation. `first`: what its user began it with."""

    first: str
    turns: tuple[SessionTurn, ...]

    @property
    def lost(self) -> int:
        """The tokens that were computed again in all turns."""
        return sum(turn.prefix.lost for turn in self.turns if turn.prefix is not None)


def sessions(folder: Path) -> list[Session]:
    """The conversations in `folder` of more than one turn, the oldest first. Raises `InvalidRequest`."""
    try:
        paths = sorted(folder.glob("*.recording.json"))
        files = [(path.name, path.read_bytes()) for path in paths]
    except OSError as error:
        raise InvalidRequest(f"{folder} cannot be read: {error.strerror}") from error
    if not files:
        raise InvalidRequest(f"{folder} has no recordings of `serve --record`")
    return of_recordings(decode(data, name) for name, data in files)


def of_recordings(recordings: Iterable[Recording]) -> list[Session]:
    """The conversations of more than one turn."""
    turns: dict[tuple[str | None, str], list[SessionTurn]] = {}
    for recording in sorted(recordings, key=lambda each: each.began):
        first = _first(recording)
        if recording.prompt is None or first is None:
            continue
        cached = [step.cached for step in recording.steps if step.cached is not None]
        turn = SessionTurn(
            recording.id, recording.began, recording.prompt.tokens, sum(cached) if cached else None, recording.prefix
        )
        turns.setdefault((recording.model, first), []).append(turn)
    return [Session(first, tuple(each)) for (_, first), each in turns.items() if len(each) > 1]


def _first(recording: Recording) -> str | None:
    """The text of the first message of the user."""
    body = msgspec.json.decode(recording.request)
    messages = (body.get("messages") or body.get("input")) if isinstance(body, dict) else None
    if isinstance(messages, str):
        return messages
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("role") == "user":
            return _text(message.get("content"))
    return None


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return "\n".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
