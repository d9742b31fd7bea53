"""Lookup drafting: the index drafts exactly what a scan of the whole sequence drafts."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.completion import Completion
from dovetail.engine.drafting.lookup import CANDIDATES, MAX_MATCH, MIN_MATCH, Lookup, SuffixIndex
from dovetail.engine.request import Request
from dovetail.errors import EngineError
from tests.examples import examples


def scan(tokens: list[int], count: int, limit: int) -> list[int]:
    """The definition, in quadratic time."""
    recent = tokens[-limit:]
    end = len(recent)

    def agreeing(place: int) -> int:
        length = 0
        while length < min(MAX_MATCH, place) and recent[place - 1 - length] == recent[end - 1 - length]:
            length += 1
        return length

    candidates = [place for place in range(end) if agreeing(place) >= MIN_MATCH][-CANDIDATES:]
    matched = max(map(agreeing, candidates), default=0)
    places = [place for place in candidates if agreeing(place) == matched]
    draft: list[int] = []
    while len(draft) < min(count, matched):
        text = recent + draft
        agree = [place for place in places if text[place : place + len(draft)] == draft]
        token, votes = Counter(text[place + len(draft)] for place in agree).most_common(1)[0]
        if 2 * votes <= len(agree):
            break
        draft.append(token)
    return draft


@st.composite
def repetitive(draw: st.DrawFn) -> list[int]:
    """Pieces over a small vocabulary, repeated with random tokens between."""
    token = st.integers(0, draw(st.sampled_from((0, 1, 2, 5, 50))))
    pieces = draw(st.lists(st.lists(token, min_size=1, max_size=12), min_size=1, max_size=5))
    parts = draw(st.lists(st.one_of(st.sampled_from(pieces), st.lists(token, max_size=3)), max_size=40))
    return [token for part in parts for token in part]


def drafted(tokens: list[int]) -> list[int]:
    index = SuffixIndex()
    index.extend(tokens)
    return index.draft(3)


@given(repetitive(), st.lists(st.integers(0, 30), max_size=8), st.integers(1, 40), st.integers(1, 12))
@examples(400)
def test_it_drafts_what_a_scan_would(tokens: list[int], cuts: list[int], limit: int, count: int) -> None:
    index = SuffixIndex(limit)
    done = 0
    for cut in [*cuts, len(tokens)]:
        index.extend(tokens[done : done + cut])
        done = min(len(tokens), done + cut)
        assert index.draft(count) == scan(tokens[:done], count, limit)
        assert index.seen == done
        assert len(index) <= 2 * limit


@given(repetitive(), st.integers(1, 40))
@examples(60)
def test_token_by_token(tokens: list[int], limit: int) -> None:
    index = SuffixIndex(limit)
    for done, token in enumerate(tokens, 1):
        index.extend([token])
        assert index.draft(5) == scan(tokens[:done], 5, limit)


@pytest.mark.parametrize(
    ("tokens", "count", "draft"),
    [
        ([], 3, []),
        ([5], 3, []),
        ([5, 5], 3, []),
        ([5, 5, 5], 3, [5, 5]),
        ([0, 0, 1], 3, []),
        ([1, 2, 3, 4, 1, 2], 3, [3, 4]),  # no more than agreed
        ([1, 2, 3, 4, 5, 1, 2, 3], 2, [4, 5]),
        ([1, 2, 1, 2, 1, 2], 8, [1, 2, 1, 2]),  # past the end, from the draft itself
        ([8, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2], 1, [3]),  # the longest match alone is asked
        ([7, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2], 3, []),  # one says 3, one says 4
        ([7, 1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 4, 6, 1, 2], 3, [3]),  # what follows 3 is not agreed upon
    ],
)
def test_examples(tokens: list[int], count: int, draft: list[int]) -> None:
    index = SuffixIndex()
    index.extend(tokens)
    assert index.draft(count) == draft == scan(tokens, count, len(tokens) + 1)
    assert index.draft(count) == draft


def test_agreement_beyond_the_longest_match_does_not_count() -> None:
    run = list(range(20, 20 + MAX_MATCH))
    tokens = [1, *run, 5, 2, *run, 6, 1, *run]
    assert drafted(tokens) == scan(tokens, 3, 1000) == []
    tokens = [1, *run[1:], 5, 2, *run, 6, 1, *run]
    assert drafted(tokens) == scan(tokens, 3, 1000) == [6, 1, 20]


def test_only_the_last_candidates_are_asked() -> None:
    others = [token for other in range(CANDIDATES) for token in (1, 2, 10 + other)]
    tokens = [7, 8, 1, 2, 3, *others, 7, 8, 1, 2]
    assert drafted(tokens) == scan(tokens, 3, 1000) == []
    assert drafted(tokens[:5] + tokens[8:]) == [3, 1, 2]


def test_the_oldest_is_forgotten_first() -> None:
    index = SuffixIndex(limit=100)
    index.extend([1, 2, 3])
    for filler in range(10, 200):
        index.extend([filler])
        probe = SuffixIndex(limit=100)
        probe.extend([1, 2, 3, *range(10, filler + 1), 1, 2])
        assert probe.draft(1) == ([3] if probe.seen <= 100 else [])


def test_a_million_tokens_fit_the_bound() -> None:
    limit = 1 << 12
    index = SuffixIndex(limit)
    most = 0
    for start in range(0, 1_000_000, 500):
        index.extend(range(start, start + 500))  # no pair comes twice: the most there can be to keep
        most = max(most, len(index))
    assert index.seen == 1_000_000
    assert limit < most <= 2 * limit
    index.extend([999_000, 999_001])
    assert index.draft(3) == [999_002, 999_003]
    index.extend([500_000, 500_001])
    assert index.draft(3) == []


def test_the_memory_of_a_token() -> None:
    tracemalloc.start()
    try:
        index = SuffixIndex()
        index.extend([token * 1000 for token in range(20_000)])
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 200 * len(index) == 200 * 20_000


def request(name: str, tokens: list[int]) -> Request:
    completion = Completion(tuple(tokens), 100)
    return Request(name, completion, context=1000, vocab_size=100, draft_tokens=5)


@given(repetitive(), st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=12))
@examples(100)
def test_a_request_that_is_asked_for_now_and_then(tokens: list[int], schedule: list[tuple[int, bool, bool]]) -> None:
    """Tokens come, proposals are asked for in some steps, and the request is preempted and begins again."""
    drafter = Lookup()
    asked = request("a", [1, *tokens])
    assert drafter.start(asked, 3) == 3
    for new, propose, preempt in schedule:
        asked.tokens += tokens[:new]
        drafter.observe([])
        if propose:
            (draft,) = drafter.propose([asked], [5])
            assert draft.tokens == scan(asked.tokens, 5, 1000)
            assert draft.probs is None
        if preempt:
            drafter.release(asked)
            drafter.check_integrity(set())
            drafter.start(asked, 0)


def test_each_request_has_its_own_index_until_it_is_released() -> None:
    drafter = Lookup()
    first, second = request("a", [1, 2, 3, 4, 1, 2]), request("b", [1, 2, 5, 6, 1, 2])
    assert [draft.tokens for draft in drafter.propose([second, first], [1, 2])] == [[5], [3, 4]]
    drafter.check_integrity({"a", "b"})
    with pytest.raises(EngineError, match=r"requests that ended: b$"):
        drafter.check_integrity({"a"})
    drafter.release(second)
    drafter.release(second)
    drafter.check_integrity({"a"})
    again = request("b", [1, 2, 7, 1, 2])
    assert drafter.propose([again], [1])[0].tokens == [7]
