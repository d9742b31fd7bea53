"""A stream in pieces gives the same text as the whole: `Detokenizer` and `StopStrings`."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dovetail.tokens import Detokenizer, Prompt, Segment, StopStrings, Tokenizer

cuts = st.lists(st.integers(min_value=0), max_size=8)


def cut(items: list[int] | str, places: list[int]) -> list[list[int] | str]:
    ends = sorted({0, len(items), *(p % (len(items) + 1) for p in places)})
    return [items[a:b] for a, b in pairwise(ends)]


def joined(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


@given(st.text(max_size=60), cuts)
def test_detokenizing_in_pieces_is_detokenizing_the_whole(
    small_tokenizer: Tokenizer, text: str, places: list[int]
) -> None:
    ids = small_tokenizer.encode(text)
    assert small_tokenizer.decode(ids) == text
    detokenizer = Detokenizer(small_tokenizer)
    pieces = [joined(detokenizer.feed(piece)) for piece in cut(ids, places)]
    assert "".join(pieces) + joined(detokenizer.finish()) == text
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text


@given(st.lists(st.integers(0, 330), max_size=30), cuts)
def test_any_ids_read_the_same_in_any_pieces(small_tokenizer: Tokenizer, ids: list[int], places: list[int]) -> None:
    def read(pieces: list[list[int]]) -> list[Segment]:
        detokenizer = Detokenizer(small_tokenizer)
        segments = [s for piece in pieces for s in detokenizer.feed(piece)] + detokenizer.finish()
        return list(Prompt(segments).segments)

    assert read(cut(ids, places)) == read([ids])


def test_a_control_token_differs_from_text_with_its_literal(small_tokenizer: Tokenizer) -> None:
    ids = [*small_tokenizer.encode("<think>"), small_tokenizer.control["<think>"]]
    assert Detokenizer(small_tokenizer).feed(ids) == [Segment("<think>", False), Segment("<think>", True)]


@given(
    st.text(alphabet="ab.", max_size=30), st.lists(st.text(alphabet="ab.", min_size=1, max_size=4), max_size=3), cuts
)
def test_stop_strings_cut_the_same_in_any_pieces(text: str, stop: list[str], places: list[int]) -> None:
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(s) for s in stop)]
    if ends:
        matched = max((s for s in stop if text[: ends[0]].endswith(s)), key=len)
        expected = text[: ends[0] - len(matched)]
    else:
        expected = text
    for pieces in (cut(text, places), [text], list(text)):
        strings = StopStrings(stop)
        shown = "".join(strings.feed(piece) for piece in pieces) + strings.finish()
        assert shown == expected
        assert (strings.matched is not None) == bool(ends)
