"""A guard changes nothing of an output in which it refuses nothing, and what it changes has the right distribution."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.completion import Completion, GuardedConstraint, Sampling
from dovetail.engine.masks import MaskRows
from dovetail.engine.sampling import draw, probabilities
from tests.engine.checkpoints import batches_of, load_core, write_drafter, write_target
from tests.engine.constraints import Automaton, Watched
from tests.engine.drafters import Peaked, use
from tests.engine.test_sampled import limit

VOCAB = 97
END = 1
PROMPT = (2, 3, 4, 5)
WORDS = (5, 9, 11, 20, 33, 60)
ENDING = [dict.fromkeys((END, *WORDS), 0)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return write_target(root / "target"), write_drafter(root / "drafter")


def test_which_constraints_have_a_guard() -> None:
    assert isinstance(Watched(ENDING, (END,), 2), GuardedConstraint)
    assert not isinstance(Automaton(ENDING), GuardedConstraint)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("drafted", [False, True])
def test_the_same_tokens_unless_the_guard_refuses_one(
    pair: tuple[Path, Path], temperature: float, drafted: bool
) -> None:
    """The bias makes the model want to end in some of the outputs."""
    core = load_core(*pair, draft_tokens=2, max_batch=8)
    if drafted:
        use(core, Peaked({5: 0.4, 9: 0.3, 60: 0.2, 11: 0.1}))
    completions = {}
    for seed in range(60):
        sampling = Sampling(temperature, seed=seed, logit_bias={END: seed / 10})
        asked = {"sampling": sampling, "draft_tokens": None if drafted else 0}
        completions[f"free {seed}"] = Completion(PROMPT, 6, constraint=Automaton(ENDING), **asked)  # type: ignore[arg-type]
        completions[f"{seed}"] = Completion(PROMPT, 6, constraint=Watched(ENDING, (END,), 3), **asked)  # type: ignore[arg-type]
    batches = batches_of(core, completions)
    ids = {name: [token for batch in each for token in batch.ids] for name, each in batches.items()}
    refused = {name: sum(batch.guarded for batch in each) for name, each in batches.items()}
    changed = 0
    for seed in range(60):
        free, watched = ids[f"free {seed}"], ids[f"{seed}"]
        assert END not in watched[:3] and not refused[f"free {seed}"]
        early = END in free[:3]
        assert bool(refused[f"{seed}"]) == early
        assert watched[: free.index(END)] == free[:-1] if early else watched == free
        changed += early
    assert 5 < changed < 60


@given(seed=st.integers(0, 10**6))
def test_drawn_twice_has_the_distribution_under_the_guard(seed: int) -> None:
    """Without cuts: what may come without the guard, and once more under it if that is refused."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, VOCAB, generator=generator) * 2
    logits[0, END] = 6.0
    masks, counts = MaskRows(1, VOCAB), dict.fromkeys(WORDS, 0)
    entry = masks.enter(Watched(ENDING, (END,), 1), (), 0)
    masks.fill()
    masks.apply(logits)
    strict = masks.under_guard(entry, 0, logits)
    draws = 400
    for _ in range(draws):
        token = draw(probabilities(logits, Sampling())[0], generator)
        if entry.refuses(0, token):
            token = draw(probabilities(strict, Sampling())[0], generator)
        counts[token] += 1
    share = probabilities(strict, Sampling())[0]
    cells = [(counts[token], float(share[token]) * draws) for token in WORDS if share[token] * draws >= 5]
    assert sum((seen - wanted) ** 2 / wanted for seen, wanted in cells) <= limit(max(1, len(cells)))


def test_a_refused_draft_leaves_the_guard_in_the_mask() -> None:
    """The drafter wanted to end: the token is drawn from what the guard allows, without the end."""
    masks = MaskRows(2, VOCAB)
    entry = masks.enter(Watched(ENDING, (END,), 1), (END,), 0)
    masks.fill()
    logits = torch.zeros(1, VOCAB)
    masks.apply(logits)
    assert entry.drafts == 0 and not entry.guarded
    assert {int(token) for token in logits[0].isfinite().nonzero()} == {*WORDS}
