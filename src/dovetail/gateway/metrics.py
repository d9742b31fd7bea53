"""What /metrics shows, and the only place that counts.

Labels have values from the code and never from a request, except for the names of tools, of which at most `_MOST_TOOLS`
become labels.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dovetail.errors import DovetailError, EngineBusy
from dovetail.events import Defect
from dovetail.formats.history import Repair
from dovetail.gateway.output import FinishReason, Step

Outcome = Literal["stop", "length", "tool_calls", "refused", "busy", "failed", "disconnected"]

_MOST_TOOLS = 64
_FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_INTER_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_REQUEST_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
#: The help text of an engine's own metrics, by name.
_ENGINE_HELP = {
    "up": "Whether the engine can complete anything now",
    "server_up": "Whether this server is up and in use",
    "resent_total": "Requests sent again because their server was lost before the first token",
    "waiting_for_server": "Requests that wait for a server to come back",
    "running": "Running requests",
    "waiting": "Requests that wait to run",
    "kv_cache_usage": "Share of the KV cache in use, from 0 to 1",
    "steps_total": "Steps of the engine",
    "drafts_total": "Verifications of draft tokens: one for each sequence and step with draft tokens",
    "restarts_total": "Restarts of the engine after it died",
    "free_blocks": "Blocks of the KV cache that no running request uses",
    "total_blocks": "Blocks of the KV cache",
    "preemptions_total": "Requests that gave their KV cache up to others, to be computed again later",
    "prompt_tokens_total": "Prompt tokens of requests that have started",
    "prompt_tokens_cached_total": "Prompt tokens found in the KV cache and not computed",
    "drafted_total": "Draft tokens verified",
    "accepted_total": "Draft tokens accepted",
    "forced_total": "Draft tokens verified that a grammar forced",
    "forced_accepted_total": "Draft tokens accepted that a grammar forced",
    "drafting_failures_total": "Steps in which the drafter failed; their requests continued without drafts",
    "drafted_per_position_total": "Draft tokens verified by their position in a step (the first is 0), by drafter, and "
    "by context (the lower end of a bucket, in tokens); without a sequence's last step, and without drafts that begin "
    "with forced tokens",
    "accepted_per_position_total": "Draft tokens accepted, by the same labels",
    "gate_decisions_total": "Decisions of the gate, one for each sequence and step, by reason (draft: as much as pays "
    "off; cost: nothing, because it does not pay off; context: nothing, at or above speculate_below_context; batch: "
    "nothing, above speculate_up_to_batch; request: nothing, because of its own limit or the rest of its max_tokens; "
    "probe: more or less than pays off, as a measurement)",
    "gate_draft_tokens": "Draft tokens that the gate chose last, per decoding sequence",
}


class Metrics:
    """The metrics of one app, in their own registry."""

    def __init__(self, engine_gauges: Callable[[], Mapping[str, float]]) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_EngineGauges(engine_gauges))
        responses = "HTTP responses on every path"
        self._responses = Counter("dovetail_http_responses", responses, ["status"], registry=registry)
        outcomes = "Chat completions by how they ended"
        self._requests = Counter("dovetail_chat_completions", outcomes, ["outcome"], registry=registry)
        self._duration = _histogram("dovetail_request_seconds", "Arrival to last token", _REQUEST_SECONDS, registry)
        first = "dovetail_time_to_first_token_seconds"
        self._first = _histogram(first, "Arrival to first token", _FIRST_TOKEN_SECONDS, registry)
        gap = "Time per token since the step before, observed once per step"
        self._gap = _histogram("dovetail_inter_token_seconds", gap, _INTER_TOKEN_SECONDS, registry)
        self._prompt = Counter("dovetail_prompt_tokens", "Prompt tokens", registry=registry)
        self._completion = Counter("dovetail_completion_tokens", "New tokens", registry=registry)
        self._steps = Counter("dovetail_completion_steps", "Engine steps, summed over sequences", registry=registry)
        self._drafted = Counter("dovetail_drafted_tokens", "Draft tokens verified", registry=registry)
        self._accepted = Counter("dovetail_accepted_tokens", "Draft tokens accepted", registry=registry)
        forced = "Draft tokens verified that a grammar forced"
        self._forced = Counter("dovetail_forced_tokens", forced, registry=registry)
        self._defects = Counter(
            "dovetail_defects",
            "Defects in outputs that the reader forgave, or that validation found",
            ["kind"],
            registry=registry,
        )
        calls = (
            f"Finished calls, by tool (other: unknown tools, and all but the first {_MOST_TOOLS} names) and by fault"
        )
        self._calls = Counter("dovetail_calls", calls, ["tool", "fault"], registry=registry)
        unseen = "Finished calls of attempts that were dropped for a retry, which no client has seen"
        self._dropped_calls = Counter("dovetail_dropped_calls", unseen, ["tool", "fault"], registry=registry)
        self._tools: set[str] = set()
        retries = "Retries of answers because of an invalid call"
        self._retries = Counter("dovetail_retries", retries, registry=registry)
        dropped = "New tokens of attempts that were dropped for a retry, which are not completion tokens"
        self._dropped = Counter("dovetail_dropped_tokens", dropped, registry=registry)
        self._repairs = Counter("dovetail_repairs", "Repairs of histories", ["kind"], registry=registry)

    def response(self, status: int) -> None:
        """Count an HTTP response."""
        self._responses.labels(str(status)).inc()

    def request(self) -> RequestMetrics:
        """The metrics of one chat completion, which starts now."""
        return RequestMetrics(self)

    def _tool(self, name: str | None) -> str:
        """The label for a tool of a request."""
        if name is not None and len(self._tools) < _MOST_TOOLS:
            self._tools.add(name)
        return name if name is not None and name in self._tools else "other"

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class RequestMetrics:
    """Counts one chat completion while it runs."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._arrived = time.perf_counter()
        self._last: dict[int, float] = {}  # choice -> time of its last step with tokens
        self._prompt = 0  # counted with the first step: a prompt that the engine refuses does not count
        self._finish: FinishReason = "stop"

    def prepared(self, prompt_tokens: int, repairs: Iterable[Repair]) -> None:
        """Count a turn that is ready to run."""
        self._prompt = prompt_tokens
        for repair in repairs:
            self._metrics._repairs.labels(repair.kind).inc()

    def step(self, step: Step) -> None:
        """Count a step of the turn."""
        metrics = self._metrics
        metrics._prompt.inc(self._prompt)
        self._prompt = 0
        if step.ids:
            now = time.perf_counter()
            if not self._last:
                metrics._first.observe(now - self._arrived)
            elif step.choice in self._last:
                metrics._gap.observe((now - self._last[step.choice]) / len(step.ids))
            self._last[step.choice] = now
            metrics._completion.inc(len(step.ids))
        metrics._steps.inc()
        if step.drafted:
            metrics._drafted.inc(step.drafted)
            metrics._accepted.inc(step.accepted)
            metrics._forced.inc(step.forced)
        for event in step.events:
            if isinstance(event, Defect):
                metrics._defects.labels(event.kind).inc()
        for call in (*step.calls, *step.dropped_calls):
            metrics._calls.labels(metrics._tool(call.tool), call.fault or "none").inc()
        for call in step.dropped_calls:
            metrics._dropped_calls.labels(metrics._tool(call.tool), call.fault or "none").inc()
        metrics._retries.inc(step.retries)
        metrics._dropped.inc(step.dropped_tokens)
        if step.choice == 0 and step.finish is not None:
            self._finish = step.finish

    def finished(self) -> None:
        """The response is complete. A request with several choices counts by the finish reason of the first."""
        self._end(self._finish)

    def failed(self, error: Exception) -> None:
        """The request ended with `error`."""
        if isinstance(error, EngineBusy):
            self._end("busy")
        elif isinstance(error, DovetailError) and error.status < 500:
            self._end("refused")
        else:
            self._end("failed")

    def disconnected(self) -> None:
        """The client disconnected."""
        self._end("disconnected")

    def _end(self, outcome: Outcome) -> None:
        self._metrics._requests.labels(outcome).inc()
        self._metrics._duration.observe(time.perf_counter() - self._arrived)


