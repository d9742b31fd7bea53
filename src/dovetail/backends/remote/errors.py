"""What goes wrong between here and an engine behind HTTP, in Dovetail's errors."""

from __future__ import annotations

import re

import msgspec

from dovetail.errors import ContextExceeded, DovetailError, EngineBusy, EngineError, InvalidRequest

#: How much of an engine's own words is passed on: enough for what is wrong, too little for a prompt.
_LONGEST = 400
#: What reading JSON raises: for what is none or another kind of it, and for what is nested too deeply.
UNREADABLE = (msgspec.DecodeError, RecursionError, ValueError)
#: How vLLM, SGLang and llama.cpp say that a prompt is too long.
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum (model|input|context) len|longer than the model|max_model_len", re.I
)


class ServerLost(EngineError):
    """The server cannot be reached, broke off, or is silent and not well. `sent`: the request may have reached it."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class ErrorBody(msgspec.Struct, frozen=True):
    """What the three of them say, each in its own words."""

    message: str = ""
    code: int | str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    error: ErrorBody | str | None = None
    message: str = ""
    detail: object = None
    code: int | str | None = None


def refusal(server: str, status: int, body: bytes | str) -> DovetailError:
    """The error for an answer of HTTP status `status` with `body`, or for one inside a stream that has such a code."""
    said = words(body)
    if status in (401, 403):
        return EngineError(f"{server} wants a key, or another one: --engine-api-key-file names the file that holds it")
    if status in (408, 429, 503):
        return EngineBusy(f"{server} takes no more requests now: {said}")
    if status in (400, 413, 422):
        return (ContextExceeded if _TOO_LONG.search(said) else InvalidRequest)(f"the engine refused this: {said}")
    if status == 404:
        return EngineError(f"{server} does not serve this model, or is no engine that is known here: {said}")
    return EngineError(f"{server} failed with HTTP status {status}: {said}")


def words(body: bytes | str) -> str:
    """What an engine says in the body of a refusal, short and in one line."""
    text = body if isinstance(body, str) else body.decode(errors="replace")
    try:
        found = msgspec.json.decode(text, type=_Refusal)
    except UNREADABLE:
        return _short(text)
    if isinstance(found.error, ErrorBody):
        return _short(found.error.message)
    return _short(found.error or found.message or (found.detail if isinstance(found.detail, str) else text))


def _short(text: str) -> str:
    # No control characters: they would move a terminal's cursor and forge lines of a log.
    text = " ".join("".join(each if each.isprintable() else " " for each in text[: 4 * _LONGEST]).split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
