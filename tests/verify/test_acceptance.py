"""How many drafts are accepted at each position, by the counts of Dovetail, SGLang and vLLM."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.answer import from_body
from dovetail.client.draft_counters import read
from dovetail.client.endpoint import Exchange
from dovetail.client.transport import Reply
from dovetail.verify.acceptance import Acceptance, added, between, of_answer
from dovetail.verify.outcome import Outcome
from dovetail.verify.probe import Companion
from dovetail.verify.report import results
from dovetail.verify.suites import Speculation
from tests.verify.harness import AppTransport, Only, endpoint, gateway, verified
from tests.verify.model import Model

#: What vLLM 0.32 prints with EAGLE-3 and three drafts a step, shortened; of two engines.
PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="demo"} 0.0
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="demo"} 11.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="demo"} 4.0
# HELP vllm:spec_decode_num_drafts_created Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="demo"} 1.7639142771931925e+09
# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="demo"} 33.0
# HELP vllm:spec_decode_num_accepted_tokens_total Number of accepted tokens.
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="demo"} 14.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="2"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="demo",position="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="demo",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="demo",position="2"} 1.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_created Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_created gauge
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="demo",position="0"} 1.7639142771932e+09
"""


def test_vllms_counters_are_read_and_engines_are_summed() -> None:
    assert read(PAGE) == [15, 12, 8, 3]


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html>not found</html>",
        "vllm:num_requests_running 0.0\n",
        "vllm:spec_decode_num_drafts_total{engine=0",
        "vllm:spec_decode_num_drafts_total nan\n",
        "vllm:spec_decode_num_drafts_total +Inf\n",
        "vllm:spec_decode_num_drafts_total 1.0\nvllm:spec_decode_num_accepted_tokens_per_pos_total 1.0\n",
    ],
)
def test_a_page_without_the_counters_has_none(page: str) -> None:
    assert read(page) is None


STEPS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@given(STEPS, st.data())
def test_readings_of_cases_side_by_side_count_each_step_once(steps: list[int], data: st.DataObject) -> None:
    """The oracle looks at the steps one by one: a step counts if a case was running."""
    times = st.tuples(st.integers(0, len(steps)), st.integers(0, len(steps))).map(sorted)
    cases = data.draw(st.lists(times, max_size=6))

    def reading(at: int) -> list[int]:
        return [at, *(sum(step > i for step in steps[:at]) for i in range(3))]

    seen = [step for at, step in enumerate(steps) if any(start <= at < end for start, end in cases)]
    got = between((reading(start), reading(end)) for start, end in cases)
    assert got.steps == len(seen) and got.tokens == sum(seen) + len(seen)
    assert [*got.accepted] == ([sum(step > i for step in seen) for i in range(3)] if seen else [])
    assert [*got.drafted] == ([len(seen)] * 3 if seen else [])


def test_counters_that_fell_or_cannot_be_are_left_out() -> None:
    assert between([([50, 20], [3, 1])]) == Acceptance()
    assert between([([5, 2], [8, 3]), ([6, 1, 1], [9, 2, 2])]) == Acceptance(3, 4, (3,), (1,))
    assert between([([0, 0], [2, 9])]) == Acceptance()


@given(STEPS)
def test_sglangs_histogram_and_dovetails_usage_count_the_same_steps(steps: list[int]) -> None:
    histogram = [steps.count(accepted) for accepted in range(max(steps) + 1)]
    details = {
        "spec_verify_ct": len(steps),
        "spec_num_proposed_drafts": 3 * len(steps),
        "spec_num_correct_drafts": sum(steps),
        "spec_correct_drafts_histogram": histogram,
    }
    usage = {"speculation": {"steps": len(steps)}, "completion_tokens": len(steps) + sum(steps)}
    sglang = of_answer(answered({"sglext": {"spec_tokens_details": details}}))
    dovetail = of_answer(answered({"usage": usage}))
    assert (dovetail.steps, dovetail.tokens) == (sglang.steps, sglang.tokens) and dovetail.accepted == ()
    assert sglang.accepted[0] == sum(step > 0 for step in steps) and added([sglang, sglang]).steps == 2 * len(steps)


def answered(fields: dict[str, Any]) -> Exchange:
    choices = [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]
    return Exchange({}, from_body(200, json.dumps({"choices": choices, "usage": {}, **fields}).encode()), "")


