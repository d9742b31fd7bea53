"""What one request records for its trace: when its stages ran, and the trace context that it came with.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Literal

import msgspec

#: The stages of a request, in the order in which they begin. `compile` makes the grammar.
StageName = Literal["repair", "render", "compile", "queue", "prefill", "decode", "parse", "check"]

_NONE: Mapping[str, str] = MappingProxyType({})
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
#: Longer states may be cut off, says the specification (3.3.1.5); this one is left out.
_LONGEST_STATE = 512


class Stage(msgspec.Struct):
    """When a stage first began and last ended, by `time.perf_counter`, and how many seconds it ran in between.

    `error` is the type of the exception that ended it.
    """

    begin: float
    end: float
    busy_s: float
    error: str | None = None


class Trace:
    """The trace of one request.

    `context`: the headers `traceparent` and `tracestate` for the engine. `traceresponse`: the header of that name for
    the client, if the request is traced here. `detailed`: whether stages that run for every token are timed too.
    """

    def __init__(
        self, context: Mapping[str, str] = _NONE, *, traceresponse: str | None = None, detailed: bool = False
    ) -> None:
        self.context = context
        self.traceresponse = traceresponse
        self.detailed = detailed
        self.stages: dict[StageName, Stage] = {}

    @property
    def trace_id(self) -> str | None:
        """The id of the trace in hexadecimal; None if there is none."""
        return self.context["traceparent"][3:35] if self.context else None

    @contextmanager
    def stage(self, name: StageName) -> Iterator[None]:
        """Time a part of the stage `name`."""
        begin, error = time.perf_counter(), None
        try:
            yield
        except Exception as exception:
            error = type(exception).__name__
            raise
        finally:
            self.add(name, begin, time.perf_counter(), error)

    def add(self, name: StageName, begin: float, end: float, error: str | None = None) -> None:
        """Add the time from `begin` to `end` to the stage `name`."""
        stage = self.stages.get(name)
        if stage is None:
            self.stages[name] = Stage(begin, end, end - begin, error)
        else:
            stage.end, stage.error = end, error
            stage.busy_s += end - begin


def incoming_context(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The trace context in a request's headers, to be passed on as it is; empty if there is no valid one."""
    parent = headers.get("traceparent", "")
    if not _TRACEPARENT.fullmatch(parent):
        return _NONE
    state = headers.get("tracestate", "")
    printable = state.isascii() and state.isprintable() and len(state) <= _LONGEST_STATE
    return {"traceparent": parent, **({"tracestate": state} if state and printable else {})}
