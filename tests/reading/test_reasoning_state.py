"""`Reader.in_reasoning`: which part of an output belongs to a reasoning block, in every family."""

from __future__ import annotations

import pytest

from dovetail.events import Message
from dovetail.tokens import Segment
from tests.reading.families import NAMES, SAMPLE, TOOLS, format_of, opened, reasons


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_the_reasoning_block_and_nothing_else(name: str, thinking: bool) -> None:
    fmt = format_of(name)
    expected = reasons(name, thinking)
    message = Message(SAMPLE.content, SAMPLE.reasoning if expected else "", SAMPLE.calls)
    reader = fmt.reader(TOOLS, thinking=opened(name, thinking))
    inside, outside = "", ""
    for text, control in fmt.write(message, thinking=thinking).segments:
        for piece in [text] if control else text:
            before = reader.in_reasoning
            reader.feed_segments([Segment(piece, control)])
            if before or reader.in_reasoning:
                inside += piece
            else:
                outside += piece
    assert SAMPLE.content in outside and "get_weather" in outside
    assert (SAMPLE.reasoning in inside) == expected
    assert fmt.reader_type.think_end.strip() not in outside or not expected
