"""Calls as JSON objects, in whatever order, spacing and shape; the envelope that `hermes` and others share."""

from __future__ import annotations

import functools
import json

import pytest

import dovetail
from dovetail.events import CallArguments, CallEnd, CallStart, Content, Defect, Event, Message
from dovetail.reading.json_string import StringDecoder, decode
from tests.reading import whole
from tests.reading.families import TOOLS, stream
from tests.reading.whole import calls, kinds

read = functools.partial(whole.read, "hermes")
CALL, CALL_END = "<tool_call>", "</tool_call>"


def block(body: str) -> str:
    return f"{CALL}\n{body}\n{CALL_END}"


MALFORMED = '{"a": "x\\n", "a": null, "malformed_arguments": "{\\"a\\": \\"x\\n"}'
ONE = [("ping", '{"a": 1}')]


@pytest.mark.parametrize(
    ("body", "expected", "defects"),
    [
        ('{"name": "ping", "arguments": {"a": 1}}', ONE, []),
        ('{"name":"ping","arguments":{"a": 1}}', ONE, []),
        ('\n {\n"name" :\t"ping"\n,\n"arguments"\n:\n{"a": 1}\n}\n', ONE, []),
        ('{"name": "ping", "parameters": {"a": 1}}', ONE, []),
        ('{"function": "ping", "arguments": {"a": 1}}', ONE, []),
        ('{"arguments": {"a": 1}, "name": "ping"}', ONE, []),
        ('{"type": "function", "function": {"name": "ping", "arguments": {"a": 1}}}', ONE, []),
        ('{"function": {"arguments": {"a": 1}, "name": "ping"}, "type": "function"}', ONE, []),
        ('{"name": "p\\u0069ng", "arguments": {"a": 1}}', ONE, []),
        ('{"name": " ping ", "arguments": {"a": 1}}', ONE, []),
        (
            '{"name": "ping", "arguments": {"a": {"b": [{}, "}"]}, "n": 9007199254740993.10}}',
            [("ping", '{"a": {"b": [{}, "}"]}, "n": 9007199254740993.10}')],
            [],
        ),
        ('{"name": "ping", "arguments": {"a": "\\u00e9 \\"x\\""}}', [("ping", '{"a": "\\u00e9 \\"x\\""}')], []),
        ('{"name": "ping", "arguments": "{\\"a\\": 1}"}', ONE, ["string_arguments"]),
        ('{"arguments": "{\\"a\\": 1}", "name": "ping"}', ONE, ["string_arguments"]),
        ('{"name": "ping", "arguments": \'{"a": 1}\'}', ONE, ["string_arguments"]),
        ('{"name": "ping", "arguments": ""}', [("ping", "{}")], ["string_arguments", "missing_arguments"]),
        ('{"name": "ping", "arguments": null}', [("ping", "{}")], ["missing_arguments"]),
        ('{"arguments": null, "name": "ping"}', [("ping", "{}")], ["missing_arguments"]),
        ('{"name": "ping", "arguments": }', [("ping", "{}")], ["missing_arguments"]),
        ('{"name": "ping"}', [("ping", "{}")], ["missing_arguments"]),
        ('{"name": "ping", "arguments": 5}', [("ping", '{"malformed_arguments": "5"}')], ["malformed_call"]),
        ("{'name': 'ping', 'arguments': {'a': True}}", [("ping", '{"a": true}')], ["python_value"]),
        ('{{"name": "ping", "arguments": {"a": 1}}}', ONE, ["stray_bracket"]),
        ('{"name": "ping", "arguments": {"a": 1}}}', ONE, ["stray_bracket"]),
        ('{"name": "ping", "arguments": {"a": 1}}]', ONE, ["stray_bracket"]),
        ('{"name": "ping", "arguments": {"a": 1}', ONE, ["missing_bracket"]),
        ('{"name": "ping", "arguments": {"a": 1', ONE, ["missing_bracket"]),
        ('{"name": "ping", "arguments": {"a": [{"b": 1', [("ping", '{"a": [{"b": 1}]}')], ["missing_bracket"]),
        ('{"name": "ping", ', [("ping", "{}")], ["missing_arguments"]),
        ('{"name": "ping", "arguments": ', [("ping", "{}")], ["missing_arguments"]),
        ('{"name": "ping", "arguments": {"a": "x', [("ping", MALFORMED)], ["unescaped_text", "malformed_call"]),
        ('{"name": "ping", "arguments": {"a": oops}}', [("ping", '{"a": "oops"}')], ["unquoted_value"]),
        ('{"name": "unheard", "arguments": {}}', [("unheard", "{}")], ["unknown_name"]),
        ('[{"name": "ping", "arguments": {"a": 1}}]', ONE, ["list_of_calls"]),
        (
            '[{"name": "ping", "arguments": {"a": 1}}, {"name": "ping", "arguments": {"a": 1}}]',
            ONE * 2,
            ["list_of_calls"],
        ),
        ('[{"name": "ping", "arguments": {"a": 1}}', ONE, ["list_of_calls", "missing_bracket"]),
        (
            '{"name": "ping", "arguments": {"a": 1}}\n{"name": "ping", "arguments": {"a": 1}}',
            ONE * 2,
            ["missing_call_end"],
        ),
        ("[]", [], ["list_of_calls", "empty_section"]),
        ("", [], ["empty_section"]),
    ],
)
def test_spellings_of_a_call_object(body: str, expected: list[tuple[str, str]], defects: list[str]) -> None:
    message = read(block(body))
    assert (calls(message), message.content, kinds(message)) == (expected, "", defects)


