"""`SegmentStop` equals a naive reference: join the text, and cut at the stop string that is complete first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.tokens import Segment
from dovetail.tokens.segment_stop import SegmentStop

TEXT = st.text("ab<>", max_size=6)
SEGMENTS = st.lists(st.builds(Segment, TEXT, st.just(False)) | st.just(Segment("<a>", True)), max_size=8)


def cut(text: str, stop: list[str]) -> str:
    for end in range(len(text) + 1):
        for s in sorted(stop, key=len, reverse=True):
            if text[:end].endswith(s):
                return text[: end - len(s)]
    return text


@given(SEGMENTS, st.lists(st.text("ab<>", min_size=1, max_size=4), min_size=1, max_size=3))
def test_segments_are_cut_where_the_whole_text_would_be(segments: list[Segment], stop: list[str]) -> None:
    stopper = SegmentStop(stop)
    passed = [segment for one in segments for segment in stopper.feed([one])]
    if not stopper.matched:
        passed += stopper.finish()
    whole = "".join(segment.text for segment in segments)
    expected = cut(whole, stop)
    matched = stopper.matched
    assert (matched is not None) == any(s in whole for s in stop)
    assert matched is None or (matched in stop and whole[len(expected) :].startswith(matched))
    text = "".join(segment.text for segment in passed)
    assert expected.startswith(text)
    # Only the beginning of a control token may be missing before the cut.
    assert expected[len(text) :] in ("", "<", "<a")
    assert [s for s in passed if s.control] == [Segment("<a>", True)] * sum(s.control for s in passed)


@given(SEGMENTS)
def test_without_a_match_every_segment_comes_through(segments: list[Segment]) -> None:
    stopper = SegmentStop(["absent string"])
    passed = [*stopper.feed(segments), *stopper.finish()]
    assert "".join(s.text for s in passed) == "".join(s.text for s in segments)
    assert [s for s in passed if s.control] == [s for s in segments if s.control]
