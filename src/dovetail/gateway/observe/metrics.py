"""What /metrics shows, and the only place that counts.

Labels have values from the code and the operator and never from a request, except for the names of tools where the
operator wants them, of which at most `_MOST_TOOLS` become labels.
"""

from __future__ import annotations

import itertools
import re
import time
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from starlette.requests import ClientDisconnect

from dovetail.completion import MetricSample
from dovetail.errors import DovetailError, EngineBusy
from dovetail.events import Defect
from dovetail.gateway.observe.request_report import APIS, OUTCOMES, Api, Outcome, RequestReport
from dovetail.gateway.turn.output import FinishReason, Step
from dovetail.gateway.turn.turn import Observer, PreparedTurn

_MOST_TOOLS = 64
#: The bounds of the histograms in seconds, by metric. A request waits at most 600 s for its turn, by default.
_SECONDS = {
    "queue": (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
    "time_to_first_token": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
    "inter_token": (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5),
    "request": (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800),
}
#: The counters of turns: the field of the report that each adds up, and its help text.
_TURN_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens"),
    "completion_tokens": ("completion_tokens", "New tokens"),
    "completion_steps": ("steps", "Engine steps, summed over sequences"),
    "cached_tokens": ("cached", "Prompt tokens that the engine found in its cache"),
    "reasoning_tokens": ("reasoning_tokens", "New tokens of reasoning"),
    "drafted_tokens": ("drafted", "Draft tokens verified"),
    "accepted_tokens": ("accepted", "Draft tokens accepted"),
    "forced_tokens": ("forced", "Draft tokens verified that a grammar forced"),
}


class Metrics:
    """The metrics of one app, and of its models, whose label `model` is their name. `tool_names`: show the names of
    tools."""

    def __init__(self, *, tool_names: bool = False) -> None:
        self._tool_names = tool_names
        self._registry = CollectorRegistry()
        self._models: dict[str, ModelMetrics] = {}
        responses = "HTTP responses on every path"
        self._responses = Counter("dovetail_http_responses", responses, ["status"], registry=self._registry)
        self._registry.register(self)

    def of(self, model: str, engine_gauges: Callable[[], Iterable[MetricSample]]) -> ModelMetrics:
        """The metrics of a model, which go on if it is removed and comes again. `engine_gauges`: its engine's."""
        if model not in self._models:
            self._models[model] = ModelMetrics(engine_gauges, tool_names=self._tool_names)
        return self._models[model]

    def collect(self) -> Iterable[Metric]:
        """What the models count, with their names."""
        families: dict[str, Metric] = {}
        for model, metrics in [*self._models.items()]:
            for family in metrics.collect():
                all_models = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                labelled = (each._replace(labels={**each.labels, "model": model}) for each in family.samples)
                all_models.samples.extend(labelled)
        return families.values()

    def register(self, collector: Collector) -> None:
        """Show what `collector` collects, too."""
        self._registry.register(collector)

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Show what `read` returns when /metrics is requested."""
        Gauge(f"dovetail_{name}", help, registry=self._registry).set_function(read)

    def response(self, status: int) -> None:
        """Count an HTTP response."""
        self._responses.labels(str(status)).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class ModelMetrics:
    """The metrics of one model, in their own registry."""

    def __init__(self, engine_gauges: Callable[[], Iterable[MetricSample]], *, tool_names: bool = False) -> None:
        self._tool_names = tool_names
        self._registry = registry = CollectorRegistry()
        registry.register(EngineGauges(engine_gauges))
        outcomes = "Requests for an answer, by API and by how they ended"
        self._requests = Counter("dovetail_requests", outcomes, ["api", "outcome"], registry=registry)
        for api, outcome in itertools.product(APIS, OUTCOMES):  # at 0, so that a rate has something to begin with
            self._requests.labels(api, outcome)
        self._totals = _Totals()
        registry.register(self._totals)
        self._queue = self._histograms("queue", "Seconds that requests waited for a place in the engine")
        self._first = self._histograms("time_to_first_token", "Arrival to first token")
        self._gap = self._histograms("inter_token", "Time per token since the step before, observed once per step")
        self._duration = self._histograms("request", "Arrival to last token")
        self._defects = Counter(
            "dovetail_defects",
            "Defects in outputs that the reader forgave, or that validation found",
            ["kind"],
            registry=registry,
        )
        guarded = "Answers that would have ended without a word (silent) or were ended in a loop, by guard"
        self._guards = Counter("dovetail_guards", guarded, ["guard"], registry=registry)
        calls = (
            "Finished calls, by tool (other: unknown tools; declared: any tool of the request, or with --metrics-tools "
            f"the names of the first {_MOST_TOOLS}) and by fault"
        )
        self._calls = Counter("dovetail_calls", calls, ["tool", "fault"], registry=registry)
        self._tools: set[str] = set()
        lost = "Tokens of the last prompt and answer of a conversation that the next prompt does not begin with"
        self._lost = Counter("dovetail_prefix_tokens_lost", lost, ["cause"], registry=registry)
        self._repairs = Counter("dovetail_repairs", "Repairs of histories", ["kind"], registry=registry)

    def _histograms(self, name: str, help: str) -> HistogramsByApi:
        histograms = HistogramsByApi(f"dovetail_{name}_seconds", help, _SECONDS[name])
        self._registry.register(histograms)
        return histograms

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self._registry.collect()

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Show what `read` returns when /metrics is requested."""
        Gauge(f"dovetail_{name}", help, registry=self._registry).set_function(read)

    def request(self, api: Api, report: RequestReport) -> RequestMetrics:
        """The metrics of one request for an answer, which goes on into `report`."""
        return RequestMetrics(self, api, report)

    def _tool(self, name: str | None) -> str:
        """The label for a tool of a request. Names say what clients do, and /metrics needs no key."""
        if not self._tool_names:
            return "other" if name is None else "declared"
        if name is not None and len(self._tools) < _MOST_TOOLS:
            self._tools.add(name)
        return name if name is not None and name in self._tools else "other"