@pytest.mark.parametrize(
    "body",
    [
        "not json",
        "[not json]",
        '{"arguments": {"a": 1}}',
        '{"city": "Paris"}',
        '{"name": "", "arguments": {}}',
        '{"name": 5, "arguments": {}}',
        '{"name"} and more',
        '{name: "ping"}',
        '{"name',
        f'{{"{"k" * 3000}": 1}}',
        '{"name": "ping" oops}',
        '{"name": "ping", "argu',
    ],
)
def test_what_is_no_call_is_text(body: str) -> None:
    assert read(block(body)) == Message(content=block(body))


@pytest.mark.parametrize(
    ("body", "expected", "content", "defects"),
    [
        (
            '{"name": "ping", "arguments": {"a": 1}, "why": "because"}',
            ONE,
            '"why": "because"',
            ["extra_key"],
        ),
        ('{"why": 1, "name": "ping", "arguments": {"a": 1}}', ONE, '"why": 1', ["extra_key"]),
        ('{"name": "ping", "arguments": {"a": 1}, "arguments": 2}', ONE, '"arguments": 2', ["extra_key"]),
        ('{"name": "ping", "type": "x", "arguments": {"a": 1}}', ONE, '"type": "x"', ["extra_key"]),
        ('{"id": "a b", "name": "ping", "arguments": {"a": 1}}', ONE, '"id": "a b"', ["extra_key"]),
        ('{"name": "ping", "arguments": {"a": 1} oops}', ONE, "oops}\n", ["missing_bracket", "text_in_section"]),
        ('{"name": "ping", "arguments": {"a": 1}, "wh', ONE, '"wh\n', ["missing_bracket"]),
        ('{"name": "ping", "arguments": "{\\"a\\": 1} x"}', ONE, "x", ["string_arguments", "text_in_section"]),
        ('{"name": "ping", "arguments": {"a": 1}} so', ONE, "so\n", ["text_in_section"]),
    ],
)
def test_what_is_no_part_of_a_call_is_content(
    body: str, expected: list[tuple[str, str]], content: str, defects: list[str]
) -> None:
    message = read(block(body))
    assert (calls(message), message.content, kinds(message)) == (expected, content, defects)


