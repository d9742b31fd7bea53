"""Classes of near-misses, each applied to every family: a call that can only mean one thing is read, with a Defect.

An output with one or two calls is written as the family writes it, and then spoiled by its class. Each is read as text,
in one piece and in short ones, and as tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

import dovetail
from dovetail.events import Call, Event, Message
from dovetail.reading.nested_tags import NestedTagReader
from dovetail.reading.parameter_reader import ParameterReader
from dovetail.reading.two_languages import JsonOrTagReader
from dovetail.reading.values import WRAPPERS
from dovetail.tokens import Segment
from tests.reading import families
from tests.reading.families import TOOLS, exact, stream

WEATHER = ("get_weather", '{"city": "Paris", "days": 3}')
EDIT = ("edit_file", '{"path": "a.txt", "lines": [1, 2]}')
#: The markers around calls: tags, those of K3, MiniMax-M3 and InternLM as a whole, words in brackets, code fences.
MARKER = re.compile(
    r"<\|(?:message|role)_sep\|>\n+|\]<\]minimax\[>\[<[^<>\n]*>|<\|action_start\|><\|plugin\|>|<\|(?:open|close)\|>[^<]*<\|sep\|>|<[^<>\n]*>|\[/?[A-Z_]{3,}\]|\[e~\[|```(?:json)?"
)
#: What a prompt ends in, if it begins the first message of an answer.
IN_PROMPTS = {"functionary": ">>>", "muse": "<|start|>assistant"}
families_all = pytest.mark.parametrize("name", families.NAMES)


def written(name: str, *calls: tuple[str, str], content: str = "") -> str:
    """An answer without reasoning."""
    message = Message(content, "", tuple(Call(f"functions.{n}:{i}", n, a) for i, (n, a) in enumerate(calls)))
    return families.format_of(name).write(message, thinking=False).text


def tokens(name: str, text: str, *, thinking: bool = False) -> Message:
    """What is read if every control token of the family in `text` comes as one."""
    controls = families.controls(name)
    pieces = [piece for piece in re.split("(" + "|".join(map(re.escape, controls)) + ")", text) if piece]
    reader = families.format_of(name).reader(TOOLS, thinking=thinking)
    events: list[Event] = []
    for piece in pieces:
        events += reader.feed_segments([Segment(piece, piece in controls)])
    return dovetail.fold([*events, *reader.finish()])


def readings(name: str, text: str, *, thinking: bool = False) -> Iterator[Message]:
    """As text, and as tokens."""
    whole = dovetail.fold(stream(name, [text], thinking=thinking))
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    assert dovetail.fold(stream(name, pieces, thinking=thinking)) == whole
    yield whole
    yield tokens(name, text, thinking=thinking)


def called(message: Message) -> list[tuple[str, object]]:
    return [(call.name, exact(call.arguments)) for call in message.calls]


def meant(*calls: tuple[str, str]) -> list[tuple[str, object]]:
    return [(name, exact(arguments)) for name, arguments in calls]


def check(name: str, text: str, *calls: tuple[str, str], content: str = "CONTENT", silent: bool = False) -> None:
    """These calls and this content are read, with a Defect unless it may be `silent`."""
    for message in readings(name, text):
        assert called(message) == meant(*calls), text
        assert "".join(message.content.split()) == content, text
        assert message.defects or silent, text


def ends_of(name: str) -> set[str]:
    """What ends a turn, and may be missing or doubled without a Defect of the calls."""
    fmt = families.format_of(name)
    return {*fmt.end_of_turn, *fmt.inside_turns, "<|close|>message<|sep|>", "<|python_end|>", "<|tool_call_end|>"}


def around(name: str) -> tuple[str, str, str]:
    """A written call, cut before its name and after its last value."""
    text = written(name, WEATHER, content="CONTENT")
    start, end = text.index("get_weather"), text.rindex("3") + 1
    for mark in ("<|open|>", "]<]minimax[>["):  # before the tag of K3 and MiniMax-M3 that holds the name
        start = text.rfind(mark, 0, start) if mark in text else start
    return text[:start], text[start:end], text[end:]


def opens_with_a_token(name: str) -> bool:
    """Whether a call begins with a control token, and not with ordinary text."""
    text = written(name, WEATHER, content="CONTENT")
    marker = MARKER.match(text[text.index("CONTENT") + len("CONTENT") :].lstrip())
    return marker is not None and any(control in marker.group() for control in families.controls(name))


def each(text: str, replaced: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Every marker in `text`, and `text` with it replaced."""
    for marker in MARKER.finditer(text):
        yield marker.group(), text[: marker.start()] + replaced(marker.group()) + text[marker.end() :]


