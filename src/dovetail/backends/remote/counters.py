"""Translates a server's Prometheus metrics to the names that the embedded engine uses."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from dovetail.completion import MetricSample


class Counted(msgspec.Struct, frozen=True):
    """The server's metric `name` for one of Dovetail's counters.

    The counter is the sum of all series of the metric, or their `mean`, or one number for each value of the label `by`.
    """

    name: str
    mean: bool = False
    by: str | None = None


#: Dovetail's names -> the server's metrics.
Table = Mapping[str, Counted]

#: The most values of a label; there are always fewer draft positions.
_MOST_VALUES = 64
#: The most series to read: more than the largest deployment has. Each blocks the event loop for 20 µs.
_MOST_SERIES = 4096


def translated(page: bytes, table: Table) -> list[MetricSample]:
    """The counters of `table` that the `page`, in Prometheus' text format, contains; none if it cannot be parsed."""
    series: dict[str, list[tuple[dict[str, str], float]]] = {counted.name: [] for counted in table.values()}
    # Parsing is slow, and most of a page's thousands of series are histograms that are not needed.
    prefixes = tuple(name.encode() for name in series)
    lines = [line for line in page.split(b"\n") if line.startswith(prefixes)]
    if len(lines) > _MOST_SERIES:
        return []
    try:
        for family in text_string_to_metric_families(b"\n".join((*lines, b"")).decode(errors="replace")):
            for sample in family.samples:
                if sample.name in series and math.isfinite(sample.value):
                    series[sample.name].append((sample.labels, sample.value))
    except ValueError:
        return []
    counters: list[MetricSample] = []
    for name, counted in table.items():
        samples = series[counted.name]
        if counted.by is not None:
            counters += _by_label(name, counted.by, samples)
        elif samples:
            total = sum(value for _, value in samples)
            counters.append(MetricSample(name, {}, total / len(samples) if counted.mean else total))
    return counters


def _by_label(counter: str, label: str, samples: list[tuple[dict[str, str], float]]) -> list[MetricSample]:
    """One number for each value of the label, which must be a number below `_MOST_VALUES`."""
    counters: dict[str, float] = {}
    for labels, value in samples:
        position = labels.get(label, "")
        # The length is checked first, because int() raises for thousands of digits.
        if len(position) <= 2 and position.isdecimal() and int(position) < _MOST_VALUES:
            counters[position] = counters.get(position, 0) + value
    return [MetricSample(counter, {label: position}, value) for position, value in counters.items()]