class _EngineGauges:
    """The engine's own metrics, read when /metrics is requested."""

    def __init__(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
        for name, value in sorted(self._gauges().items()):
            base, labels = _parsed(name)
            series = (base, frozenset(labels.items()))
            if series in seen:  # two names may be equal after `_parsed`, and a duplicate would make the page invalid
                continue
            seen.add(series)
            if base not in families:
                # Prometheus recognizes a counter by this ending.
                kind = CounterMetricFamily if base.endswith("_total") else GaugeMetricFamily
                families[base] = kind(f"dovetail_engine_{base}", _ENGINE_HELP.get(base, f"The engine's {base}"))
            families[base].add_sample(f"dovetail_engine_{base}", labels, value)
        return families.values()


_VALUE = r'"(?:[^"\\\n\ud800-\udfff]|\\[\\"n])*"'  # lone surrogates cannot be encoded
_LABEL = re.compile(rf"([a-zA-Z]\w*)=({_VALUE})", re.ASCII)  # not __: Prometheus' own
_LABELLED = re.compile(rf"(?P<name>[^{{]*)\{{(?P<labels>{_LABEL.pattern}(?:,{_LABEL.pattern})*)\}}", re.ASCII)
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def _parsed(name: str) -> tuple[str, dict[str, str]]:
    """A metric's name, in characters that Prometheus allows, and its labels.

    Labels are written as in https://prometheus.io/docs/instrumenting/exposition_formats/, without spaces. A name that
    does not match, or that has a label twice, has no labels.
    """
    match = _LABELLED.fullmatch(name)
    pairs = [] if match is None else _LABEL.findall(match["labels"])
    labels = {label: re.sub(r"\\.", lambda escape: _ESCAPES[escape[0]], quoted[1:-1]) for label, quoted in pairs}
    if match is not None and len(labels) == len(pairs):
        name = match["name"]
    else:
        labels = {}
    return re.sub(r"\W", "_", name, flags=re.ASCII), labels


def _histogram(name: str, help: str, buckets: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(name, help, buckets=buckets, registry=registry)
