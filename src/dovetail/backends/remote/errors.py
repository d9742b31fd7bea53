"""Turns the failures of an engine behind HTTP into Dovetail's errors."""

from __future__ import annotations

import logging
import math
import re
import time
from email.utils import parsedate_to_datetime

import msgspec

from dovetail.errors import (
    ContextExceeded,
    DovetailError,
    EngineBusy,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    InvalidRequest,
)

#: What takes the place of each.
GAP = "…"
_TRACEBACK = re.compile(r"Traceback \(most recent call last\).*|\bFile \"[^\"]*\", line \d+.*", re.S)
#: Cautious: a dotted word may be a host, a module or a file, and none of them is a client's business. An engine may
#: repeat what a client sent, so each alternative begins at the start of a word only and never backtracks into one:
#: otherwise 4 KB of `a-a-a-…` would take a second.
_PRIVATE = re.compile(
    r"""
    (?<!\w)\w++://\S++                               # a URL
    | (?<![\w.@+~-])(?:[A-Za-z]:)?+[\w.@+~-]*+(?:[\\/][\w.@+~-]++){2,}+[\\/]?   # a path of two parts or more
    | ~?[\\/][\w@+~-]++\.\w++                       # a file in the root or home folder
    | \[?(?:[0-9A-Fa-f]{0,4}:){2,}+[0-9A-Fa-f.]*+\]? # an IPv6 address
    | (?<![\w-])(?<![\w-]\.)[\w-]++(?:\.[\w-]++)*+:\d{2,5}\b   # a host and port
    | \b(?:\d{1,3}\.){3}\d{1,3}\b                    # an IPv4 address
    # a name with dots that is no number or version
    | (?<![\w-])(?<![\w-]\.)(?!-?\d++(?:\.\d++)++(?:[eE][+-]?\d++)?+(?!\.?[\w-]))[\w-]++(?:\.[\w-]++)++
    """,
    re.X,
)


def redacted(text: str) -> str:
    """`text` without paths, URLs, addresses, names with dots, and everything from a traceback on."""
    return _PRIVATE.sub(GAP, _TRACEBACK.sub(GAP, text))


_log = logging.getLogger(__name__)

#: The most characters of an engine's message to pass on. More could quote a prompt.
_MESSAGE_LENGTH = 400
#: What reading JSON raises: for malformed JSON, for the wrong shape, and for too deep nesting.
UNREADABLE = (msgspec.DecodeError, RecursionError, ValueError)
#: The messages of vLLM, SGLang and llama.cpp for a prompt that is too long.
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum (model|input|context) len|longer than the model|max_model_len", re.I
)

#: vLLM's message, with status 500, if it does not find the places of all pictures (Gemma 3's before a line break).
_PLACES = re.compile(r"found \d+ prompt placeholders")

#: The longest Retry-After to pass on, in seconds.
_LONGEST_WAIT = 86_400


class ServerLost(EngineUnavailable):
    """The server cannot be reached, closed the connection, or is silent and unhealthy.

    `sent`: the request may have reached it.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class NoServer(EngineUnavailable):
    """No server was up for as long as a request may wait for one."""


class NotThere(EngineError):
    """The server has no such model, or no such page."""


class ErrorBody(msgspec.Struct, frozen=True):
    """The error object of all three engines, as far as they agree."""

    message: str = ""
    code: int | str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    error: ErrorBody | str | None = None
    message: str = ""
    detail: object = None
    code: int | str | None = None


def refusal(server: str, status: int, body: bytes | str, retry_after: str | None = None) -> DovetailError:
    """The error for an answer with HTTP status `status`, or for an error event with that code in a stream.

    `retry_after`: the header of that name.
    """
    reason = message_of(body)
    if status in (401, 403):
        return EngineError(f"{server} does not accept the API key: --engine-api-key-file names the file that holds it")
    if status in (408, 429, 503):
        return busy(f"{server} accepts no more requests now: {reason}", status, seconds_of(retry_after))
    if status in (400, 413, 422) or (status == 500 and _PLACES.search(reason)):
        _log.info("%s refused a request with HTTP status %d: %s", server, status, reason)
        kind = ContextExceeded if _TOO_LONG.search(reason) else InvalidRequest
        return kind(f"the engine refused this: {redacted(reason)}")
    if status == 502:
        return EngineUnavailable(f"{server} is a proxy that cannot reach its engine: {reason}")
    if status == 504:
        return EngineTimeout(f"{server} is a proxy whose engine did not answer in time: {reason}")
    if status == 404:
        return NotThere(f"{server} does not serve this model, or is not an engine that Dovetail knows: {reason}")
    return EngineError(f"{server} failed with HTTP status {status}: {reason}")


def busy(message: str, status: int, retry_after: int | None) -> EngineBusy:
    """An `EngineBusy` with status 429 if that is `status`, else 503."""
    error = EngineBusy(message)
    error.status, error.retry_after = 429 if status == 429 else 503, retry_after
    return error


def seconds_of(retry_after: str | None) -> int | None:
    """The seconds of a Retry-After header, at most a day; None without one that can be read.

    It has seconds or a date (RFC 9110, 10.2.3).
    """
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdecimal():
        return min(int(text[:9]), _LONGEST_WAIT)
    try:
        seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(0, math.ceil(seconds)), _LONGEST_WAIT)


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
