"""`metrics.speculative_decoding` in vLLM's shape: the figures of a request's own steps, on request."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.completion import EngineInfo
from dovetail.gateway.apis.speculation_metrics import Drafts, speculative_decoding
from dovetail.tokens import Tokenizer
from tests.demo_server import demo_server
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, in_process

pytestmark = pytest.mark.anyio

STEP = st.integers(0, 5).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))


@given(st.lists(STEP, max_size=30))
def test_the_figures_are_those_of_the_steps(steps: list[tuple[int, int]]) -> None:
    figures = msgspec.to_builtins(speculative_decoding([Drafts(*step) for step in steps], 5, detailed=True))
    drafting = [(drafted, accepted) for drafted, accepted in steps if drafted]
    assert figures["per_step_drafted"] == [drafted for drafted, _ in drafting]
    assert figures["per_step_accepted"] == [accepted for _, accepted in drafting]
    assert figures["num_spec_steps"] == len(drafting) == sum(figures["acceptance_histogram"])
    assert figures["num_draft_tokens"] == sum(drafted for drafted, _ in drafting)
    assert figures["num_accepted_draft_tokens"] == sum(accepted for _, accepted in drafting)
    for accepted in range(6):
        assert figures["acceptance_histogram"][accepted] == sum(each == accepted for _, each in drafting)
    rows = figures["acceptance_histogram_by_draft_length"]
    assert set(rows) == {str(drafted) for drafted, _ in drafting}
    for length, row in rows.items():
        assert row == [drafting.count((int(length), accepted)) for accepted in range(int(length) + 1)]
    if drafting:
        assert figures["mean_acceptance_length"] == 1 + figures["num_accepted_draft_tokens"] / len(drafting)
        assert figures["draft_acceptance_rate"] == figures["num_accepted_draft_tokens"] / figures["num_draft_tokens"]
    else:
        assert (figures["mean_acceptance_length"], figures["draft_acceptance_rate"]) == (1, 0)
    assert figures["num_spec_tokens"] == 5


CHAT = ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
RAW = ("/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 100})


@pytest.mark.parametrize(("path", "body"), [CHAT, RAW])
@pytest.mark.parametrize("level", ["summary", "detailed"])
async def test_a_response_has_them_on_request_streamed_and_whole(
    engine: ScriptedEngine, tok: Tokenizer, path: str, body: dict[str, Any], level: str
) -> None:
    engine.ids, engine.sizes = tuple(tok.encode("user asks for the weather")), (3, 1)
    asking = body | {"dovetail": {"metrics": level}}
    async with in_process(engine, tok) as client:
        whole = (await client.post(path, json=asking)).json()
        streaming = asking | {"stream": True, "stream_options": {"include_usage": True}}
        *events, _ = events_of((await client.post(path, json=streaming)).text)
        without = (await client.post(path, json=body)).json()
        several = (await client.post(path, json=asking | {"n": 2})).json()
    figures = whole["metrics"]["speculative_decoding"]
    assert figures["num_draft_tokens"] == whole["usage"]["speculation"]["drafted"]
    assert figures["num_accepted_draft_tokens"] == whole["usage"]["speculation"]["accepted"] > 0
    assert figures["num_spec_steps"] == whole["usage"]["speculation"]["steps"]
    assert ("per_step_drafted" in figures) == (level == "detailed")
    assert events[-1]["choices"] == [] and events[-1]["metrics"] == whole["metrics"]
    assert not any("metrics" in event for event in events[:-1])
    assert "metrics" not in without
    assert several["metrics"] == {"speculative_decoding": None}


@pytest.mark.parametrize("drafts", [0, 3])
async def test_an_engine_without_single_steps_or_drafts_has_none(
    engine: ScriptedEngine, tok: Tokenizer, drafts: int
) -> None:
    engine.ids = (5, 6)
    info = engine.info
    engine.info = EngineInfo(info.context, info.vocab_size, info.eos_ids, drafts, reports_steps=drafts == 0)
    path, body = RAW
    async with in_process(engine, tok) as client:
        answer = (await client.post(path, json=body | {"dovetail": {"metrics": "summary"}})).json()
    assert answer["metrics"] == {"speculative_decoding": None}


async def test_other_levels_are_refused(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok) as client:
        for path, body in (CHAT, RAW):
            answer = await client.post(path, json=body | {"dovetail": {"metrics": "all"}})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "dovetail.metrics")


def test_the_demo_reports_its_own_speculation() -> None:
    with demo_server() as url, httpx.Client(base_url=url, timeout=60) as client:
        body = {"model": "demo", "messages": [{"role": "user", "content": "Please get the weather for city Paris."}]}
        body |= {"dovetail": {"metrics": "detailed"}, "temperature": 0}
        answer = client.post("/v1/chat/completions", json=body).json()
    figures, usage = answer["metrics"]["speculative_decoding"], answer["usage"]["speculation"]
    assert (figures["num_draft_tokens"], figures["num_accepted_draft_tokens"]) == (usage["drafted"], usage["accepted"])
    assert 0 < figures["num_spec_steps"] <= usage["steps"] and figures["num_spec_tokens"] == 3
    assert sum(i * n for i, n in enumerate(figures["acceptance_histogram"])) == usage["accepted"]
