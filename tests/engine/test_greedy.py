"""Greedy windows without masks choose what masks would, and leave the constraint where the tokens end."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.greedy import Offered
from dovetail.engine.masks import MaskRows
from dovetail.engine.verify import verify_greedy
from tests.engine.constraints import Automaton, Counted

VOCAB = 97


@given(seed=st.integers(0, 10**6), longest=st.integers(0, 5), known=st.booleans())
def test_they_are_those_of_masks(seed: int, longest: int, known: bool) -> None:
    """Few of the model's own choices may come; `known`: drafts are what it must say."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(longest + 1, VOCAB, generator=generator)
    drafts = torch.randint(VOCAB, (longest,), generator=generator).tolist()
    if known:
        guide, drafts = Automaton.sample(seed), []
        for row in logits[:-1]:
            allowed = MaskRows(1, VOCAB)
            allowed.enter(guide, (), 0)
            allowed.fill()
            masked = row.clone().unsqueeze(0)
            allowed.apply(masked)
            drafts.append(int(masked.argmax()))
            assert guide.advance(drafts[-1])
    masks, constraint = MaskRows(longest + 1, VOCAB), Automaton.sample(seed)
    entry = masks.enter(constraint, drafts, 0)
    masks.fill()
    masked = logits[: entry.drafts + 1].clone()
    masks.apply(masked)
    expected = verify_greedy(masked.argmax(-1).tolist(), drafts[: entry.drafts])
    counted = Counted(Automaton.sample(seed))
    offered = Offered(counted, drafts, VOCAB)
    assert offered.drafts == entry.drafts
    best = logits[: offered.drafts + 1].argmax(-1).tolist()
    others = torch.randn(2, VOCAB)
    assert offered.choose(best, torch.cat((others, logits)), 2, offered.drafts, False, ()) == expected
    assert offered.error is None and counted.taken == expected
    again = Offered(counted, best, VOCAB)
    again.forget()
    assert counted.taken == expected


@given(seed=st.integers(0, 10**6), longest=st.integers(1, 5), end=st.integers(0, 5))
def test_nothing_is_chosen_behind_an_end(seed: int, longest: int, end: int) -> None:
    """And no mask is made there, where a constraint has nothing to allow."""
    guide, said = Automaton.sample(seed), list[int]()
    for _ in range(longest + 1):
        allowed = MaskRows(1, VOCAB)
        allowed.enter(guide, (), 0)
        allowed.fill()
        logits = torch.zeros(1, VOCAB)
        allowed.apply(logits)
        said.append(int(logits.argmax()))
        assert guide.advance(said[-1])
    end = min(end, longest)
    constraint = Ending(Automaton.sample(seed), end + 1)
    offered = Offered(constraint, said[:longest], VOCAB)
    ends = {said[end]}
    first = said.index(said[end])  # the same token may have come before
    rows = torch.zeros(longest + 1, VOCAB)
    assert offered.choose(said, rows, 0, offered.drafts, False, ends) == said[: first + 1]
    assert offered.error is None


class Ending:
    """Takes so many tokens, and is not to be asked what may come behind them."""

    def __init__(self, inner: Automaton, most: int) -> None:
        self._inner = inner
        self._left = most

    def fill(self, row: memoryview) -> None:
        raise AssertionError("nothing may come")

    def advance(self, token: int) -> bool:
        taken = self._left > 0 and self._inner.advance(token)
        self._left -= taken
        return taken

    def rollback(self, count: int) -> None:
        self._inner.rollback(count)
        self._left += count

    def forced(self, limit: int) -> list[int]:
        return []
