"""What the proof of a format says about one that is wrong, and where it searches for arguments."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.events import Call, Defect, Message
from dovetail.formats.answers.call_envelope import ARGUMENTS, KEY, VALUE
from dovetail.formats.derived import proof, sample_answers
from dovetail.grammar import ControlToken
from tests.formats.test_differencing import CONTROLS, LISTED, derived


def test_content_that_spells_a_marker_reads_back() -> None:
    fmt = derived(LISTED.replace("<|calls|>[", "<|calls|>&&["), (*CONTROLS, "&&"))
    assert fmt.derived.derivation.reason == ""


SENT = Message("Yes.", "", (Call("a", "f", '{"x": 1}'),))


@pytest.mark.parametrize(
    ("read", "difference"),
    [
        (SENT, ""),
        (Message("", "Yes.", SENT.calls), ""),  # some templates show content beside calls as reasoning
        (Message("No.", "", SENT.calls), "its content is read as 'No.'"),
        (Message("Yes.", "Why?", SENT.calls), "reasoning is read: 'Why?'"),
        (Message("Yes.", "", (Call("a", "f", '{"x":'),)), "the arguments are no JSON"),
        (Message("Yes.", "", (Call("a", "g", "{}"),)), "its calls are read as [('g', {})]"),
        (Message("Yes.", "", SENT.calls, (Defect("stray_marker", "x"),)), "it reads with the defect stray_marker"),
        (Message("Yes.", "", SENT.calls, (Defect("python_value", "x"),)), ""),
    ],
)
def test_differences(read: Message, difference: str) -> None:
    assert proof._difference(SENT, read) == difference


@pytest.mark.parametrize(
    ("text", "slotted"),
    [
        ('f {"k": "v"}.', f"f {ARGUMENTS}."),
        ('f {"k": "v", "l": 1}.', f'f {{"{KEY}": "{VALUE}", "l": 1}}.'),  # of an object with more members, its parts
        ("f {k=v}.", f"f {{{KEY}={VALUE}}}."),
        ("f k k v.", None),
        ("f v.", None),
    ],
)
def test_where_arguments_stand(text: str, slotted: str | None) -> None:
    assert sample_answers._with_arguments(text, {"k": "v"}) == slotted


def test_a_token_that_the_end_of_an_answer_spells_is_lost_in_text() -> None:
    fmt = derived(LISTED.replace("<|/calls|>", 'o"'), (*CONTROLS, 'o"'))
    assert "does not read back in pieces: its content is read as 'He said \"n'" in fmt.derived.derivation.reason


def test_a_grammar_that_does_not_compile_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = dovetail.format("xlam")
    monkeypatch.setattr(fmt, "mark", lambda literal: ControlToken("<|none|>"))
    assert 'unknown special token: "<|none|>"' in proof.alone(fmt).grammar
