"""Greedy windows without masks choose the same tokens as with masks, and leave the constraint after the last token."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine.masks import GreedyConstraint, MaskRows
from dovetail.engine.verify import verify_greedy
from tests.engine.constraints import Automaton, Counted

VOCAB = 97


@given(seed=st.integers(0, 10**6), longest=st.integers(0, 5), known=st.booleans())
def test_tokens_are_those_that_masks_give(seed: int, longest: int, known: bool) -> None:
    """The constraint refuses most of the model's own choices; `known`: it accepts all drafts."""
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
    greedy = GreedyConstraint(counted, drafts, VOCAB)
    assert greedy.drafts == entry.drafts
    best = logits[: greedy.drafts + 1].argmax(-1).tolist()
    others = torch.randn(2, VOCAB)
    assert greedy.choose(best, torch.cat((others, logits)), 2, len(best), ()) == expected
    assert greedy.error is None and counted.taken == expected
    again = GreedyConstraint(counted, best, VOCAB)
    again.forget()
    assert counted.taken == expected


@given(seed=st.integers(0, 10**6), longest=st.integers(1, 5), end=st.integers(0, 5))
def test_nothing_is_chosen_after_an_end(seed: int, longest: int, end: int) -> None:
    """No mask is made there, because the constraint allows nothing after its end."""
    guide, chosen = Automaton.sample(seed), list[int]()
    for _ in range(longest + 1):
        allowed = MaskRows(1, VOCAB)
        allowed.enter(guide, (), 0)
        allowed.fill()
        logits = torch.zeros(1, VOCAB)
        allowed.apply(logits)
        chosen.append(int(logits.argmax()))
        assert guide.advance(chosen[-1])
    end = min(end, longest)
    constraint = Ending(Automaton.sample(seed), end + 1)
    greedy = GreedyConstraint(constraint, chosen[:longest], VOCAB)
    ends = {chosen[end]}
    first = chosen.index(chosen[end])  # the same token may have come before
    rows = torch.zeros(longest + 1, VOCAB)
    assert greedy.choose(chosen, rows, 0, len(chosen), ends) == chosen[: first + 1]
    assert greedy.error is None


class Ending:
    """Accepts `most` tokens, and fails when it is asked for a mask."""

    def __init__(self, inner: Automaton, most: int) -> None:
        self._inner = inner
        self._left = most

    def fill(self, row: memoryview) -> None:
        raise AssertionError("no mask was needed")

    def advance(self, token: int) -> bool:
        taken = self._left > 0 and self._inner.advance(token)
        self._left -= taken
        return taken

    def rollback(self, count: int) -> None:
        self._inner.rollback(count)
        self._left += count

    def forced(self, limit: int) -> list[int]:
        return []
