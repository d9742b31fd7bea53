"""Families whose answers are messages to recipients: Functionary's, Muse Glimmer's and Beam's."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.errors import InvalidRequest
from dovetail.events import Message
from dovetail.tokens import Prompt, Segment
from tests.reading.families import TOOLS, stream, tokenizer_of

PING = [("ping", "{}")]
WEATHER = [("get_weather", '{"city": "Paris"}')]


def read(
    name: str, text: str, *, thinking: bool = False, choice: str = "auto"
) -> tuple[str, str, list[tuple[str, str]], list[str]]:
    """Content, reasoning, calls and kinds of defects, in one piece and in pieces of one character."""
    fmt = dovetail.format(name)
    message = fmt.parse(text, TOOLS, thinking=thinking, tool_choice=choice)
    if choice == "auto":
        assert dovetail.fold(stream(name, list(text), thinking=thinking)) == message
    calls = [(call.name, call.arguments) for call in message.calls]
    return message.content, message.reasoning, calls, [defect.kind for defect in message.defects]


@pytest.mark.parametrize(
    ("text", "content", "calls", "defects"),
    [
        ("all\nHi", "Hi", [], []),
        ("ping\n{}>>>all\nHi", "Hi", PING, []),
        ("all\nHi>>>ping\n{}", "Hi", PING, []),
        ("all\n>>> print(1)\n1>>>ping\n{}", ">>> print(1)\n1", PING, []),
        ("all\n>>> ping\n{}", ">>> ping\n{}", [], []),
        ("all\na >>>>ping\n{}", "a >", PING, []),
        ("all\na>>>pong\n{}", "a>>>pong\n{}", [], []),
        ("all\na>>>", "a>>>", [], []),
        ("all", "all", [], ["text_outside_message"]),
        ("", "", [], []),
        ("Hi", "Hi", [], ["text_outside_message"]),
        (">>>ping\n{}", "", PING, ["stray_marker"]),
        (">>>Hi", ">>>Hi", [], []),
        ("all\na>>>>>>ping\n{}", "a", PING, ["stray_marker"]),
        (' get-weather \n{"city": "Paris"}', "", WEATHER, ["misspelled_name"]),
        ('get_weather{"city": "Paris"}', "", WEATHER, ["missing_separator"]),
        ("\n\nping\n{}", "", PING, []),
        ("\n Hi", "\n Hi", [], ["text_outside_message"]),
        ("pong\n{}", "", [("pong", "{}")], ["unknown_name"]),
        ("Dear all,\n{}", "Dear all,\n{}", [], ["text_outside_message"]),
        ("pong\nHi", "pong\nHi", [], ["text_outside_message"]),
        ("ping\n{} so>>>ping\n{}", "so", PING * 2, ["text_in_section"]),
        ("ping\n{}<|eot_id|>", "", PING, []),
    ],
)
def test_functionary(text: str, content: str, calls: list[tuple[str, str]], defects: list[str]) -> None:
    assert read("functionary", text) == (content, "", calls, defects)


def test_functionary_reads_no_json_behind_text_as_a_call() -> None:
    text = 'Look: {"name": "ping", "arguments": {}}'
    assert read("functionary", text)[:3] == (text, "", [])


def test_functionary_without_calls() -> None:
    assert read("functionary", "ping\n{}", choice="none")[:3] == ("ping\n{}", "", [])
    assert read("functionary", "all\na>>>ping\n{}", choice="none")[:3] == ("a>>>ping\n{}", "", [])


def test_a_tool_that_is_called_like_the_recipient_of_content() -> None:
    tool = {"type": "function", "function": {"name": "all"}}
    with pytest.raises(InvalidRequest, match="recipient of content") as caught:
        dovetail.format("functionary").grammar([tool])
    assert caught.value.param == "tools[0].function.name"


def section(name: str) -> str:
    return f'<atem:function_calls>\n<atem:invoke name="{name}">\n</atem:invoke>\n</atem:function_calls>'


SELF, USER, TO_PING, NEXT = (
    " to=self<|message|>",
    " to=user<|message|>",
    " to=ping<|message|>",
    "<|eom|><|start|>assistant",
)


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls", "defects"),
    [
        (f"{SELF}hm{NEXT}{USER}Hi<|eot|>", "Hi", "hm", [], []),
        (f"{USER}Hi{NEXT}{TO_PING}{section('ping')}<|eot|>", "Hi", "", PING, []),
        (f"{TO_PING}{section('ping')}{NEXT}{TO_PING}{section('ping')}", "", "", PING * 2, []),
        ("", "", "", [], []),
        ("Hi", "Hi", "", [], ["text_outside_message"]),
        (" assistant Hi", "assistant Hi", "", [], ["text_outside_message"]),
        ("<|message|>Hi", "Hi", "", [], ["missing_channel"]),
        (f"<|start|>assistant{USER}Hi", "Hi", "", [], ["stray_marker"]),
        (f"{USER}a<|eom|>{USER}b", "ab", "", [], ["missing_start"]),
        (f"{USER}a<|eom|><|eom|><|start|>assistant{USER}b", "ab", "", [], ["stray_marker"]),
        (f"{USER}a<|start|>assistant{USER}b", "ab", "", [], ["missing_message_end"]),
        (f"{USER}{section('ping')}", "", "", PING, ["missing_call_start"]),
        (f"{TO_PING}Hi", "Hi", "", [], ["call_without_arguments"]),
        (f"{TO_PING}{section('ping')}</atem:invoke>", "", "", PING, ["stray_marker"]),
        (f" to=pong<|message|>{section('ping')}", "", "", PING, ["unknown_channel"]),
        (" to=no one<|message|>Hi", "to=no oneHi", "", [], ["unknown_channel"]),
        (" to=\ue000user to=user<|message|>Hi", "to=\ue000user to=userHi", "", [], ["unknown_channel"]),
        (" to=ping<|message|>{}<|eot|>", "", "", PING, ["json_arguments"]),
        (" to=ping<|message|>{}", "", "", PING, ["json_arguments"]),
        (f" to=ping\n{section('ping')}", "", "", PING, ["missing_message"]),
        (f" to=ping<|message|><|message|>{section('ping')}", "", "", PING, ["stray_marker"]),
        (" to=me\nHi", "to=me\nHi", "", [], ["missing_message"]),
        (" to=me", "to=me", "", [], ["missing_message"]),
        (" to=" + "x" * 2000, "to=" + "x" * 2000, "", [], ["endless_header"]),
    ],
)
def test_muse(text: str, content: str, reasoning: str, calls: list[tuple[str, str]], defects: list[str]) -> None:
    assert read("muse", text) == (content, reasoning, calls, defects)


def test_muse_without_calls() -> None:
    text = section("ping")
    assert read("muse", TO_PING + text, choice="none") == (text, "", [], ["call_not_allowed"])


def test_muse_goes_on_with_reasoning() -> None:
    assert read("muse", f"hm{NEXT}{USER}Hi", thinking=True) == ("Hi", "hm", [], [])
    fmt = dovetail.format("muse")
    start, message = Segment("<|start|>", True), Segment("<|message|>", True)
    assert fmt.left_open(Prompt([start, Segment("assistant to=self", False), message, Segment("hm", False)]))
    assert not fmt.left_open(Prompt([start, Segment("assistant to=user", False), message]))
    assert not fmt.left_open(Prompt([start, Segment("assistant", False)]))
    assert fmt.reasoning_tags is None
    tokenizer = tokenizer_of("muse")
    assert fmt.reasoning_tokens(tokenizer) == (
        (*tokenizer.encode(" to=self"), tokenizer.control["<|message|>"]),
        (tokenizer.control["<|eom|>"],),
    )
    assert fmt.write(Message("Hi", "hm")).text == f"{SELF}hm{NEXT}{USER}Hi<|eot|>"


@pytest.mark.parametrize(
    "text",
    [
        "A message ends with `<|eom|>`, a turn with <|eot|>, and so on.",
        "After `<|message|>` comes text.",
        "Calls stand between `<atem:function_calls>` and `</atem:function_calls>`.",
        'It opens with <atem:function_calls>, then <atem:invoke name="ping">, I think.',
    ],
)
def test_what_muse_mentions_is_text(text: str) -> None:
    assert read("muse", f"{SELF}{text}{NEXT}{USER}{text}<|eot|>") == (text, text, [], [])


TYPED = "<|channel|>analysis <|constrain|>xml<|message|>"
CITY = '<rfl:parameter name="city">\nParis\n</rfl:parameter>'
TO_WEATHER, THEN = f" to=get_weather{TYPED}", "<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls", "defects"),
    [
        (f"<|channel|>analysis<|message|>hm{THEN}<|channel|>final<|message|>Hi<|return|>", "Hi", "hm", [], []),
        (f"<|channel|>final<|message|>Hi{THEN} to=ping{TYPED}<|call|>", "Hi", "", PING, []),
        (f"{TO_WEATHER}{CITY}{THEN}{TO_WEATHER}{CITY}<|end|>", "", "", WEATHER * 2, []),
        (f"\n{TO_WEATHER}{CITY}", "", "", WEATHER, []),
        ("Hi", "Hi", "", [], ["text_outside_message"]),
        (f"{TO_WEATHER}{CITY}<|return|>", "", "", WEATHER, ["missing_call_end"]),
        (f"{TO_WEATHER}{CITY}<|start|>assistant{TO_WEATHER}{CITY}", "", "", WEATHER * 2, ["missing_call_end"]),
        (f"{TO_WEATHER}{CITY}<|end|>{TO_WEATHER}{CITY}", "", "", WEATHER * 2, ["missing_start"]),
        (f" to=get_weather<|channel|>analysis <|constrain|>xml{CITY}<|call|>", "", "", WEATHER, ["missing_message"]),
        (f'{TO_WEATHER}{{"city": "Paris"}}<|call|>', "", "", WEATHER, ["json_arguments"]),
        (f'{TO_WEATHER}<rfl:invoke name="get_weather">{CITY}<|call|>', "", "", WEATHER, ["stray_marker"]),
        (f"{TO_WEATHER}<|message|>{CITY}<|call|>", "", "", WEATHER, ["stray_marker"]),
        (f"{TO_WEATHER}{CITY.removesuffix('</rfl:parameter>')}{CITY.replace('city', 'unit')}<|call|>", "", "",
         [("get_weather", '{"city": "Paris", "unit": "Paris"}')], ["missing_parameter_end"]),
        (f"{TO_WEATHER}in Paris<|end|>", "", "", [("get_weather", '{"malformed_arguments": "in Paris"}')],
         ["malformed_call"]),
        (" to=ping<|call|>", "", "", PING, ["missing_message", "missing_channel"]),
        (f"{TYPED}{CITY}<|call|>", "", CITY, [], ["missing_name"]),
    ],
)  # fmt: skip
def test_beam(text: str, content: str, reasoning: str, calls: list[tuple[str, str]], defects: list[str]) -> None:
    assert read("beam", text) == (content, reasoning, calls, defects)
