"""What is known about one HTTP request, gathered while it runs: for metrics, its access line and its trace."""

from __future__ import annotations

import time
from typing import Literal, get_args

import msgspec

from dovetail.completion import Sampling
from dovetail.gateway.turn.trace import Trace

#: The APIs that complete something, as metrics and access lines name them.
Api = Literal["chat", "responses", "messages", "completions"]
APIS: tuple[Api, ...] = get_args(Api)

Outcome = Literal["stop", "length", "tool_calls", "refused", "busy", "failed", "disconnected"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class RequestReport(msgspec.Struct, kw_only=True, eq=False):
    """One request. Nothing here is text of a prompt or an answer, and nothing is a key.

    Times are of `time.perf_counter`, except for `began`, which is in seconds since the epoch. None: not known, or it
    did not come to that. `key` is the name of the client's key, `peer` the address of the client. `error` is the type
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
