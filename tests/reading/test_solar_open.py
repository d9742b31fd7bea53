"""Solar Open's answers: messages of reasoning, content and calls in one turn."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail
from dovetail.tokens import Prompt, Segment
from tests.formats import chat_templates
from tests.reading.families import TOOLS, stream, tokenizer_of

NEXT = "<|end|><|begin|>assistant"
CALL = "<|tool_call:begin|>a1<|tool_call:name|>ping<|tool_call:args|>{}<|tool_call:end|>"
PING = ["ping"]


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (f"<|think|>R{NEXT}<|content|>C<|end|><|flush|>", "R", "C", []),
        (f"<|think|>R{NEXT}<|content|>C<|flush|>", "R", "C", []),
        (f"<|think|>R{NEXT}<|tool_calls|>{CALL}<|calls|>", "R", "", PING),
        (f"<|think|>R{NEXT}<|content|>C{NEXT}<|tool_calls|>{CALL}<|calls|>", "R", "C", PING),
        ("<|content|>C<|end|>", "", "C", []),
    ],
)
def test_the_messages_of_one_turn(text: str, reasoning: str, content: str, calls: list[str]) -> None:
    thinking = bool(reasoning)
    message = dovetail.format("solar_open").parse(text, TOOLS, thinking=thinking)
    assert dovetail.fold(stream("solar_open", list(text), thinking=thinking)) == message
    assert (message.reasoning, message.content, [call.name for call in message.calls]) == (reasoning, content, calls)
    assert not message.defects


def test_whether_reasoning_is_left_open() -> None:
    fmt = dovetail.format("solar_open")
    opened = Segment("<|begin|>", True), Segment("assistant", False), Segment("<|think|>", True)
    closed = Segment("R", False), Segment("<|end|>", True), Segment("<|begin|>", True), Segment("assistant", False)
    assert fmt.left_open(Prompt([*opened]))
    assert not fmt.left_open(Prompt([*opened, *closed]))
    assert not fmt.left_open(Prompt([]))


def test_the_tokens_around_reasoning() -> None:
    fmt = dovetail.format("solar_open")
    tokenizer = tokenizer_of("solar_open")
    control = tokenizer.control
    assert fmt.reasoning_tags is None
    assert fmt.reasoning_tokens(tokenizer) == (
        (control["<|think|>"],),
        (control["<|end|>"], control["<|begin|>"], *tokenizer.encode("assistant")),
    )


def test_the_end_of_a_message_does_not_end_the_turn(shared_data: Path) -> None:
    fmt = chat_templates.of(shared_data / "templates/llama.cpp/upstage-Solar-Open-100B.jinja")
    assert fmt.family_name == "solar_open"
    assert "<|end|>" not in fmt.end_of_turn and {"<|flush|>", "<|calls|>"} <= set(fmt.end_of_turn)
