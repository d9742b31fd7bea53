"""Loops: found where a naive search finds them, however many tokens come at once, and not in tables, zeros or prose."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.gateway.turn.loops import MOST_PERIOD, PLAIN_TOKENS, REPEATS, STRIDE, TOKENS, Loop, LoopDetector
from dovetail.tokens import Tokenizer
from tests.examples import examples


def naive(ids: Sequence[int], tok: Tokenizer) -> tuple[list[Loop], int | None]:
    """All loops, and after how many tokens the first is found."""
    loops: list[Loop] = []
    first: int | None = None
    period = length = 0
    for end in range(1, len(ids) + 1):
        if period and ids[end - 1] != ids[end - 1 - period]:
            loops.append(Loop(period, length // period))
            period = 0
        length += period > 0
        if not period and (end % STRIDE == 0 or end == len(ids)):
            for candidate in range(1, min(MOST_PERIOD, end - 1) + 1):
                run = run_of(ids[:end], candidate)
                if run >= REPEATS * candidate and run >= least(ids[end - candidate : end], tok):
                    period, length = candidate, run
                    first = end if first is None and end % STRIDE == 0 else first
                    break
    return [*loops, *([Loop(period, length // period)] if period else [])], first


def run_of(ids: Sequence[int], period: int) -> int:
    """How many of the last `ids` have this period."""
    at = len(ids)
    while at > period and ids[at - 1] == ids[at - 1 - period]:
        at -= 1
    return len(ids) - at + period


def least(period: Sequence[int], tok: Tokenizer) -> int:
    text = b"".join(map(tok.token_bytes, [*period, *period])).decode(errors="replace")
    return TOKENS if any(map(str.isalpha, text)) else PLAIN_TOKENS


def detected(ids: Sequence[int], tok: Tokenizer, sizes: Sequence[int] = (1,)) -> tuple[list[Loop], int | None]:
    detector, first, at = LoopDetector(tok), None, 0
    for size in itertools.cycle(sizes):
        if at >= len(ids):
            return detector.finish(), first
        found = detector.feed(ids[at : at + size])
        first = at + found if found is not None and first is None else first
        at += size
    raise AssertionError


#: Tokens of the digits, of some letters, and of the bytes of one character.
TOKENS_OF_PERIODS = st.sampled_from([16, 17, 65, 66, 67, 128, 129, 130])
PIECES = st.tuples(st.lists(TOKENS_OF_PERIODS, min_size=1, max_size=24), st.integers(1, 40))


@given(pieces=st.lists(PIECES, min_size=1, max_size=3), sizes=st.lists(st.integers(1, 70), min_size=1, max_size=5))
@examples(60)
def test_what_is_found_is_what_a_naive_search_finds(
    small_tokenizer: Tokenizer, pieces: list[tuple[list[int], int]], sizes: list[int]
) -> None:
    ids = [token for period, count in pieces for token in period * count]
    assert detected(ids, small_tokenizer, sizes) == naive(ids, small_tokenizer)


@pytest.mark.parametrize(
    ("period", "count", "found"),
    [
        (1, 255, None),
        (1, 256, 256),
        (1, 257, 256),
        (10, 26, 256),
        (63, 4, None),
        (64, 4, 256),
        (100, 4, None),
        (100, 5, 416),
        (512, 4, 2048),
        (513, 8, None),
    ],
)
def test_by_count_and_length(small_tokenizer: Tokenizer, period: int, count: int, found: int | None) -> None:
    tok = small_tokenizer
    (a,), (b,) = tok.encode("a"), tok.encode("b")
    once = [a] if period == 1 else [b, *random.Random(period).choices((a, b), k=period - 2), a]
    ids = once * count + [*tok.encode("!")] * 20
    loops, first = detected(ids, tok)
    assert first == found
    assert loops == ([Loop(period, count)] if found else [])
    assert (loops, first) == naive(ids, tok)


@pytest.mark.parametrize("text", ["0, ", "| --- | --- |\n", ". . . ", "0.0 1.5\n", "\n"])
def test_a_period_without_a_letter_has_to_be_long(small_tokenizer: Tokenizer, text: str) -> None:
    tok = small_tokenizer
    period = [*tok.encode(text)]
    below, above = PLAIN_TOKENS // len(period), -(-PLAIN_TOKENS // len(period)) + STRIDE
    assert detected([*tok.encode("a "), *period * (below - 1), *tok.encode("end")], tok) == ([], None)
    (loop,), _ = detected(period * above, tok)
    assert loop.period * loop.times >= PLAIN_TOKENS


def test_a_character_of_several_tokens_is_a_letter(small_tokenizer: Tokenizer) -> None:
    tok = small_tokenizer
    period = [*tok.encode("値")]
    assert len(period) > 1
    assert detected(period * TOKENS, tok)[1] == TOKENS


def test_tables_and_prose_have_no_loops(small_tokenizer: Tokenizer) -> None:
    tok = small_tokenizer
    rows = "".join(f"| city {n} | {n * 37 % 23} | rain |\n" for n in range(400))
    items = "".join(f'{{"id": {n}, "name": "item", "tags": []}},\n' for n in range(400))
    code = "".join(f"        self.field_{n} = arguments.field_{n}\n" for n in range(200))
    for text in (rows, items, code):
        assert detected(tok.encode(text), tok) == ([], None)


def test_the_end_of_an_answer_is_looked_at_too(small_tokenizer: Tokenizer) -> None:
    tok = small_tokenizer
    (a,) = tok.encode("a")
    assert detected([*tok.encode("So: "), *[a] * 256], tok) == ([Loop(1, 256)], None)
    assert detected([*tok.encode("So: "), *[a] * 255], tok) == ([], None)


def test_one_answer_may_have_several(small_tokenizer: Tokenizer) -> None:
    tok = small_tokenizer
    one, other = [*tok.encode("go on. ")], [*tok.encode("wait, no! ")]
    ids = one * 200 + [*tok.encode("so")] + other * 100
    loops, first = detected(ids, tok, (7,))
    assert [loop.period for loop in loops] == [len(one), len(other)]
    assert first == TOKENS
    assert loops[0].times == 200 and loops[1].times in (99, 100)
