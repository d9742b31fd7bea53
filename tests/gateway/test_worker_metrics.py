"""The metrics of several workers as one page that Prometheus can read."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dovetail.gateway.observe.worker_metrics import merged


def page(requests: int) -> bytes:
    registry = CollectorRegistry()
    counter = Counter("requests", 'Requests with a "quoted" name', ["name"], registry=registry)
    counter.labels('a{b}"c" \\ d').inc(requests)
    Gauge("up", "Whether it is", registry=registry).set(1)
    Histogram("seconds", "Seconds", buckets=(1, 2), registry=registry).observe(requests)
    return generate_latest(registry)


def test_every_sample_has_its_worker_and_its_value() -> None:
    pages = {"0": page(1), "1": page(2), "2": None}
    families = list(text_string_to_metric_families(merged(pages).decode()))
    assert len({family.name for family in families}) == len(families), "samples of one metric stand together"
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }
    expected = {
        (sample.name, *sorted((sample.labels | {"worker": worker}).items())): sample.value
        for worker, text in pages.items()
        if text is not None
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    up = {("dovetail_worker_up", ("worker", worker)): float(text is not None) for worker, text in pages.items()}
    assert samples == expected | up
    assert {family.name: family.type for family in families if family.name == "requests"} == {"requests": "counter"}


def test_a_page_without_workers_has_none() -> None:
    assert next(iter(text_string_to_metric_families(merged({}).decode()))).samples == []
