"""The metrics pages of servers become our counters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.backends.remote.counters import translated
from dovetail.backends.remote.llama_cpp import LlamaCpp
from dovetail.backends.remote.sglang import SGLang
from dovetail.backends.remote.vllm import VLLM
from dovetail.completion import MetricSample

_VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 4.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf"} 7.0
vllm:iteration_tokens_total_count{engine="0"} 7.0
vllm:iteration_tokens_total_sum{engine="0"} 70.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
# TYPE vllm:spec_decode_num_draft_tokens_created gauge
vllm:spec_decode_num_draft_tokens_created{engine="0",model_name="m"} 1.7e9
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="many"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="9999"} 4.0
vllm:num_requests_waiting{engine="0"} NaN
"""


def test_vllm() -> None:
    assert translated(_VLLM, VLLM.table) == [
        MetricSample("running", {}, 5),
        MetricSample("kv_cache_usage", {}, 0.375),
        MetricSample("steps_total", {}, 7),
        MetricSample("drafted_total", {}, 30),
        MetricSample("accepted_per_position_total", {"position": "0"}, 10),
        MetricSample("accepted_per_position_total", {"position": "1"}, 4),
    ]


def test_sglang() -> None:
    page = b'sglang:num_running_reqs{model_name="m"} 1\nsglang:num_queue_reqs 2\nsglang:token_usage 0.5\n'
    assert translated(page, SGLang.table) == [
        MetricSample("running", {}, 1),
        MetricSample("waiting", {}, 2),
        MetricSample("kv_cache_usage", {}, 0.5),
    ]


def test_llama_cpp() -> None:
    page = b"llamacpp:requests_processing 1\nllamacpp:spec_decode_num_draft_tokens_total 10\n"
    assert translated(page, LlamaCpp.table) == [MetricSample("running", {}, 1), MetricSample("drafted_total", {}, 10)]


@given(st.binary(max_size=200))
def test_a_page_that_is_none_says_nothing_and_raises_nothing(page: bytes) -> None:
    assert translated(page, VLLM.table) == []
    translated(b"vllm:num_requests_running{" + page + b"\n", VLLM.table)
    assert translated(b"vllm:num_requests_running 1\nvllm:num_requests_waiting{{{ no\n", VLLM.table) == []


def test_a_number_of_any_length_is_no_position() -> None:
    page = b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%s"} 1\nvllm:num_requests_running 2\n'
    assert translated(page % (b"9" * 5000), VLLM.table) == [MetricSample("running", {}, 2)]


def test_only_requested_counters_are_parsed() -> None:
    others = b"vllm:e2e_request_latency_seconds_bucket{{{ this would not parse\n" * 1000
    assert translated(others + b"vllm:num_requests_running 2\n" + others, VLLM.table) == [
        MetricSample("running", {}, 2)
    ]
    assert translated(b"vllm:num_requests_running 2\n" * 5000, VLLM.table) == []
