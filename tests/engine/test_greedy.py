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
    assert offered.choose(best, torch.cat((others, logits)), 2, offered.drafts, False) == expected
    assert offered.error is None and counted.taken == expected
    again = Offered(counted, best, VOCAB)
    again.forget()
    assert counted.taken == expected
