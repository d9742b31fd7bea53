"""What is known about one HTTP request, gathered while it runs, and where it goes: its access line, and its trace."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, get_args

import msgspec

from dovetail.completion import Sampling
from dovetail.gateway.turn.trace import Trace

#: The APIs that complete something, as metrics and access lines name them.
Api = Literal["chat", "responses", "messages", "completions"]
APIS: tuple[Api, ...] = get_args(Api)

Outcome = Literal["stop", "length", "tool_calls", "refused", "busy", "failed", "disconnected"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

#: A path or a model's name is the client's own text.
_LONGEST = 200
#: The status of a request whose client left before there was one, as nginx logs it.
_CLIENT_CLOSED = 499


class RequestReport(msgspec.Struct, kw_only=True, eq=False):
    """One request. Nothing here is text of a prompt or an answer, and nothing is a key.

    Times are of `time.perf_counter`, except for `began`, which is in seconds since the epoch. None: not known, or it
    did not come to that. `key` is the name of the client's key, `peer` the address of the client, `session` its header
    `X-Session-ID`. `error` is the type
    of the error that ended the request. All fields from `api` on belong to a turn.

    `finish`: the finish reason of each choice. `prepared`: when the prompt was ready. `admitted`: when the engine had a
    place. `first`, `last`: when the first and the last token came. `cached` and `drafted` are None until the engine
    reports them.
    """

    method: str
    path: str
    id: str
    peer: str
    scheme: str = "http"
    session: str = ""
    trace: Trace = msgspec.field(default_factory=Trace)
    began: float = msgspec.field(default_factory=time.time)
    arrived: float = msgspec.field(default_factory=time.perf_counter)
    ended: float | None = None
    key: str | None = None
    status: int | None = None
    error: str | None = None
    api: Api | None = None
    model: str | None = None
    streams: bool = False
    response_id: str | None = None
    sampling: Sampling | None = None
    max_tokens: int | None = None
    outcome: Outcome | None = None
    finish: dict[int, str] = {}
    choices: int = 0
    prepared: float | None = None
    admitted: float | None = None
    first: float | None = None
    last: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached: int | None = None
    drafted: int | None = None
    accepted: int = 0
    forced: int = 0
    steps: int = 0

    @property
    def finish_reasons(self) -> list[str]:
        """The finish reasons of the choices that have ended, in order."""
        return [self.finish[choice] for choice in sorted(self.finish)]

    @property
    def queue_s(self) -> float | None:
        """How many seconds the turn waited for a place in the engine."""
        until = self.ended if self.admitted is None else self.admitted
        return None if self.prepared is None or until is None else until - self.prepared

    @property
    def first_token_s(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first is None else self.first - self.arrived


def access_line(report: RequestReport) -> bytes:
    """The access line of `report`: one JSON object, without a line break, without bodies and without keys.

    Times are in seconds; what is not known is left out. `status` is 499 if the client left before the response began.
    """
    return msgspec.json.encode({name: value for name, value in _fields(report).items() if value is not None})


def _fields(report: RequestReport) -> dict[str, Any]:
    return {
        "time": datetime.fromtimestamp(report.began, UTC).isoformat(timespec="milliseconds"),
        "kind": "access",
        "method": report.method,
        "path": report.path[:_LONGEST],
        "status": _CLIENT_CLOSED if report.status is None else report.status,
        "request_id": report.id,
        "key": report.key,
        "peer": report.peer or None,
        "trace_id": report.trace.trace_id,
        "duration": _rounded(None if report.ended is None else report.ended - report.arrived),
        "error": report.error,
        **(_turn_fields(report) if report.api is not None else {}),
    }


def _turn_fields(report: RequestReport) -> dict[str, Any]:
    reasons = report.finish_reasons
    return {
        "api": report.api,
        "model": None if report.model is None else report.model[:_LONGEST],
        "stream": report.streams,
        "outcome": report.outcome,
        "finish_reason": reasons[0] if len(reasons) == 1 else reasons or None,
        "queue": _rounded(report.queue_s),
        "time_to_first_token": _rounded(report.first_token_s),
        "prompt_tokens": report.prompt_tokens,
        "completion_tokens": report.completion_tokens,
        "reasoning_tokens": report.reasoning_tokens,
        "cached_tokens": report.cached,
        "drafted": report.drafted,
        "accepted": None if report.drafted is None else report.accepted,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


class Tracer(Protocol):
    """Makes a trace of each request."""

    def begin(self, headers: Mapping[str, str]) -> Trace:
        """The trace of a request with these headers, which begins now."""

    def end(self, report: RequestReport) -> None:
        """Finish the trace of `report`."""

    def close(self) -> None:
        """Send what waits to be sent. Takes a few seconds at most."""
