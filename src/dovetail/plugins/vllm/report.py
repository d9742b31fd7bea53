"""What the gate inside vLLM decides, for people: a line of the log when it closes or opens, and counters.

The scheduler lives in a process of its own, and vLLM's /metrics shows what other processes count only where all of them
were started with PROMETHEUS_MULTIPROC_DIR naming one empty folder.
"""

from __future__ import annotations

import functools
import logging
import time
from typing import Any

from prometheus_client import Counter, Gauge

from dovetail.gate import Limits
from dovetail.plugins.vllm.stepgate import StepGate

_log = logging.getLogger("vllm.dovetail")
# Seconds between two lines of the log at least, and between two looks at the counters.
_PAUSE, _LOOK = 1.0, 0.5
# A change is one when so many steps were alike: what is tried for a moment is none.
_STEPS = 10
_DECISIONS = 'gate_decisions_total{reason="'


@functools.cache  # a name can be registered once in a process
def _metrics() -> tuple[Any, Any]:
    decisions = Counter(
        "dovetail:gate_decisions", "By step and sequence, why it is drafted for or not.", ["engine", "reason"]
    )
    drafts = Gauge(
        "dovetail:gate_draft_tokens",
        "Drafts that the latest step ends with, for whoever has most.",
        ["engine"],
        multiprocess_mode="mostrecent",
    )
    return decisions, drafts


class Report:
    """Looks at `gate` after every step; `engine` is the rank's number, as in vLLM's own metrics."""

    def __init__(self, gate: StepGate, limits: Limits, engine: str) -> None:
        self._gate = gate
        self._limits = limits
        self._engine = engine
        self._counted: dict[str, float] = {}
        self._looked = self._said = 0.0
        self._open = True
        self._other = 0

    def step(self, *, last: bool) -> None:
        """A step is done; `last`: there may be no other for a while."""
        now, is_open = time.monotonic(), self._gate.depth > 0
        self._other = self._other + 1 if is_open != self._open and self._gate.names else 0
        if self._other >= _STEPS and now - self._said > _PAUSE:
            self._open, self._said, self._other = is_open, now, 0
            _log.info("gate %s", self._words())
        if last or now - self._looked > _LOOK:
            self._looked = now
            self._count()

    def _words(self) -> str:
        batch, below = len(self._gate.names), self._limits.below_context
        if self._open:
            return f"open: up to {self._gate.depth} drafts a step for {batch} sequences"
        if self._limits.up_to_batch is not None and batch > self._limits.up_to_batch:
            return f"closed: {batch} sequences decode, and drafting is for up to {self._limits.up_to_batch}"
        if below is not None and self._gate.shortest >= below:
            return f"closed: all {batch} sequences have {below} tokens or more"
        return f"closed: drafting for {batch} sequences does not pay"

    def _count(self) -> None:
        decisions, drafts = _metrics()
        for name, count in self._gate.gate.counts("").items():
            if name.startswith(_DECISIONS):
                reason = name.removeprefix(_DECISIONS).removesuffix('"}')
                decisions.labels(self._engine, reason).inc(count - self._counted.get(reason, 0))
                self._counted[reason] = count
        drafts.labels(self._engine).set(self._gate.depth)
