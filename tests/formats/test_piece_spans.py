"""Spans of pieces equal a naive reference: the prompt as a list of characters and control tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dovetail.formats.prompts import piece_spans
from dovetail.formats.prompts.piece_spans import Position
from dovetail.tokens import CUT, TokenSpan

TEXT = st.text("ab", max_size=3)
CONTROL = st.sampled_from(("<a>", "<b>"))


@st.composite
def pieces(draw: st.DrawFn, most: int = 4) -> list[str]:
    listed = [draw(TEXT)]
    for _ in range(draw(st.integers(0, most))):
        listed += (draw(CONTROL), draw(TEXT))
    return listed


def flat(listed: Sequence[str]) -> list[str]:
    return [item for i, piece in enumerate(listed) for item in ([piece] if i % 2 else piece)]


def place(listed: Sequence[str], position: Position) -> int:
    """The number of characters and control tokens before a position."""
    return len(flat(listed[: position[0]])) + position[1]


@st.composite
def with_positions(draw: st.DrawFn, count: int) -> tuple[list[str], list[Position]]:
    listed = draw(pieces())
    indices = draw(st.lists(st.integers(0, len(listed) // 2), min_size=count, max_size=count))
    return listed, sorted((2 * i, draw(st.integers(0, len(listed[2 * i])))) for i in indices)


@given(with_positions(2))
def test_between(drawn: tuple[list[str], list[Position]]) -> None:
    listed, (begin, end) = drawn
    span = piece_spans.between(listed, begin, end)
    assert len(span) % 2
    assert flat(span) == flat(listed)[place(listed, begin) : place(listed, end)]


@given(with_positions(1), pieces(2))
def test_a_span_at_a_position(drawn: tuple[list[str], list[Position]], span: list[str]) -> None:
    listed, (position,) = drawn
    whole, part, at = flat(listed), flat(span), place(listed, position)
    begin, end = piece_spans.begin_of_span(listed, span, position), piece_spans.end_of_span(listed, span, position)
    assert (begin is not None) == (whole[max(0, at - len(part)) : at] == part)
    assert (end is not None) == (whole[at : at + len(part)] == part)
    assert begin is None or flat(piece_spans.between(listed, begin, position)) == part
    assert end is None or flat(piece_spans.between(listed, position, end)) == part


@given(with_positions(2), CONTROL, TEXT)
def test_where_a_span_begins(drawn: tuple[list[str], list[Position]], control: str, text: str) -> None:
    listed, (after, before) = drawn
    whole, part = flat(listed), flat(["", control, text])
    first, last = place(listed, after), place(listed, before) - len(part)
    expected = [at for at in range(first, last + 1) if whole[at : at + len(part)] == part]
    found = piece_spans.begins(listed, ["", control, text], after=after, before=before)
    assert [place(listed, begin) for begin in found] == expected


@given(pieces(), pieces(), st.booleans(), st.booleans())
def test_joined_spans_are_their_sum(left: list[str], right: list[str], left_span: bool, right_span: bool) -> None:
    if left_span and left[-1]:
        left[-1] = TokenSpan(left[-1], (1,))
    if right_span and right[0]:
        right[0] = TokenSpan(right[0], (2,))
    expected, spans = flat(left) + flat(right), [*left[-1:], *right[:1]]
    piece_spans.join(left, right)
    assert [item for item in flat(left) if item != CUT] == expected
    # The ids of a text that has some stay.
    assert all(any(span is piece for piece in left) for span in spans if isinstance(span, TokenSpan))


@given(pieces())
def test_whole_pieces_end_in_a_text(listed: list[str]) -> None:
    assert piece_spans.whole(listed) == listed
    assert piece_spans.whole(listed[:-1]) == [*listed[:-1], ""] or len(listed) == 1
    assert piece_spans.end_of(listed) == (len(listed) - 1, len(listed[-1]))
