"""The input of a custom call is the string in its arguments, however these are cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail.events import CallArguments, CallEnd, CallStart, Content, Event, fold
from dovetail.gateway.turn.custom_inputs import CustomInputs, InputDecoder
from dovetail.reading import MALFORMED

TEXTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('"\\\n\t\x00\x1f/u🌦')))
SPACES = st.text(st.sampled_from(" \t\r\n"), max_size=3)


def pieces(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    return [text[start:end] for start, end in pairwise(cuts)] or [text]


def decoded(parts: list[str]) -> str:
    decoder = InputDecoder()
    return "".join((*map(decoder.feed, parts), decoder.end()))


@given(TEXTS, st.booleans(), st.lists(SPACES, min_size=5, max_size=5), st.data())
def test_every_cut_of_the_arguments_gives_the_input(
    text: str, ascii_only: bool, spaces: list[str], data: st.DataObject
) -> None:
    a, b, c, d, e = spaces
    arguments = f'{a}{{{b}"input"{c}:{d}{json.dumps(text, ensure_ascii=ascii_only)}{e}}}'
    assert decoded(pieces(data, arguments)) == text == json.loads(arguments)["input"]


@given(st.one_of(TEXTS, st.text(st.sampled_from('{}"input: \n\\')).map(lambda text: '{"inp' + text)), st.data())
@example('{"input": 3}', None)
@example("{}", None)
@example('{"malformed', None)
@example('{"other": "x", "input": "y"}', None)
@example('{"input"', None)
@example('{"input": "cut \\ud83d', None)
@example('{"input": "cut \\', None)
@example("{" + " " * 2000 + '"input": "late"}', None)
def test_other_arguments_are_the_input_themselves_in_every_cut(arguments: str, data: st.DataObject | None) -> None:
    whole = decoded([arguments])
    assert decoded([*arguments]) == whole
    if data is not None:
        assert decoded(pieces(data, arguments)) == whole
    try:
        value: Any = json.loads(arguments)
    except ValueError:
        return
    if not isinstance(value, dict) or not isinstance(value.get("input"), str):
        assert whole == arguments


@given(TEXTS, st.data())
def test_the_text_of_a_call_that_cannot_be_read_is_the_input(text: str, data: st.DataObject) -> None:
    assert decoded(pieces(data, json.dumps({MALFORMED: text}))) == text


def test_a_cut_off_escape_is_kept_as_it_is() -> None:
    assert decoded(['{"input": "a\\n', "b\\"]) == "a\nb"
    assert decoded(['{"input": "a\\u00', ""]) == "a\\u00"


def test_only_calls_of_custom_tools_are_decoded() -> None:
    events: list[Event] = [
        Content("I will."),
        CallStart(0, "a", "run"),
        CallArguments(0, '{"input": "ls'),
        CallArguments(0, "\\n"),
        CallArguments(0, '"}'),
        CallEnd(0),
        CallStart(1, "b", "search"),
        CallArguments(1, '{"input": "ls\\n"}'),
        CallEnd(1),
        CallStart(2, "c", "run"),
        CallArguments(2, '{"inp'),
    ]
    whole = fold(CustomInputs(frozenset({"run"})).feed(events, last=True))
    inputs = CustomInputs(frozenset({"run"}))
    cut = [each for i, event in enumerate(events) for each in inputs.feed([event], last=i == len(events) - 1)]
    assert fold(cut) == whole
    assert [call.arguments for call in whole.calls] == ["ls\n", '{"input": "ls\\n"}', '{"inp']
    assert not any(isinstance(event, CallArguments) and not event.fragment for event in cut)


@pytest.mark.parametrize("arguments", ['{"input": "x", "more": "y"}', '{"input": "x"}  '])
def test_text_after_the_input_is_left_out(arguments: str) -> None:
    assert decoded([arguments]) == decoded([*arguments]) == "x"