@families_all
def test_a_missing_closer(name: str) -> None:
    head, body, tail = around(name)
    for marker, spoiled in each(tail, lambda _: ""):
        check(name, head + body + spoiled, WEATHER, silent=marker in ends_of(name))


#: Families whose calls have no marker but the opener before the name, so that without it they are text.
ONE_OPENER = (
    *("hermes", "qwen3", "llama3_json", "granite", "command_a", "command_4", "hunyuan"),
    *("ernie45", "internlm", "jamba", "xlam", "acme", "apertus", "longcat_flash", "olmo3", "generic"),
    "response_template_json",
)
#: Markers that end content, without which nothing is wrong.
_CONTENT_ENDS = ("<|END_RESPONSE|>", "<|END_TEXT|>", "</response>", "<|/answer|>")


@families_all
def test_a_missing_opener(name: str) -> None:
    """Where a marker is left, the call is read. Elsewhere it is content: no character is lost."""
    head, body, tail = around(name)
    at = head.index("CONTENT") + len("CONTENT")
    for marker, spoiled in each(head[at:], lambda _: ""):
        text = head[:at] + spoiled + body + tail
        id_stands_alone = (name, marker) in (("named_calls", "<|call|>"), ("solar_open", "<|tool_call:begin|>"))
        if id_stands_alone or (name in ONE_OPENER and marker not in _CONTENT_ENDS):
            for message in readings(name, text):
                assert not message.calls and "get_weather" in message.content and "Paris" in message.content
        else:
            check(name, text, WEATHER, silent=marker in _CONTENT_ENDS)


@families_all
def test_a_value_of_another_type(name: str) -> None:
    """A string that spells the number is it, where values have no quotes. It is never lost."""
    text = written(name, ("get_weather", '{"city": "Paris", "days": "3"}'), content="CONTENT")
    for message in readings(name, text):
        assert called(message) in (
            meant(WEATHER),
            meant(("get_weather", '{"city": "Paris", "days": "3"}')),
        )
        assert message.content.strip() == "CONTENT"


@families_all
def test_all_closers_of_the_call_missing(name: str) -> None:
    """But not the end of the last value, without which the output was cut off."""
    head, body, tail = around(name)
    reader = families.format_of(name).reader()
    in_tags = isinstance(reader, ParameterReader | NestedTagReader) and not isinstance(reader, JsonOrTagReader)
    end = MARKER.search(tail) if in_tags else None
    at = end.end() if end is not None else 0
    silent = not {*MARKER.findall(tail[at:])} - ends_of(name)
    check(name, head + body + tail[:at] + MARKER.sub("", tail[at:]), WEATHER, silent=silent)


@families_all
def test_a_doubled_closer(name: str) -> None:
    head, body, tail = around(name)
    controls = families.controls(name)
    for marker, spoiled in each(tail, lambda marker: marker * 2):
        if not opens_with_a_token(name) and marker not in controls:  # text outside of calls
            check(name, head + body + spoiled, WEATHER, content="CONTENT" + marker, silent=True)
        else:
            check(name, head + body + spoiled, WEATHER, silent=marker in ends_of(name))


