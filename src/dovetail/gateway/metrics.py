"""What /metrics shows, and the only place that counts. Labels take values from the code, never from a request: but for
the names of tools, of which there are no more than `_MOST_TOOLS`."""

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
#: What an engine's own numbers are, where their names do not say.
_ENGINE_HELP = {
    "up": "Whether the engine can complete anything now",
    "server_up": "Whether this server of several answers, and is well",
    "resent_total": "Requests that were sent again, as their server was lost before a token came",
    "waiting_for_server": "Requests that wait for a server to come back",
    "running": "Requests that run",
    "waiting": "Requests that wait to run",
    "kv_cache_usage": "Share of the KV cache that is in use, from 0 to 1",
    "steps_total": "Steps of the engine",
    "drafts_total": "Sequences' steps with draft tokens, which steps of the engine have several of",
    "restarts_total": "Times that the engine was started again after it died",
    "free_blocks": "Blocks of KV cache that no running request holds",
    "total_blocks": "Blocks of KV cache",
    "preemptions_total": "Requests that gave their KV cache up to others, to be computed again",
    "prompt_tokens_total": "Tokens of prompts that were begun",
    "prompt_tokens_cached_total": "Of those, tokens found in the KV cache and not computed",
    "drafted_total": "Draft tokens verified",
    "accepted_total": "Draft tokens accepted",
    "forced_total": "Of the draft tokens verified, those that a grammar forced",
    "forced_accepted_total": "Of these, those accepted",
    "drafting_failures_total": "Steps in which the drafter failed, whose requests went on without drafts",
    "drafted_per_position_total": "Draft tokens verified, but for a sequence's last step and for those that begin with "
    "what a grammar forces, by their place among a step's drafts (the first is 0), by who drafted, and by context (a "
    "bucket's lower end, in tokens)",
    "accepted_per_position_total": "Of those, draft tokens accepted",
    "gate_decisions_total": "What sequences were allowed to draft in a step, by reason (draft: as much as pays; cost: "
    "nothing, as it does not pay; context: nothing, at or beyond speculate_below_context; batch: nothing, more "
    "sequences than speculate_up_to_batch; request: nothing, by its own cap or what is left of its max_tokens; probe: "
    "more or less than pays, to measure)",
    "gate_draft_tokens": "Draft tokens that the gate last chose, per decoding sequence",
}


class Metrics:
    """The counters of one app, in a registry of their own."""

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
        gap = "Time per token since the step before, one observation a step"
        self._gap = _histogram("dovetail_inter_token_seconds", gap, _INTER_TOKEN_SECONDS, registry)
        self._prompt = Counter("dovetail_prompt_tokens", "Prompt tokens", registry=registry)
        self._completion = Counter("dovetail_completion_tokens", "New tokens", registry=registry)
        self._steps = Counter("dovetail_completion_steps", "Engine steps, summed over sequences", registry=registry)
        self._drafted = Counter("dovetail_drafted_tokens", "Draft tokens verified", registry=registry)
        self._accepted = Counter("dovetail_accepted_tokens", "Draft tokens accepted", registry=registry)
        forced = "Of the draft tokens verified, those that a grammar forced"
        self._forced = Counter("dovetail_forced_tokens", forced, registry=registry)
        self._defects = Counter("dovetail_defects", "What outputs had to be forgiven", ["kind"], registry=registry)
        calls = "Finished calls, by tool (other: beyond so many names, or of no tool) and by what is wrong with them"
        self._calls = Counter("dovetail_calls", calls, ["tool", "fault"], registry=registry)
        unseen = "Of these, those of answers that were asked for again, which no client has seen"
        self._dropped_calls = Counter("dovetail_dropped_calls", unseen, ["tool", "fault"], registry=registry)
        self._tools: set[str] = set()
        retries = "Answers asked for again as a call was not valid"
        self._retries = Counter("dovetail_retries", retries, registry=registry)
        dropped = "New tokens of answers that were asked for again, which are no completion tokens"
        self._dropped = Counter("dovetail_dropped_tokens", dropped, registry=registry)
        self._repairs = Counter("dovetail_repairs", "What histories had to be mended", ["kind"], registry=registry)

    def response(self, status: int) -> None:
        self._responses.labels(str(status)).inc()

    def request(self) -> RequestMetrics:
        """Starts the clock of one chat completion."""
        return RequestMetrics(self)

    def _tool(self, name: str | None) -> str:
        """A label for one of a request's tools."""
        if name is not None and len(self._tools) < _MOST_TOOLS:
            self._tools.add(name)
        return name if name is not None and name in self._tools else "other"

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)


class RequestMetrics:
    """The counts of one chat completion, as it goes."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._arrived = time.perf_counter()
        self._last: dict[int, float] = {}  # of each choice
        self._prompt = 0  # until its first step: a prompt that the engine refuses does not count
        self._finish: FinishReason = "stop"

    def prepared(self, prompt_tokens: int, repairs: Iterable[Repair]) -> None:
        self._prompt = prompt_tokens
        for repair in repairs:
            self._metrics._repairs.labels(repair.kind).inc()

    def step(self, step: Step) -> None:
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
        """All is said; a request with several choices counts as its first."""
        self._end(self._finish)

    def failed(self, error: Exception) -> None:
        if isinstance(error, EngineBusy):
            self._end("busy")
        elif isinstance(error, DovetailError) and error.status < 500:
            self._end("refused")
        else:
            self._end("failed")

    def disconnected(self) -> None:
        self._end("disconnected")

    def _end(self, outcome: Outcome) -> None:
        self._metrics._requests.labels(outcome).inc()
        self._metrics._duration.observe(time.perf_counter() - self._arrived)


class _EngineGauges:
    """The engine's own numbers, read when someone looks."""

    def __init__(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
        for name, value in sorted(self._gauges().items()):
            base, labels = _read(name)
            series = (base, frozenset(labels.items()))
            if series in seen:  # two names that differ in what was replaced: one series twice is no page of metrics
                continue
            seen.add(series)
            if base not in families:
                # An engine counts too; Prometheus tells a counter by this ending.
                kind = CounterMetricFamily if base.endswith("_total") else GaugeMetricFamily
                families[base] = kind(f"dovetail_engine_{base}", _ENGINE_HELP.get(base, f"The engine's {base}"))
            families[base].add_sample(f"dovetail_engine_{base}", labels, value)
        return families.values()


_VALUE = r'"(?:[^"\\\n\ud800-\udfff]|\\[\\"n])*"'  # a lone surrogate cannot be encoded
_LABEL = re.compile(rf"([a-zA-Z]\w*)=({_VALUE})", re.ASCII)  # those that start with __ are Prometheus' own
_LABELLED = re.compile(rf"(?P<name>[^{{]*)\{{(?P<labels>{_LABEL.pattern}(?:,{_LABEL.pattern})*)\}}", re.ASCII)
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def _read(name: str) -> tuple[str, dict[str, str]]:
    """A number's name, in characters that Prometheus allows, and its labels.

    https://prometheus.io/docs/instrumenting/exposition_formats/ without spaces; what is written otherwise, or has a
    label twice, is all name.
    """
    match = _LABELLED.fullmatch(name)
    found = [] if match is None else _LABEL.findall(match["labels"])
    labels = {label: re.sub(r"\\.", lambda each: _ESCAPES[each[0]], said[1:-1]) for label, said in found}
    if match is not None and len(labels) == len(found):
        name = match["name"]
    else:
        labels = {}
    return re.sub(r"\W", "_", name, flags=re.ASCII), labels


def _histogram(name: str, help: str, buckets: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(name, help, buckets=buckets, registry=registry)
