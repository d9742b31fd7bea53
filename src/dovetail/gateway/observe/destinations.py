"""Where the reports of requests go: access lines, and traces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from dovetail.gateway.observe.access_log import access_line
from dovetail.gateway.observe.request_report import RequestReport
from dovetail.gateway.turn.trace import Trace, incoming_context


class Tracer(Protocol):
    """Makes a trace of each request."""

    def begin(self, headers: Mapping[str, str]) -> Trace:
        """The trace of a request with these headers, which begins now."""

    def end(self, report: RequestReport) -> None:
        """Finish the trace of `report`."""

    def close(self) -> None:
        """Send what waits to be sent. Takes a few seconds at most."""


class Telemetry(msgspec.Struct, frozen=True):
    """`write_line` takes each request's access line (None: there are none), `tracer` traces requests (None: nobody)."""

    write_line: Callable[[bytes], None] | None = None
    tracer: Tracer | None = None

    def begin(self, headers: Mapping[str, str], *, traced: bool) -> Trace:
        """The trace of a request. One that is not `traced` here has the context that it came with, for the engine."""
        if self.tracer is None or not traced:
            return Trace(incoming_context(headers))
        return self.tracer.begin(headers)

    async def close(self) -> None:
        """Send what waits to be sent."""
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)

    def end(self, report: RequestReport, *, traced: bool) -> None:
        """Report a request that has ended. `traced`: as for `begin`."""
        if self.tracer is not None and traced:
            self.tracer.end(report)
        if self.write_line is not None:
            self.write_line(access_line(report))