@families_all
def test_a_doubled_opener(name: str) -> None:
    head, body, tail = around(name)
    at = head.index("CONTENT") + len("CONTENT")
    for _, spoiled in each(head[at:], lambda marker: marker * 2):
        check(name, head[:at] + spoiled + body + tail, WEATHER)


@families_all
@pytest.mark.parametrize("space", [" ", "\n\n", "\r\n"])
def test_white_space_around_markers(name: str, space: str) -> None:
    head, body, tail = around(name)
    at = head.index("CONTENT") + len("CONTENT")
    for _, spoiled in each(tail, lambda marker: marker + space):
        check(name, head + body + spoiled, WEATHER, silent=True)
    for _, spoiled in each(head[at:], lambda marker: space + marker + space):
        check(name, head[:at] + spoiled + body + tail, WEATHER, silent=True)


@families_all
@pytest.mark.parametrize("space", [" ", "\n\n\n\n", "\r\n"])
def test_white_space_before_an_answer_of_calls(name: str, space: str) -> None:
    check(name, space + written(name, WEATHER), WEATHER, content="", silent=True)


@families_all
def test_a_name_in_another_case(name: str) -> None:
    for other in ("GET_WEATHER", "Get_Weather", "get-weather", "functions.get_weather"):
        check(name, written(name, WEATHER, EDIT, content="CONTENT").replace("get_weather", other), WEATHER, EDIT)


@families_all
@pytest.mark.parametrize("key", WRAPPERS)
def test_wrapped_arguments(name: str, key: str) -> None:
    wrapped = [(called_name, f'{{"{key}": {arguments}}}') for called_name, arguments in (WEATHER, EDIT)]
    check(name, written(name, *wrapped, content="CONTENT"), WEATHER, EDIT)


@families_all
def test_text_between_calls_and_after_them(name: str) -> None:
    one, two = written(name, WEATHER, content="CONTENT"), written(name, EDIT, content="MORE")
    two = IN_PROMPTS.get(name, "") + two
    check(name, one + two, WEATHER, EDIT, content="CONTENTMORE", silent=True)
    check(name, one + " then " + two + " last", WEATHER, EDIT, content="CONTENTthenMORElast", silent=True)


@pytest.mark.parametrize("name", [n for n in families.NAMES if opens_with_a_token(n)])
def test_calls_in_open_reasoning(name: str) -> None:
    """Ordinary text opens no calls there, because reasoning may mention them."""
    text = written(name, WEATHER, EDIT, content="CONTENT")
    for message in readings(name, "hm " + text[text.index("CONTENT") + len("CONTENT") :], thinking=True):
        assert called(message) == meant(WEATHER, EDIT)
        # Where messages have ends, the text ended the message of reasoning.
        assert message.defects or name in ("harmony", "muse", "inkling", "beam")


BEGINNING = [name for name in families.NAMES if families.format_of(name).reader_type.begin_of_text]


@pytest.mark.parametrize("name", BEGINNING)
def test_tokens_that_begin_a_text(name: str) -> None:
    for token in families.format_of(name).reader_type.begin_of_text:
        check(name, token * 2 + written(name, WEATHER, content="CONTENT"), WEATHER)
        check(name, token + written(name, WEATHER), WEATHER, content="")
        assert families.format_of(name).parse("so " + token, thinking=False).content == "so " + token


@families_all
def test_any_token_that_begins_an_answer(name: str) -> None:
    """A control token that the family does not have means nothing in an answer, at its very start too."""
    reader = families.format_of(name).reader(TOOLS, thinking=False)
    events = reader.feed_segments([Segment("<|unheard|>", True)])
    text = written(name, WEATHER)
    controls = families.controls(name)
    for piece in re.split("(" + "|".join(map(re.escape, controls)) + ")", text):
        events += reader.feed_segments([Segment(piece, piece in controls)])
    message = dovetail.fold([*events, *reader.finish()])
    assert (called(message), message.content.strip()) == (meant(WEATHER), "")
    assert [(defect.kind, defect.detail) for defect in message.defects] == [("stray_marker", "<|unheard|>")]
