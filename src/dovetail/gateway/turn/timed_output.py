"""An `OutputReader` that times itself, for a trace."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from dovetail.events import Event
from dovetail.gateway.turn.logprobs import ContentLogprob
from dovetail.gateway.turn.output import OutputReader
from dovetail.gateway.turn.trace import Trace
from dovetail.gateway.turn.validation import ValidatedCall


class TimedOutputReader(OutputReader):
    """Times the stages `parse` and `check`. A check of nothing is not one."""

    def __init__(self, trace: Trace, choice: int, *arguments: Any, **options: Any) -> None:
        super().__init__(choice, *arguments, **options)
        self._trace = trace

    def _read(self, ids: Sequence[int], logprobs: Sequence[ContentLogprob]) -> tuple[list[Event], int, int]:
        begin = time.perf_counter()
        try:
            return super()._read(ids, logprobs)
        finally:
            self._trace.add("parse", begin, time.perf_counter())

    async def _validated(
        self, events: list[Event], finish: Literal["stop", "length"] | None, stopped: bool
    ) -> tuple[list[Event], tuple[ValidatedCall, ...]]:
        begin = time.perf_counter()
        checked, calls = await super()._validated(events, finish, stopped)
        if calls or finish is not None:
            self._trace.add("check", begin, time.perf_counter())
        return checked, calls
