"""Reports what the gate inside vLLM decides: a log line when it closes or opens, and Prometheus counters.

The scheduler runs in its own process. vLLM's /metrics shows its counters only if all processes were started with
PROMETHEUS_MULTIPROC_DIR, the name of one empty folder.
"""

from __future__ import annotations

import functools
import logging
import time
from typing import Any

from prometheus_client import Counter, Gauge

from dovetail.gate import Limits
from dovetail.plugins.vllm.step_gate import StepGate

_log = logging.getLogger("vllm.dovetail")
# The fewest seconds between two log lines, and between two updates of the counters.
_LOG_S, _COUNT_S = 1.0, 0.5
# Equal steps after which a change is logged, because the gate tries other numbers for a few steps.
_STEPS = 10


@functools.cache  # prometheus_client registers a name once in a process
def _metrics() -> tuple[Any, Any]:
    decisions = Counter(
        "dovetail:gate_decisions",
        "Decisions of the gate for each step and sequence, by reason.",
        ["engine", "reason"],
    )
    drafts = Gauge(
        "dovetail:gate_draft_tokens",
        "The most drafts that the latest step makes for one sequence.",
        ["engine"],
        multiprocess_mode="mostrecent",
    )
    return decisions, drafts


class GateReport:
    """Reports on `gate` after each step. `engine`: the number of the rank, as in vLLM's own metrics."""

    def __init__(self, gate: StepGate, limits: Limits, engine: str) -> None:
        self._gate = gate
        self._limits = limits
        self._engine = engine
        self._counts: dict[str, int] = {}
        self._counted_at = self._logged_at = 0.0
        self._open = True
        self._changed_steps = 0

    def step(self, *, last: bool) -> None:
        """A step is done. `last`: the engine is idle after it."""
        now, is_open = time.monotonic(), self._gate.depth > 0
        self._changed_steps = self._changed_steps + 1 if is_open != self._open and self._gate.names else 0
        if self._changed_steps >= _STEPS and now - self._logged_at > _LOG_S:
            self._open, self._logged_at, self._changed_steps = is_open, now, 0
            _log.info("gate %s", self._describe())
        if last or now - self._counted_at > _COUNT_S:
            self._counted_at = now
            self._count()

    def _describe(self) -> str:
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
        for reason, count in self._gate.gate.counts().decisions.items():
            decisions.labels(self._engine, reason).inc(count - self._counts.get(reason, 0))
            self._counts[reason] = count
        drafts.labels(self._engine).set(self._gate.depth)
