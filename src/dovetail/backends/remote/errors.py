"""Turns the failures of an engine behind HTTP into Dovetail's errors."""

from __future__ import annotations

import re

import msgspec

from dovetail.errors import ContextExceeded, DovetailError, EngineBusy, EngineError, InvalidRequest

#: The most characters of an engine's message to pass on. More could quote a prompt.
_MESSAGE_LENGTH = 400
#: What reading JSON raises: for malformed JSON, for the wrong shape, and for too deep nesting.
UNREADABLE = (msgspec.DecodeError, RecursionError, ValueError)
#: The messages of vLLM, SGLang and llama.cpp for a prompt that is too long.
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum (model|input|context) len|longer than the model|max_model_len", re.I
)


class ServerLost(EngineError):
    """The server cannot be reached, closed the connection, or is silent and unhealthy.

    `sent`: the request may have reached it.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class ErrorBody(msgspec.Struct, frozen=True):
    """The error object of all three engines, as far as they agree."""

    message: str = ""
    code: int | str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    error: ErrorBody | str | None = None
    message: str = ""
    detail: object = None
    code: int | str | None = None


def refusal(server: str, status: int, body: bytes | str) -> DovetailError:
    """The error for an answer with HTTP status `status`, or for an error event with that code in a stream."""
    reason = message_of(body)
    if status in (401, 403):
        return EngineError(f"{server} does not accept the API key: --engine-api-key-file names the file that holds it")
    if status in (408, 429, 503):
        return EngineBusy(f"{server} accepts no more requests now: {reason}")
    if status in (400, 413, 422):
        return (ContextExceeded if _TOO_LONG.search(reason) else InvalidRequest)(f"the engine refused this: {reason}")
    if status == 404:
        return EngineError(f"{server} does not serve this model, or is not an engine that Dovetail knows: {reason}")
    return EngineError(f"{server} failed with HTTP status {status}: {reason}")


def message_of(body: bytes | str) -> str:
    """The message in the body of an error, shortened and on one line."""
    text = body if isinstance(body, str) else body.decode(errors="replace")
    try:
        refusal = msgspec.json.decode(text, type=_Refusal)
    except UNREADABLE:
        return _short(text)
    if isinstance(refusal.error, ErrorBody):
        return _short(refusal.error.message)
    return _short(refusal.error or refusal.message or (refusal.detail if isinstance(refusal.detail, str) else text))


def _short(text: str) -> str:
    # Control characters could move a terminal's cursor or forge lines of a log.
    text = " ".join("".join(each if each.isprintable() else " " for each in text[: 4 * _MESSAGE_LENGTH]).split())
    return text if len(text) <= _MESSAGE_LENGTH else text[:_MESSAGE_LENGTH] + "…"
