"""Histograms by API for /metrics, updated on the event loop only.

prometheus_client's own take a lock for each bucket and sum, which is several times the time of everything else that
counts a token (docs/decisions/0030-what-a-token-costs-to-count.md). Only its exposition is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from dovetail.gateway.observe.request_report import APIS, Api


class Histogram:
    """Counts of values up to each of `bounds`, which ascend, and above."""

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
