"""Which kind of text the tokens of a delta are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.bench.timing import sample
from dovetail.client.transport import Arrival, Reply


def streamed(*deltas: tuple[int | None, dict[str, Any]]) -> Arrival:
    """An answer whose deltas come 10 ms after one another, with the tokens so far."""
    body, pieces = b"", []
    for at, (counted, delta) in enumerate(deltas):
        usage = {} if counted is None else {"usage": {"prompt_tokens": 9, "completion_tokens": counted}}
        body += b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta}], **usage}).encode()
        pieces.append((at / 100, len(body)))
    total = deltas[-1][0] or len(deltas)
    body += b"data: %b\n\n" % json.dumps({"usage": {"prompt_tokens": 9, "completion_tokens": total}}).encode()
    return Arrival(Reply(200, {}, body), 0.0, (*pieces, (len(deltas) / 100, len(body))))


def call(arguments: str, name: str | None = None) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}}]}


def test_each_kind_has_its_deltas_and_tokens() -> None:
    arrival = streamed(
        (2, {"reasoning_content": "Hm"}),
        (5, {"reasoning_content": " so it is"}),
        (6, {"content": "Here"}),
        (9, call("", "get_weather")),
        (12, call('{"')),
        (13, call("city")),  # a key is a string, too
        (17, call('": "')),
        (19, call('São \\"Paulo')),
        (20, call('"}')),
    )
    assert sample(arrival).by_kind == {
        "reasoning": (1, 3),
        "prose": (1, 1),
        "structure": (4, 3 + 3 + 4 + 1),
        "strings": (2, 3),
    }


def test_without_usage_in_chunks_nothing_is_known() -> None:
    assert sample(streamed((None, {"content": "a"}), (None, {"content": "b"}))).by_kind == {}


@pytest.mark.parametrize("delta", [{}, {"content": None}, {"tool_calls": []}, {"tool_calls": [{"function": None}]}])
def test_a_delta_without_text_is_of_no_kind(delta: dict[str, Any]) -> None:
    assert sample(streamed((1, {"content": "a"}), (3, delta))).by_kind == {}


@given(st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)), st.data())
def test_any_cut_finds_the_characters_of_strings(value: Any, data: st.DataObject) -> None:
    """With a delta for each character, those in strings are as many as the strings have as JSON."""
    text = json.dumps(value)
    deltas = [(1, call("", "f")), *((i + 2, call(character)) for i, character in enumerate(text))]
    expected = sum(len(json.dumps(each)) - 2 for each in strings(value))
    assert sample(streamed(*deltas)).by_kind.get("strings", (0, 0))[0] == expected


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [each for key, inner in value.items() for each in (key, *strings(inner))]
    return []
