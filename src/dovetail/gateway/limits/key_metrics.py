"""What /metrics shows about each named key. The labels are names of the operator's file, and never a key."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dovetail.gateway.limits.accounts import Keyring


class KeyMetrics:
    """The accounts of a keyring, read when /metrics is requested. A key that is gone is not shown."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def collect(self) -> Iterable[Metric]:
        responses = CounterMetricFamily("dovetail_key_responses", "HTTP responses by key", labels=["key", "status"])
        tokens = CounterMetricFamily("dovetail_key_tokens", "Tokens used by key", labels=["key", "kind"])
        refused = "Requests refused with 429, by key and by the limit that was reached"
        refusals = CounterMetricFamily("dovetail_key_refusals", refused, labels=["key", "limit"])
        running = GaugeMetricFamily("dovetail_key_running_requests", "Running requests by key", labels=["key"])
        for account in self._keyring.accounts:
            name = account.name
            for status, number in account.responses.items():
                responses.add_metric([name, f"{status}"], number)
            tokens.add_metric([name, "prompt"], account.prompt_tokens)
            tokens.add_metric([name, "completion"], account.completion_tokens)
            for limit, number in account.refusals.items():
                refusals.add_metric([name, limit], number)
            running.add_metric([name], account.running)
        return [responses, tokens, refusals, running]
