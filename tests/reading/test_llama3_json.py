"""`llama3_json`: the output is a call, or begins one with a tag."""

from __future__ import annotations

import functools

import pytest

import dovetail
from dovetail.events import Call, CallArguments, CallEnd, CallStart, Content, Message
from tests.reading import whole
from tests.reading.families import TOOLS
from tests.reading.whole import calls, kinds

read = functools.partial(whole.read, "llama3_json")
TAG, END = "<|python_tag|>", "<|eot_id|>"
PING = '{"name": "ping", "parameters": {}}'


@pytest.mark.parametrize(
    ("text", "count", "content", "defects"),
    [
        (PING + END, 1, "", []),
        (f"\n {PING}<|eom_id|>", 1, "", []),
        (f"{PING}; {PING}", 2, "", []),
        (f"{PING}, {PING}\n{PING}{PING}", 4, "", []),
        (f"{TAG}{PING};{PING}{END}", 2, "", []),
        (f"{TAG}{PING}{TAG}{PING}", 2, "", []),
        (f"Look. {TAG}{PING}", 1, "Look. ", []),
        (f"{PING} Done.", 1, " Done.", []),
        (f"{PING} Then {TAG}{PING}", 2, " Then ", []),
        (f"{PING}; x", 1, "; x", []),
        (f"{PING}, hello", 1, ", hello", []),
        (f"{PING}; ; ,,, hello", 1, "; ; ,,, hello", []),
        (f"{PING} ,\n{PING}", 2, "", []),
        (f"{PING}; [1, 2]", 1, "; [1, 2]", []),
        (f"{PING}; ]", 1, "; ]", []),
        (f"{PING}; {END}", 1, "; ", []),
        (f"{PING};{' ' * 17}{PING}", 1, f";{' ' * 17}{PING}", []),
        (f"{PING}<|eot|>", 1, "", []),
        (f"{TAG}{PING}<|eom|>", 1, "", []),
        (f"[{PING}]", 1, "", ["unmarked_call", "list_of_calls"]),
        (f"[{PING}], no", 0, f"[{PING}], no", []),
        (f"{TAG}[{PING}, {PING}]", 2, "", ["list_of_calls"]),
        (f"<think>hm</think>\n{PING}", 1, "", []),
        (f"<think>hm</think>\nno {PING}", 0, f"\nno {PING}", []),
        (f"Now {PING}", 0, f"Now {PING}", []),
        ('{"parameters": {}, "name": "unheard"}', 1, "", ["unknown_name"]),
        ('{"name": "unheard", "parameters": {}}', 1, "", ["unknown_name"]),
        ('{"type": "function", "function": {"name": "ping", "parameters": {}}}', 1, "", []),
        ('{"name": "ping", "why": 1, "parameters": {}}', 1, '"why": 1', ["extra_key"]),
        (PING[:-1], 1, "", ["missing_bracket"]),
        (f"{PING[:-1]}{TAG}{PING}", 2, "", ["missing_bracket"]),
        (f"{TAG}print()", 0, f"{TAG}print()", []),
        (f"{TAG}{END}", 0, "", ["empty_section"]),
    ],
)
def test_where_calls_may_stand(text: str, count: int, content: str, defects: list[str]) -> None:
    message = read(text)
    assert [arguments for _, arguments in calls(message)] == ["{}"] * count
    assert (message.content, kinds(message)) == (content, defects)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ann", "age": 3}',
        '{"name": "Ann"}',
        '{"name": "Ann", "name": "Bob"}',
        '{"type": "object", "name": "ping"}',
        '{"id": 3, "name": "ping", "parameters": {}}',
        '{"id": "a b", "name": "ping", "parameters": {}}',
        '{"parameters": {"a": 1}}',
        '{"parameters": {"a": 1',
        '{"name" so',
        '{"name": "ping',
        '{"city": "Paris", "name": "ping"}',
        '{"na',
        "{",
        "  {} ",
        "\n",
        "",
    ],
)
@pytest.mark.parametrize("end", ["", END])
def test_other_json_is_an_answer(text: str, end: str) -> None:
    assert read(text + end) == Message(text)


def test_a_call_of_a_known_tool_starts_with_its_name() -> None:
    reader = dovetail.format("llama3_json").reader(TOOLS)
    assert reader.feed('{"name": "ping"') == [CallStart(0, "call_0", "ping")]
    assert reader.feed(', "parameters": {"a": "b') == [CallArguments(0, '{"a": "b')]
    assert reader.feed('c"}') == [CallArguments(0, 'c"}')]
    assert reader.feed("}") == [CallEnd(0)]


def test_text_streams_at_once() -> None:
    reader = dovetail.format("llama3_json").reader(TOOLS)
    assert reader.feed("H") == [Content("H")]
    assert reader.feed("i <|") == [Content("i ")]


@pytest.mark.parametrize("before", ["", "{", '{"name"', '{"name":', PING, f"{PING};"])
def test_much_whitespace_is_not_waited_for(before: str) -> None:
    reader = dovetail.format("llama3_json").reader(TOOLS)
    reader.feed(f"{before}{' ' * 17}")
    assert reader.feed(" ") == [Content(" ")]
    assert read(f"{before}{' ' * 20}x").content == f"{before.removeprefix(PING)}{' ' * 20}x"


def test_written_messages() -> None:
    fmt = dovetail.format("llama3_json")
    two = (Call("call_0", "ping", "{}"), Call("call_1", "ping", "{}"))
    assert fmt.write(Message(calls=two)).text == f"{PING}; {PING}{END}"
    assert fmt.write(Message("Look.", "hm", two[:1])).text == f"<think>hm</think>Look.{TAG}{PING}{END}"
