"""The access line of a request: one JSON object, without bodies and without keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from dovetail.gateway.observe.request_report import RequestReport

#: A path or a model's name is the client's own text.
_LONGEST = 200
#: The status of a request whose client left before there was one, as nginx logs it.
_CLIENT_CLOSED = 499


def access_line(report: RequestReport) -> bytes:
    """The line of `report`, without a line break. Times are in seconds; what is not known is left out.

    `status` is 499 if the client left before the response began.
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
