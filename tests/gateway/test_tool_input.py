"""What a client parses of a call's arguments as they come is what the whole body has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jiter import from_json

from dovetail.gateway.apis.messages_blocks import ToolInput, begun_object
from tests.reading.families import cut, cuts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([1.5, -0.25, 1e30]) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)
JSONS = st.tuples(OBJECTS, st.sampled_from([None, 1]), st.booleans()).map(
    lambda drawn: json.dumps(drawn[0], indent=drawn[1], ensure_ascii=drawn[2])
)


def parsed(text: str) -> Any:
    """What Anthropic's SDK makes of the pieces so far."""
    return from_json(text.encode(), partial_mode=True) if text else {}


@given(JSONS, st.integers(min_value=0))
def test_a_beginning_is_the_object_that_clients_parse(text: str, end: int) -> None:
    beginning = text[: end % (len(text) + 1)]
    assert json.loads(begun_object(beginning)) == parsed(beginning)


@given(JSONS, cuts, st.text(max_size=3))
def test_arguments_come_through_in_any_pieces(text: str, places: list[int], rest: str) -> None:
    tool_input = ToolInput()
    pieces = [tool_input.feed(piece) for piece in cut(text, places)]
    assert "".join(pieces) + tool_input.end() == text
    assert json.loads(tool_input.json(ended=True)) == json.loads(text)


@given(st.one_of(JSONS, st.text('{}[]",:\\u0e-1.trn fals', max_size=30)), st.text(max_size=3), cuts)
def test_whatever_comes_can_be_parsed_at_every_moment(text: str, rest: str, places: list[int]) -> None:
    text += rest
    tool_input, together = ToolInput(), ToolInput()
    passed = ""
    for piece in cut(text, places):
        passed += tool_input.feed(piece)
        assert isinstance(parsed(passed), dict)
    assert passed == together.feed(text), "the split changed what is passed on"
    assert json.loads(tool_input.json(ended=False)) == parsed(passed)
    assert text.lstrip().startswith(passed)


@pytest.mark.parametrize(
    ("text", "passed", "value"),
    [
        ("", "", {}),
        ("null", "", {}),
        ("[1, 2]", "", {}),
        ("words", "", {}),
        ('{"a": 1, "b": tru', '{"a": 1, "b": tru', {"a": 1}),
        ('{"a": 1} and more', '{"a": 1} ', {"a": 1}),
        ('{"a": 12', '{"a": 12', {"a": 12}),
        ('{"a": 12.', '{"a": 12.', {}),
        ('{"a": bad, "b": 1}', '{"a": ', {}),
        ('{"a": "x", b: 1}', '{"a": "x", ', {"a": "x"}),
        ('{"a": {"b": [1, "two"], "c": "thr', '{"a": {"b": [1, "two"], "c": "thr', {"a": {"b": [1, "two"]}}),
        ('{"rm": "/tmp/a', '{"rm": "/tmp/a', {}),
        (" \n{", "{", {}),
    ],
)
def test_calls_that_do_not_end(text: str, passed: str, value: Any) -> None:
    tool_input = ToolInput()
    assert tool_input.feed(text) == passed
    assert tool_input.feed("") == ""
    assert json.loads(tool_input.json(ended=False)) == value


def test_a_long_number_comes_at_the_end_of_its_call() -> None:
    """It is longer than what is followed digit by digit."""
    tool_input = ToolInput()
    text = f'{{"n": {"7" * 100}, "m": 1}}'
    passed = tool_input.feed(text[:50]) + tool_input.feed(text[50:90]) + tool_input.feed(text[90:])
    assert text.startswith(passed) and len(passed) < 90
    assert passed + tool_input.end() == text
    assert tool_input.json(ended=True) == text
