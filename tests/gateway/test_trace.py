"""Trace contexts go on as they came, if they are well formed; stages add up their time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.gateway.turn.trace import Trace, incoming_context

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_valid_context_goes_on() -> None:
    headers = {"traceparent": VALID, "tracestate": "vendor=1,other=a:b"}
    assert incoming_context(headers) == headers
    assert Trace(incoming_context(headers)).trace_id == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    "parent",
    [
        "",
        VALID.upper(),
        VALID + "-more",
        VALID + "\n",
        "ff" + VALID[2:],
        VALID.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        VALID.replace("b7ad6b7169203331", "0" * 16),
        VALID[:-1],
        "١" + VALID[1:],
    ],
)
def test_a_malformed_context_does_not(parent: str) -> None:
    assert incoming_context({"traceparent": parent, "tracestate": "a=1"}) == {}
    assert Trace(incoming_context({"traceparent": parent})).trace_id is None


@pytest.mark.parametrize("state", ["", "a=\r\nx: y", "é=1", "a=" + "x" * 512])
def test_a_state_that_is_no_header_is_left_out(state: str) -> None:
    assert incoming_context({"traceparent": VALID, "tracestate": state}) == {"traceparent": VALID}


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=9))
def test_a_stage_lasts_from_its_first_part_to_its_last(parts: list[tuple[int, int]]) -> None:
    trace, now = Trace(), 0
    spans = []
    for pause, length in parts:
        spans.append((now + pause, now + pause + length))
        now = spans[-1][1]
        trace.add("parse", *spans[-1])
    stage = trace.stages["parse"]
    assert (stage.begin, stage.end) == (spans[0][0], spans[-1][1])
    assert stage.busy_s == sum(end - begin for begin, end in spans)


def test_a_stage_has_the_error_that_ended_it() -> None:
    trace = Trace()
    with pytest.raises(KeyError), trace.stage("render"):
        raise KeyError("x")
    assert trace.stages["render"].error == "KeyError"
