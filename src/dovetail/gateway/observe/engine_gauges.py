"""The engine's own metrics, as a collector of prometheus_client."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dovetail.completion import MetricSample

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
