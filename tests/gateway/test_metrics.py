"""/metrics counts events, and clients cannot add labels to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dovetail.completion import MetricSample
from dovetail.events import Message
from dovetail.gate import Reason
from dovetail.gateway.observe.metrics import Metrics
from dovetail.gateway.observe.request_report import APIS, OUTCOMES
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def test_requests_tokens_drafts_and_defects_are_counted(engine: ScriptedEngine, tok: Tokenizer) -> None:
    ids = ids_of(Message(content="ok", reasoning="hm"), tok)
    engine.ids = (*ids[:-1], tok.control["</think>"], ids[-1])  # a stray marker: one defect
    engine.sizes = (3,)
    steps = -(-len(engine.ids) // 3)
    async with in_process(engine, tok) as client:
        for stream in (True, False):
            await client.post("/v1/chat/completions", json=BODY | {"stream": stream, "dovetail": {"strict": "off"}})
        await client.post("/v1/chat/completions", json=BODY | {"temperature": 3})
        for n in range(5):
            await client.post("/v1/chat/completions", json=BODY | {"model": f"m{n}"})
            await client.get(f"/nowhere/{n}")
        families = list(text_string_to_metric_families((await client.get("/metrics")).text))
    samples = {
        (s.name, *(value for key, value in s.labels.items() if key != "model")): s.value
        for f in families
        for s in f.samples
    }
    assert samples["dovetail_requests_total", "chat", "stop"] == 2
    assert samples["dovetail_requests_total", "chat", "refused"] == 6
    assert samples["dovetail_http_responses_total", "404"] == 10
    assert samples["dovetail_prompt_tokens_total",] == 2 * len(engine.seen[0].prompt)
    assert samples["dovetail_completion_tokens_total",] == 2 * len(engine.ids)
    assert samples["dovetail_completion_steps_total",] == 2 * steps
    assert samples["dovetail_drafted_tokens_total",] == 2 * 3 * steps
    assert samples["dovetail_accepted_tokens_total",] == 2 * (len(engine.ids) - steps)
    assert samples["dovetail_forced_tokens_total",] == 2 * steps
    assert samples["dovetail_time_to_first_token_seconds_count", "chat"] == 2
    assert samples["dovetail_inter_token_seconds_count", "chat"] == 2 * (steps - 1)
    assert samples["dovetail_defects_total", "stray_marker"] == 2
    assert samples["dovetail_engine_running",] == 0
    assert samples["dovetail_ready",] == 1
    assert samples["dovetail_engine_steps_total",] == 2 * steps
    assert {f.name: f.type for f in families}["dovetail_engine_steps"] == "counter"
    assert len({f.name for f in families}) == len(families)
    labels = {(key, value) for f in families for s in f.samples for key, value in s.labels.items() if key != "le"}
    assert labels == {
        ("model", MODEL),
        *(("outcome", outcome) for outcome in OUTCOMES),
        *(("status", status) for status in ("200", "400", "404")),
        ("kind", "stray_marker"),
        *(("api", api) for api in APIS),
    }


def page(gauges: Callable[[], list[MetricSample]]) -> bytes:
    """/metrics with an engine's metrics."""
    metrics = Metrics()
    metrics.of("m", gauges)
    return metrics.text()


def shown(*samples: MetricSample) -> list[str]:
    """The lines of /metrics for an engine's metrics, after Prometheus' own parser has accepted the page."""
    text = page(lambda: samples).decode()
    series = [
        (sample.name, frozenset(sample.labels.items()))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(series) == len(set(series))
    return [line for line in text.splitlines() if line.startswith("dovetail_engine")]


def test_engine_metrics_may_have_labels() -> None:
    labels = {"drafter": "eagle3", "context": "1024"}
    samples = [
        MetricSample("running", {}, 1),
        MetricSample("accepted_total", {}, 5),
        MetricSample("accepted_per_position_total", {"position": "1", **labels}, 2),
        MetricSample("accepted_per_position_total", {"position": "0", **labels}, 3),
        MetricSample("gate_decisions_total", {"reason": "cost"}, 7),
    ]
    assert shown(*samples) == [
        'dovetail_engine_accepted_per_position_total{context="1024",drafter="eagle3",model="m",position="0"} 3.0',
        'dovetail_engine_accepted_per_position_total{context="1024",drafter="eagle3",model="m",position="1"} 2.0',
        'dovetail_engine_accepted_total{model="m"} 5.0',
        'dovetail_engine_gate_decisions_total{model="m",reason="cost"} 7.0',
        'dovetail_engine_running{model="m"} 1.0',
    ]


def test_special_characters_in_labels_survive() -> None:
    [line] = shown(MetricSample("a_total", {"b": 'c"d\\e\nf{},=é'}, 1))
    assert line == r'dovetail_engine_a_total{b="c\"d\\e\nf{},=é",model="m"} 1.0'


def test_a_metric_may_have_series_with_and_without_labels() -> None:
    lines = shown(
        MetricSample("running", {}, 3),
        MetricSample("running", {"lora": "a"}, 1),
        MetricSample("running", {"rank": "0", "lora": "a"}, 2),
    )
    assert sorted(line.partition(" ")[2] for line in lines) == ["1.0", "2.0", "3.0"]


def test_names_that_become_equal_are_one_series() -> None:
    assert shown(MetricSample("a b", {}, 1), MetricSample("a:b", {}, 1)) == ['dovetail_engine_a_b{model="m"} 1.0']


TEXT = st.text(st.characters() | st.sampled_from('ab_{}="\\,\n\ud800'), max_size=20)
LABELS = st.dictionaries(st.sampled_from(["server", "position"]), TEXT)


@given(st.lists(st.builds(MetricSample, TEXT, LABELS, st.floats())))
def test_any_names_and_values_of_labels_give_a_valid_page(samples: list[MetricSample]) -> None:
    assert len(shown(*samples)) <= len(samples)


def test_every_metric_of_the_gate_has_a_description() -> None:
    names = ["drafted_per_position_total", "accepted_per_position_total", "gate_decisions_total"]
    names += ["gate_draft_tokens"]
    text = page(lambda: [MetricSample(name, {}, 0) for name in names]).decode()
    for name in names:
        line = next(line for line in text.splitlines() if line.startswith(f"# HELP dovetail_engine_{name} "))
        assert "The engine's" not in line
    for reason in get_args(Reason):
        assert f"{reason}:" in text