SGLANG = {"spec_verify_ct": 2, "spec_num_proposed_drafts": 6, "spec_correct_drafts_histogram": [1, 1]}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"usage": None},
        {"usage": {"speculation": "none", "completion_tokens": 1}},
        {"usage": {"speculation": {"steps": -1}, "completion_tokens": 1}},
        {"sglext": "none"},
        {"sglext": {"spec_tokens_details": SGLANG | {"spec_correct_drafts_histogram": None}}},
        {"sglext": {"spec_tokens_details": SGLANG | {"spec_correct_drafts_histogram": [0, 9]}}},
        {"sglext": {"spec_tokens_details": [SGLANG, SGLANG]}},
        {"sglext": {"spec_tokens_details": SGLANG | {"spec_verify_ct": 0}}},
    ],
)
def test_answers_that_count_nothing_or_what_cannot_be_have_no_acceptance(fields: dict[str, Any]) -> None:
    assert of_answer(answered(fields)) == Acceptance()


def test_positions_are_bounded() -> None:
    details = SGLANG | {"spec_num_proposed_drafts": 10**12}
    assert len(of_answer(answered({"sglext": {"spec_tokens_details": details}})).accepted) == 64


# -- in the suite ----------------------------------------------------------------------------------------------------


def uncounted(path: str, body: Any, reply: Reply) -> Reply:
    """As servers reply that do not count drafts in their usage."""
    return Reply(reply.status, reply.headers, reply.body.replace(b'"speculation"', b'"other"'))


class VllmTransport(AppTransport):
    """Dovetail's gateway with vLLM's /metrics, which counts the steps that the engine has done."""

    def __init__(self) -> None:
        super().__init__(gateway(), uncounted)
        self.steps = 0

    async def send(self, method: str, path: str, body: bytes | None) -> Reply:
        if path == "/metrics":
            page = PAGE.replace("} 11.0", f"}} {11 + 2 * self.steps}.0").replace("} 8.0", f"}} {8 + self.steps}.0")
            return Reply(200, {}, page.encode())
        self.steps += path == "/v1/chat/completions"
        return await super().send(method, path, body)


def figures(outcomes: list[Outcome], suite: Only) -> dict[str, Any]:
    return {name: (each.value, each.n) for name, each in results([suite], outcomes).suites[suite.name].figures.items()}


def beside(tested: Any) -> Speculation:
    return Speculation({tested: Companion(endpoint(AppTransport(gateway(Model((1,))))), "endpoint without drafter")})


def test_acceptance_of_vllm_is_what_its_counters_grow_by_in_the_suite() -> None:
    transport = VllmTransport()
    tested = endpoint(transport)
    suite = Only(beside(tested), "greedy/call-paris", "greedy/text")
    outcomes = verified(tested, suites=[suite])
    assert tested.features.counters and all(outcome.passed for outcome in outcomes)
    asked = len(outcomes)  # one answer with drafts each, and two steps each
    values = figures(outcomes, suite)
    assert values["accepted at position 1"] == (0.5, 2 * asked)
    assert values["accepted at position 2"] == values["accepted at position 3"] == (0, 2 * asked)
    assert values["tokens per step"] == (1.5, 2 * asked)


def test_a_page_that_is_gone_later_leaves_the_figures_out() -> None:
    transport = VllmTransport()
    tested = endpoint(transport)
    suite = Only(beside(tested), "greedy/text-1")
    pages = iter([PAGE])
    send = transport.send

    async def once(method: str, path: str, body: bytes | None) -> Reply:
        if path == "/metrics":
            page = next(pages, None)
            return Reply(200, {}, page.encode()) if page else Reply(429, {"retry-after": "999"}, b"")
        return await send(method, path, body)

    transport.send = once  # type: ignore[method-assign]
    (outcome,) = verified(tested, suites=[suite])
    assert outcome.passed and "counters" not in outcome.measures


def test_acceptance_of_sglang_is_what_its_answers_count() -> None:
    def counted(path: str, body: Any, reply: Reply) -> Reply:
        if path != "/v1/chat/completions" or not json.loads(body).get("return_spec_tokens_details"):
            return uncounted(path, body, reply)
        return Reply(200, reply.headers, json.dumps({**json.loads(reply.body), "sglext": sglext}).encode())

    sglext = {"spec_tokens_details": SGLANG}

    class Sglang(AppTransport):
        """Dovetail refuses fields that it does not know, which SGLang has."""

        async def send(self, method: str, path: str, body: bytes | None) -> Reply:
            fields = json.loads(body) if body else {}
            known = {name: each for name, each in fields.items() if name != "return_spec_tokens_details"}
            reply = await super().send(method, path, json.dumps(known).encode() if body else None)
            return counted(path, body, reply)

    tested = endpoint(Sglang(gateway()))
    suite = Only(beside(tested), "greedy/text-1", "greedy/text-2")
    outcomes = verified(tested, suites=[suite])
    assert all(outcome.passed for outcome in outcomes)
    values = figures(outcomes, suite)
    assert values["accepted at position 1"] == (0.5, 4) and values["accepted at position 3"] == (0, 4)
    assert values["tokens per step"] == (1.5, 4)