class _Totals:
    """What turns add up to. Those that run are added when /metrics is read, so that a token costs nothing here."""

    def __init__(self) -> None:
        self._ended: Counts[str] = Counts()
        self._running: set[RequestReport] = set()

    def begin(self, report: RequestReport) -> None:
        """Count `report` from now on."""
        self._running.add(report)

    def end(self, report: RequestReport) -> None:
        """`report` does not change any more."""
        self._running.discard(report)
        for name in _TURN_COUNTERS:
            self._ended[name] += _count(report, name)

    def collect(self) -> Iterable[Metric]:
        for name, (_, help) in _TURN_COUNTERS.items():
            total = self._ended[name] + sum(_count(report, name) for report in self._running)
            yield CounterMetricFamily(f"dovetail_{name}", help, value=total)


def _count(report: RequestReport, name: str) -> int:
    """What `report` adds to a counter. A prompt that the engine has refused does not count."""
    if not report.steps:
        return 0
    count: int = getattr(report, _TURN_COUNTERS[name][0]) or 0
    return count


class RequestMetrics(Observer):
    """Counts one request for an answer while it runs, in its report and in the metrics."""

    def __init__(self, metrics: ModelMetrics, api: Api, report: RequestReport) -> None:
        self._report = report
        self._api: Api = api
        report.api = api
        self._last: dict[int, float] = {}  # choice -> time of its last step with tokens
        self._finish: FinishReason = "stop"
        self.count_in(metrics)

    def count_in(self, metrics: ModelMetrics) -> None:
        """Count the request, which has not begun to run, as one of another model."""
        self._metrics = metrics
        self._first, self._gap = metrics._first[self._api], metrics._gap[self._api]

    def prepared(self, turn: PreparedTurn) -> None:
        """Count a turn that is ready to run."""
        report, request = self._report, turn.request
        report.prepared = time.perf_counter()
        self._metrics._totals.begin(report)
        report.prompt_tokens = turn.prompt_tokens
        report.response_id, report.sampling = turn.id, request.sampling
        report.max_tokens, report.choices = turn.max_tokens, len(turn.choices)
        for repair in turn.repairs:
            self._metrics._repairs.labels(repair.kind).inc()
        if turn.prefix is not None and turn.prefix.cause is not None:
            self._metrics._lost.labels(turn.prefix.cause).inc(turn.prefix.lost)

    def admitted(self) -> None:
        """The engine has a place for the turn."""
        report = self._report
        report.admitted = time.perf_counter()
        self._metrics._queue[self._api].observe(report.admitted - (report.prepared or report.admitted))

    def step(self, step: Step) -> None:
        """Count a step of the turn. Runs for every token: about a microsecond, see docs/decisions/0030."""
        report = self._report
        report.steps += 1
        if step.prompt_tokens is not None and report.steps == 1:
            report.prompt_tokens = step.prompt_tokens
        if step.ids:
            self._tokens(step, time.perf_counter())
        if step.drafted is not None:
            report.drafted = (report.drafted or 0) + step.drafted
            report.accepted += step.accepted
            report.forced += step.forced
        if step.cached is not None:
            report.cached = (report.cached or 0) + step.cached
        if step.events or step.calls:
            self._events(step)
        for guard in step.guards:
            self._metrics._guards.labels(guard).inc()
        if step.finish is not None:
            self._finished_choice(step)

    def _tokens(self, step: Step, now: float) -> None:
        report, choice, count = self._report, step.choice, len(step.ids)
        if report.first is None:
            report.first = now
            self._first.observe(now - report.arrived)
        elif choice in self._last:
            self._gap.observe((now - self._last[choice]) / count)
        self._last[choice] = report.last = now
        report.completion_tokens += count
        report.reasoning_tokens += step.reasoning_tokens

    def _events(self, step: Step) -> None:
        for event in step.events:
            if type(event) is Defect:
                self._metrics._defects.labels(event.kind).inc()
        for call in step.calls:
            self._metrics._calls.labels(self._metrics._tool(call.tool), call.fault or "none").inc()

    def _finished_choice(self, step: Step) -> None:
        report = self._report
        report.finish[step.choice] = str(step.finish)
        if step.choice == 0 and step.finish is not None:
            self._finish = step.finish

    def ended(self, error: BaseException | None) -> None:
        """Count the request. One with several choices counts by the finish reason of the first."""
        if error is None:
            self._end(self._finish)
            return
        self._report.error = type(error).__name__
        if isinstance(error, ClientDisconnect):
            self._end("disconnected")
        elif isinstance(error, EngineBusy):
            self._end("busy")
        elif isinstance(error, DovetailError) and error.status < 500:
            self._end("refused")
        else:
            self._end("failed")

    def _end(self, outcome: Outcome) -> None:
        report, metrics = self._report, self._metrics
        report.outcome, report.ended = outcome, time.perf_counter()
        if report.admitted is None and (waited := report.queue_s) is not None:
            metrics._queue[self._api].observe(waited)
        metrics._totals.end(report)
        metrics._requests.labels(self._api, outcome).inc()
        metrics._duration[self._api].observe(report.ended - report.arrived)


