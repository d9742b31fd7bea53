"""Answers, whole and streamed: every fault of their shape is a sentence, and none stops the verifier."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.answer import from_body
from dovetail.client.stream import from_events

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def response(message: Any = None, finish: Any = "stop", usage: Any = USAGE, **fields: Any) -> Any:
    message = {"role": "assistant", "content": "x"} if message is None else message
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage, **fields}


def call(**changes: Any) -> Any:
    return {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, **changes}


def calls(*each: Any) -> Any:
    return response({"role": "assistant", "content": None, "tool_calls": list(each)}, "tool_calls")


def faults(body: Any) -> tuple[str, ...]:
    return from_body(200, json.dumps(body).encode()).faults


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ([], "the response is no JSON object"),
        ({}, "choices is not a list of one object"),
        ({"choices": [{}]}, "choices[0].message is no object"),
        (response({"role": "user", "content": ""}), "role is 'user'"),
        (response({"role": "assistant", "content": 3}), "content is no text: 3"),
        (response({"role": "assistant", "reasoning": 3}), "reasoning is no text"),
        (response({"role": "assistant", "tool_calls": {}}), "tool_calls is no list"),
        (calls(3), "tool_calls[0] has no function"),
        (calls(call(id=None)), "tool_calls[0].id is no text"),
        (calls(call(function={"name": "f", "arguments": {}})), "tool_calls[0].function.arguments is no text: {}"),
        (calls(call(type=None)), "tool_calls[0].type is None"),
        (calls(call(), call()), "two calls have the same id"),
        (calls(), "finish_reason is 'tool_calls' and there are no calls"),
        (response(finish="done"), "finish_reason is 'done'"),
        (response(usage=None), "there is no usage"),
        (response(usage={"prompt_tokens": 1}), "usage lacks one of its three counts"),
        (response(usage={**USAGE, "total_tokens": 9}), "1 + 2 is not 9"),
        (response(prompt_token_ids=[1, 2]), "usage.prompt_tokens is 1, and the prompt has 2 tokens"),
        (response({"role": "assistant", "dovetail": {"token_ids": [1]}}), "usage.completion_tokens is 2"),
        (response(usage={**USAGE, "completion_tokens_details": {"reasoning_tokens": 5}}), "5 tokens of reasoning"),
    ],
)
def test_a_fault_of_a_whole_answer_is_a_sentence(body: Any, fault: str) -> None:
    assert any(fault in each for each in faults(body)), faults(body)


def test_a_sound_answer_has_no_faults() -> None:
    assert faults(response()) == faults(calls(call(), call(id="b"))) == ()


@pytest.mark.parametrize(
    ("body", "error", "shape"),
    [
        (b'{"error": {"message": "no"}}', "400: no", True),
        (b'{"error": "no"}', '400: {"error": "no"}', False),
        (b"<html>", "400: <html>", False),
    ],
)
def test_a_refusal_has_its_words_and_whether_it_has_openais_shape(body: bytes, error: str, shape: bool) -> None:
    answer = from_body(400, body)
    assert (answer.error, answer.error_shape) == (error, shape)


def chunk(delta: Any, finish: Any = None, **fields: Any) -> Any:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}


def piece(index: Any, fragment: str = "", **first: Any) -> Any:
    function = {"arguments": fragment} | ({"name": first.pop("name")} if "name" in first else {})
    return {"tool_calls": [{"index": index, "function": function, **first}]}


def streamed(*chunks: Any, end: bool = True) -> Any:
    blocks = [f"data: {each if isinstance(each, str) else json.dumps(each)}\n\n" for each in chunks]
    return from_events("".join([*blocks, "data: [DONE]\n\n" if end else ""]).encode())


START = chunk(piece(0, id="a", name="f"))
END = chunk({}, "tool_calls", usage=USAGE)


@pytest.mark.parametrize(
    ("chunks", "fault"),
    [
        (["nonsense"], "an event is no JSON object: nonsense"),
        ([{"id": "c"}], "a chunk has no list of choices"),
        ([{"id": "c", "choices": [{}]}], "a choice has no delta"),
        ([{"id": "c", "choices": [{"index": 1, "delta": {}}]}], "a choice has the index 1"),
        ([chunk({"content": 3})], "content is no text: 3"),
        ([chunk({"tool_calls": [3]})], "a delta of a call has no function: 3"),
        ([chunk(piece(1, id="a", name="f"))], "a delta of a call has the index 1 after 0 calls"),
        ([chunk(piece("0", id="a", name="f"))], "a delta of a call has the index '0'"),
        ([chunk(piece(0, "{}"))], "the first delta of call 0 lacks its id or its name"),
        ([START, chunk(piece(1, id="b", name="f")), chunk(piece(0, "{}"))], "call 0 goes on after call 1 has begun"),
        ([START, chunk(piece(0, "{}", id="b"))], "the id of call 0 changes"),
        ([chunk({"tool_calls": {"a": 1}})], "tool_calls is no list"),
        ([chunk(piece(0, {}, id="a", name="f")), chunk(piece(0, 3))], "the arguments of a delta are no text: 3"),  # type: ignore[arg-type]
        ([chunk({}, "stop"), chunk({"content": "x"})], "a delta comes after the finish_reason"),
        ([chunk({}, "stop"), chunk({}, "stop")], "there are two finish_reasons"),
        ([chunk({}, "stop"), {**chunk({}), "id": "d"}], "the chunks have several ids"),
        (["[DONE]", chunk({})], "an event comes after [DONE]"),
    ],
)
def test_a_fault_of_a_stream_is_a_sentence(chunks: list[Any], fault: str) -> None:
    answer = streamed(*chunks)
    assert any(fault in each for each in answer.faults), answer.faults


def test_a_sound_stream_is_its_whole_answer() -> None:
    answer = streamed(
        chunk({"role": "assistant", "content": ""}), START, chunk(piece(0, '{"a"')), chunk(piece(0, ":1}")), END
    )
    whole = from_body(200, json.dumps(calls(call(function={"name": "f", "arguments": '{"a":1}'}))).encode())
    assert answer.faults == ()
    assert (answer.message, answer.finish, answer.usage) == (whole.message, whole.finish, whole.usage)


def test_an_error_within_a_stream_is_the_answers_error() -> None:
    assert streamed({"error": {"message": "lost"}}, end=False).error == "lost"
    assert streamed({"error": "lost"}, end=False).error == "lost"
    assert "the stream does not end with [DONE]" in streamed(chunk({}, "stop"), end=False).faults


FIELDS = """id choices index delta message content tool_calls function name arguments finish_reason usage error role
dovetail token_ids prompt_tokens completion_tokens total_tokens completion_tokens_details reasoning"""
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["", "x", "stop"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS.split()),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(st.lists(json_values, max_size=4))
def test_no_response_stops_the_verifier(values: list[Any]) -> None:
    streamed(*values)
    for value in values:
        from_body(200, json.dumps(value).encode())
        from_body(400, json.dumps(value).encode())