def test_ids_in_the_text() -> None:
    body = '{"id": "abc123", "name": "ping", "arguments": {}}'
    assert [call.id for call in read(block(body)).calls] == ["abc123"]
    twice = read(block(body) * 2)
    assert [call.id for call in twice.calls] == ["abc123", "call_1"]
    assert kinds(twice) == ["duplicate_id"]
    late = read(block('{"name": "ping", "arguments": {}, "id": "abc123"}'))
    assert ([call.id for call in late.calls], late.defects) == (["call_0"], (Defect("late_id", "abc123"),))


def feed(text: str, *pieces: str) -> list[list[Event]]:
    reader = dovetail.format("hermes").reader(TOOLS)
    reader.feed(text)
    return [reader.feed(piece) for piece in pieces]


def test_a_call_starts_with_its_name_and_arguments_stream() -> None:
    assert feed(f'{CALL}\n{{"name": "pin', 'g"', ', "arguments": {"a": "', "so", "me <", "b\\", 'n"}', "}") == [
        [],
        [CallStart(0, "call_0", "ping"), CallArguments(0, '{"a": "')],
        [CallArguments(0, "so")],
        [CallArguments(0, "me ")],
        [CallArguments(0, "<b")],
        [CallArguments(0, '\\n"}')],
        [CallEnd(0)],
    ]


def test_arguments_that_come_first_wait_for_the_name() -> None:
    assert feed(f'{CALL}{{"arguments": {{"a": 1', '}, "name": "ping"', "}") == [
        [CallStart(0, "call_0", "ping"), CallArguments(0, '{"a": 1}')],
        [CallEnd(0)],
    ]


def test_a_string_of_arguments_streams_decoded() -> None:
    (_, *first), *rest = feed(
        f'{CALL}{{"name": "ping", "arguments":', ' "{\\"a\\":', ' \\"x', "\\", "\\", 'n\\"}"', "}"
    )
    assert first == [Defect("string_arguments", "call_0"), CallArguments(0, '{"a":')]
    assert rest == [[CallArguments(0, ' "x')], [], [], [CallArguments(0, '\\n"}')], [CallEnd(0)]]


@pytest.mark.parametrize(
    ("written", "decoded"),
    [
        (r"a\n\"\\\/\u00e9", 'a\n"\\/é'),
        (r"\ud83d\ude00!", "😀!"),
        (r"\ud83d!", r"\ud83d!"),
        (r"\ude00\ud83d\u0041", r"\ude00\ud83dA"),
        (r"\q\u12x", r"\q\u12x"),
        ("\\", "\\"),
        (r"\ud83d\u", r"\ud83d\u"),
    ],
)
def test_strings_are_decoded_as_they_come(written: str, decoded: str) -> None:
    decoder = StringDecoder()
    assert "".join(map(decoder.feed, written)) + decoder.end() == decoded == decode(written)


@pytest.mark.parametrize(
    ("text", "expected", "content", "defects"),
    [
        (f'{CALL}{{"name": "ping", "arguments": {{"a": "x', [("ping", '{"a": "x')], "", ["truncated_call"]),
        (f'{CALL}{{"name": "ping", "arguments": "{{\\"a\\": \\"x', [("ping", '{"a": "x')], "", ["string_arguments"]),
        (f'{CALL}{{"name": "ping", "argu', [("ping", "")], "", ["truncated_call"]),
        (f'{CALL}{{"name": "ping", "arguments"', [("ping", "")], "", ["truncated_call"]),
        (f'{CALL}{{"name": "ping", "arguments":', [("ping", "")], "", ["truncated_call"]),
        (f'{CALL}{{"name": "ping"', [("ping", "")], "", ["truncated_call"]),
        (f'{CALL}{{"name": "ping", "arguments": {{"a": 1}}', ONE, "", ["missing_bracket"]),
        (f'{CALL}{{"name": "ping", "arguments": {{"a": 1}}}}', ONE, "", ["missing_call_end"]),
    ],
)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_call_that_was_cut_off_is_not_completed(
    text: str, expected: list[tuple[str, str]], content: str, defects: list[str], reason: str
) -> None:
    message = read(text, reason=reason)
    assert (calls(message), message.content) == (expected, content)
    assert kinds(message) == [*defects, *(["truncated_call"] if "string_arguments" in defects else [])]
    ended = [e.index for e in stream("hermes", [text], reason) if isinstance(e, CallEnd)]
    assert ended == ([] if "truncated_call" in kinds(message) else [0])