class Histogram:
    """Counts of values up to each of `bounds`, which ascend, and above. Updated on the event loop only.

    prometheus_client's own take a lock for each bucket and sum, which is several times the time of everything else that
    counts a token (docs/decisions/0030-what-a-token-costs-to-count.md). Only its exposition is used.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, api: Api) -> None:
        """Add this histogram to `family` under the label `api`."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        counts = list(accumulate(self._counts))
        family.add_metric([api], list(zip(names, map(float, counts), strict=True)), self._sum)


class HistogramsByApi:
    """A metric with a histogram for each API, as a collector of prometheus_client. Every API is there from the start,
    so that a rate has something to begin with."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self._name, self._help = name, help
        self._of_api = {api: Histogram(bounds) for api in APIS}

    def __getitem__(self, api: Api) -> Histogram:
        return self._of_api[api]

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=["api"])
        for api, histogram in self._of_api.items():
            histogram.add_to(family, api)
        return [family]


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


class EngineGauges:
    """The engine's own metrics, read when /metrics is requested."""

    def __init__(self, gauges: Callable[[], Iterable[MetricSample]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
        for sample in sorted(self._gauges(), key=lambda sample: (sample.name, sorted(sample.labels.items()))):
            name = re.sub(r"\W", "_", sample.name, flags=re.ASCII)
            labels = {label: _encodable(value) for label, value in sample.labels.items()}
            series = (name, frozenset(labels.items()))
            if series in seen:  # two may be equal with their characters replaced, and a duplicate is not valid
                continue
            seen.add(series)
            if name not in families:
                # Prometheus recognizes a counter by this ending.
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = kind(f"dovetail_engine_{name}", _ENGINE_HELP.get(name, f"The engine's {name}"))
            families[name].add_sample(f"dovetail_engine_{name}", labels, sample.value)
        return families.values()


def _encodable(text: str) -> str:
    """`text` without lone surrogates, which would make the whole page fail."""
    return text.encode(errors="replace").decode()
