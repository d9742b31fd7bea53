"""A server's page of metrics -> the names that the embedded engine has for the same."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families


class Counted(msgspec.Struct, frozen=True):
    """One of our numbers in a server's words: the sum of all its series, or their mean, or one for each value of the
    label `by`, which keeps its name."""

    name: str
    mean: bool = False
    by: str | None = None


#: Our names -> theirs.
Table = Mapping[str, Counted]

#: More values of one label than anything has positions: then it is something else.
_MOST_VALUES = 64
#: More series of ours than the largest deployment has; each costs 20 µs, in which nothing else is served.
_MOST_SERIES = 4096


def translated(page: bytes, table: Table) -> dict[str, float]:
    """What of `table` the page holds, in Prometheus' text format; nothing of what is none."""
    series: dict[str, list[tuple[dict[str, str], float]]] = {counted.name: [] for counted in table.values()}
    # A page has thousands of series, most of them histograms that nobody here asks for, and parsing is slow.
    begins = tuple(name.encode() for name in series)
    ours = [line for line in page.split(b"\n") if line.startswith(begins)]
    if len(ours) > _MOST_SERIES:
        return {}
    try:
        for family in text_string_to_metric_families(b"\n".join((*ours, b"")).decode(errors="replace")):
            for sample in family.samples:
                if sample.name in series and math.isfinite(sample.value):
                    series[sample.name].append((sample.labels, sample.value))
    except ValueError:
        return {}
    found: dict[str, float] = {}
    for name, counted in table.items():
        samples = series[counted.name]
        if counted.by is not None:
            found |= _apart(name, counted.by, samples)
        elif samples:
            total = sum(value for _, value in samples)
            found[name] = total / len(samples) if counted.mean else total
    return found


def _apart(ours: str, label: str, samples: list[tuple[dict[str, str], float]]) -> dict[str, float]:
    """One number for each value of the label, which must be a number itself."""
    found: dict[str, float] = {}
    for labels, value in samples:
        said = labels.get(label, "")
        # Its length first: int() raises for thousands of digits.
        if len(said) <= 2 and said.isdecimal() and int(said) < _MOST_VALUES:
            name = labelled(ours, **{label: said})
            found[name] = found.get(name, 0) + value
    return found


def labelled(name: str, **labels: str) -> str:
    """`name` with `labels` (their values have nothing to escape) added to those it has, in Prometheus' notation."""
    said = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name[:-1]},{said}}}" if name.endswith("}") else f"{name}{{{said}}}"