def test_an_output_that_is_cut_off_in_a_name() -> None:
    text = f'{CALL}{{"name": "pi'
    assert read(text) == Message(text)
    assert read(text, reason="length") == Message(defects=(Defect("truncated_call", text),))


def test_an_empty_block_may_be_cut_by_length_only() -> None:
    assert kinds(read(CALL)) == ["empty_section"]
    assert kinds(read(CALL, reason="length")) == ["truncated_call"]


def test_cut_off_arguments_are_closed_on_request() -> None:
    message = read(f'{CALL}{{"name": "ping", "arguments": {{"a": "x', reason="length", repair_arguments=True)
    assert json.loads(message.calls[0].arguments) == {"a": "x"}
    assert kinds(message) == ["truncated_call", "repaired_arguments"]
    message = read(f'{CALL}{{"name": "ping", "arguments": {{"a": tru', reason="length", repair_arguments=True)
    assert (calls(message), kinds(message)) == ([("ping", '{"a": tru')], ["truncated_call"])


def test_a_string_for_a_number_stays_if_it_was_cut_off() -> None:
    """Nobody knows yet what number it holds."""
    text = f'{CALL}{{"name": "get_weather", "arguments": {{"days": "1'
    message = read(text, reason="length")
    assert (calls(message), kinds(message)) == ([("get_weather", '{"days": "1')], ["truncated_call"])
    message = read(text, reason="length", repair_arguments=True)
    assert calls(message) == [("get_weather", '{"days": "1"}')]


def test_arguments_that_lack_their_end_are_closed_on_request() -> None:
    text = block('{"name": "ping", "arguments": {"a": "x').replace("\n" + CALL_END, CALL_END)
    message = read(text, repair_arguments=True)
    assert (calls(message), kinds(message)) == ([("ping", '{"a": "x"}')], ["repaired_arguments"])
    assert kinds(read(text)) == ["malformed_call"]


@pytest.mark.parametrize("value", ["12", "tru", "'{"])
def test_text_in_place_of_arguments_stays_if_it_was_cut_off(value: str) -> None:
    message = read(f'{CALL}{{"name": "ping", "arguments": {value}', reason="length")
    assert (calls(message), kinds(message)) == ([("ping", value)], ["truncated_call"])


def test_a_marker_ends_a_string_that_does_not_go_on() -> None:
    """A string that goes on after it spells the marker: see `test_well_formed.py`."""
    for rest in ("\n", "x\n", '<tool_call>{"name": "ping"', '"x'):
        message = read(block('{"name": "ping", "arguments": {"a": "</tool_call>' + rest))
        assert json.loads(calls(message)[0][1])["a"] is None
        assert "malformed_call" in kinds(message)


def test_nothing_is_held_behind_an_ordinary_answer() -> None:
    reader = dovetail.format("llama3_json").reader(TOOLS)
    assert reader.feed(' {"na') == []
    assert reader.feed('me": "Ann", "a') == []
    assert reader.feed('ge": 3') == [Content(' {"name": "Ann", "age": '), Content("3")]
    assert reader.feed("}") == [Content("}")]


def test_other_words_for_arguments_may_be_parameters() -> None:
    parameters = {"type": "object", "properties": {"input": {"type": "object"}}}
    tools = [{"type": "function", "function": {"name": "ping", "parameters": parameters}}]
    message = read(block('{"name": "ping", "input": {"x": 1}}'), tools)
    assert (calls(message), kinds(message)) == ([("ping", '{"input": {"x": 1}}')], ["unwrapped_arguments"])
