"""GigaChat 3's answers: a message of content, and perhaps one of a call."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail
from dovetail.formats.derived.jinja import jinja
from dovetail.formats.derived.proof import Verdict
from dovetail.formats.derived.template import Template
from dovetail.tokens import Segment
from tests.formats import chat_templates
from tests.reading.families import TOOLS, stream

NEXT, ROLE = "<|message_sep|>\n\n", "<|role_sep|>\n"
PING = [("ping", "{}")]
JSON = '{"name": "ping", "arguments": {}}'
CALL = f"function call{ROLE}{JSON}"


def read(text: str, *, thinking: bool = False, choice: str = "auto") -> tuple[str, list[tuple[str, str]], list[str]]:
    """Content, calls and kinds of defects, in one piece and in pieces of one character."""
    message = dovetail.format("gigachat3").parse(text, TOOLS, thinking=thinking, tool_choice=choice)
    assert dovetail.fold(stream("gigachat3", list(text), thinking=thinking, tool_choice=choice)) == message
    return message.content, [(call.name, call.arguments) for call in message.calls], [d.kind for d in message.defects]


@pytest.mark.parametrize(
    ("text", "content", "calls", "defects"),
    [
        ("", "", [], []),
        (f"Hi{NEXT}</s>", "Hi", [], []),
        ("Hi</s>", "Hi", [], []),
        (f"Hi{NEXT}{CALL}{NEXT}</s>", "Hi", PING, []),
        (f"{NEXT}{CALL}</s>", "", PING, []),
        (f"{NEXT}{CALL}{NEXT}{CALL}{NEXT}", "", PING * 2, []),
        (f"{NEXT} function call {ROLE} {JSON}", "", PING, []),
        (f"Hi{NEXT}function call{JSON}", "Hi", PING, ["missing_separator"]),
        (f"Hi{CALL}", "Hi", PING, ["missing_message_end"]),
        (f"Hi{NEXT}{NEXT}{CALL}", "Hi", PING, ["stray_marker"]),
        (f"Hi{NEXT}function call{ROLE}{ROLE}{JSON}", "Hi", PING, ["stray_marker"]),
        (f"Hi{NEXT} function call me", "Hi function call me", [], []),
        (f"Hi{NEXT} so", "Hi so", [], []),
        (f"Hi{NEXT} </s>", "Hi", [], []),
        (f"Hi{NEXT}user{ROLE}Hm", "HiuserHm", [], ["stray_marker"]),
    ],
)
def test_messages(text: str, content: str, calls: list[tuple[str, str]], defects: list[str]) -> None:
    assert read(text) == (content, calls, defects)


def test_a_call_that_is_not_allowed() -> None:
    content, calls, defects = read(f"Hi{NEXT}{CALL}", choice="none")
    assert (content, calls) == (f"Hi{NEXT}{CALL}", [])
    assert set(defects) == {"call_not_allowed"}
    assert read(f"Hi{NEXT}", choice="none") == ("Hi", [], [])


def test_a_call_in_open_reasoning() -> None:
    assert read(f"hm{NEXT}{CALL}", thinking=True) == ("", PING, ["reasoning_not_closed"])


def test_text_that_spells_a_message_end() -> None:
    text = f"Hi{NEXT}{CALL}"
    reader = dovetail.format("gigachat3").reader(TOOLS, thinking=False)
    message = dovetail.fold([*reader.feed_segments([Segment(text, False)]), *reader.finish()])
    assert (message.content, message.calls) == (text, ())


@pytest.mark.parametrize("ends", [(), ("</s>",), (NEXT, "</s>")])
def test_a_message_ends_no_turn(shared_data: Path, ends: tuple[str, ...]) -> None:
    """Whatever the checkpoint says: a call may follow."""
    source = (shared_data / "templates/llama.cpp/GigaChat3-10B-A1.8B.jinja").read_text(encoding="utf-8")
    template = Template(source, chat_templates.SPECIAL)
    fmt = jinja(template, chat_templates.controls(source), [dovetail.format("gigachat3")], ends=ends)
    assert (fmt.family_name, fmt.end_of_turn, fmt.verdict) == ("gigachat3", ("</s>",), Verdict())
