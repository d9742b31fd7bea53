"""Markers that stand where they mean nothing, and outputs that are cut off while an opener is judged."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.events import Call, Defect, Message
from tests.reading import whole
from tests.reading.families import stream

STRAY = Defect("stray_marker", "</tool_call>")


def test_a_marker_of_answers_in_a_line_is_text() -> None:
    text = "The answer stands after `<|START_RESPONSE|>`."
    assert whole.read("command_a", f"<|START_RESPONSE|>{text}<|END_RESPONSE|>", thinking=False) == Message(text)


def test_many_misplaced_markers_at_the_end_are_dropped() -> None:
    """More in a row than are weighed together."""
    assert whole.read("hermes", "Hi." + "</tool_call>" * 40, thinking=False) == Message("Hi.", defects=(STRAY,) * 40)


@pytest.mark.parametrize(("rest", "content"), [("<", "<"), ("<para", "")])
def test_a_call_that_is_cut_off_in_a_marker_behind_its_header(rest: str, content: str) -> None:
    text = "<tool_call>\n<function=ping>\n"
    message = whole.read("qwen3_coder", text + rest, reason="length", thinking=False)
    assert (message.calls, message.content) == ((Call("call_0", "ping", ""),), content)
    assert "truncated_call" in whole.kinds(message)


@pytest.mark.parametrize("text", ["<tool_call>\n<", "<tool_call>\n<func"])
def test_an_opener_that_is_cut_off_in_the_next_marker(text: str) -> None:
    message = whole.read("qwen3_coder", text, reason="length", thinking=False)
    assert (message.calls, message.content, whole.kinds(message)) == ((), "", ["truncated_call"])


def test_a_marker_around_messages_in_a_line_is_text() -> None:
    text = "A role ends with `<|role_sep|>\n` there."
    assert whole.read("gigachat3", text, thinking=False) == Message(text)


def test_a_call_that_is_cut_off_behind_one_to_no_tool() -> None:
    text = "<tool_call>\n<function=unheard>\n</function>\n<function=ping>\n"
    message = whole.read("qwen3_coder", text, reason="length", thinking=False)
    assert (whole.calls(message), message.content) == ([("unheard", "{}"), ("ping", "")], "")


@pytest.mark.parametrize("ends", ["</think>", "</think>\n\n"])
def test_reasoning_about_markup_makes_no_text_of_a_marker_after_the_answer(ends: str) -> None:
    reasoning = "I write <tool_call> and </tool_call> then."
    message = whole.read("qwen3", f"{reasoning}{ends}Done.</tool_call>", thinking=True)
    assert message == Message("Done.", reasoning, defects=(STRAY,))


@pytest.mark.parametrize("size", [5000, 10_000])
def test_what_is_withheld_of_a_call_that_may_become_text_is_bounded(size: int) -> None:
    text = '<tool_call>\n{"name": "ping", "arguments": {"text": "' + "a" * size
    pieces = [text[at : at + 1000] for at in range(0, len(text), 1000)]
    reader = dovetail.format("qwen3").reader(whole.TOOLS, thinking=False, on_malformed_call="text")
    shown = any([reader.feed(piece) for piece in pieces])
    assert shown is (size > 1 << 13)
    for ends, calls in (('"}}\n</tool_call>', 1), ('", ;}\n</tool_call>', int(shown))):
        asked = {"thinking": False, "on_malformed_call": "text"}
        assert len(dovetail.fold(stream("qwen3", [*pieces, ends], **asked)).calls) == calls
