"""Law 12, sampled: with drafts the output is distributed as without them, truncation and masks included."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.completion import Completion, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.sampling import probabilities
from dovetail.engine.verify import verify_greedy, verify_sampled
from tests.engine.checkpoints import ByteTokenizer, run, write_drafter, write_target
from tests.engine.constraints import Automaton


def chi_square(observed: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], samples: int) -> float:
    """How far off, in standard deviations of a chi-square of as many degrees of freedom (cells below 5 are pooled)."""
    large = {cell: p * samples for cell, p in expected.items() if p * samples >= 5}
    pooled = samples - sum(large.values())
    statistic = sum((observed[cell] - want) ** 2 / want for cell, want in large.items())
    if pooled >= 5:
        rest = samples - sum(observed[cell] for cell in large)
        statistic += (rest - pooled) ** 2 / pooled
    freedom = len(large) - (pooled < 5)
    return (statistic - freedom) / math.sqrt(2 * freedom)


SAMPLINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.6, top_k=3),
    Sampling(temperature=1.5, top_p=0.7),
    Sampling(temperature=0.9, top_k=4, top_p=0.8),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("kind", ["drawn", "certain", "refused at the end"])
def test_verification_keeps_the_distribution(sampling: Sampling, kind: str) -> None:
    """Two positions of a 6-token vocabulary, p the same after every token, token 2 masked; q is unlike p."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 6, generator=generator)
    logits[:, 2] = -math.inf
    p = probabilities(logits, sampling)
    q = torch.randn(2, 6, generator=generator).softmax(-1)
    samples = 12_000
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(samples):
        if kind == "certain":
            drafts, rows = [1, 4], None
        else:
            drafts, rows = [int(torch.multinomial(row, 1, generator=generator)) for row in q], q
        if kind == "refused at the end" and 2 in drafts:
            # What a window cut by a constraint looks like: the refused draft is gone, its distribution stays.
            cut = drafts.index(2)
            drafts, rows = drafts[:cut], q[: cut + 1]
        new = verify_sampled(p[: len(drafts) + 1], drafts, rows, generator)
        # The first two tokens; where verification gave one only, the second would come from the next step.
        new = [*new, int(torch.multinomial(p[1], 1, generator=generator))]
        seen[tuple(new[:2])] += 1
    expected = {(a, b): float(p[0, a] * p[1, b]) for a in range(6) for b in range(6)}
    assert chi_square(seen, expected, samples) < 4
    assert not any(2 in pair for pair in seen)


def test_the_chi_square_test_can_fail() -> None:
    """Accepting every draft is caught by the same test."""
    generator = torch.Generator().manual_seed(5)
    p, q = (torch.randn(1, 6, generator=generator).softmax(-1) for _ in range(2))
    seen = Counter((int(torch.multinomial(q[0], 1, generator=generator)),) for _ in range(2000))
    assert chi_square(seen, {(i,): float(p[0, i]) for i in range(6)}, 2000) > 10


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.data())
def test_greedy_keeps_the_longest_true_prefix(best: list[int], data: st.DataObject) -> None:
    drafts = data.draw(st.lists(st.integers(0, 3), min_size=len(best) - 1, max_size=len(best) - 1))
    new = verify_greedy(best, drafts)
    assert new == best[: len(new)] and new[:-1] == drafts[: len(new) - 1]
    assert len(new) == len(best) or drafts[len(new) - 1] != best[len(new) - 1]


@given(st.integers(1, 9), st.floats(0.01, 1.0), st.floats(0.1, 3.0), st.integers(0, 50))
def test_truncation(top_k: int, top_p: float, temperature: float, seed: int) -> None:
    """top-k keeps the k likeliest; top-p the fewest of those that reach top_p; what stays keeps its proportions."""
    logits = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed))
    probs = probabilities(logits, Sampling(temperature, top_p, top_k))[0]
    plain = (logits[0] / temperature).softmax(-1)
    order = plain.argsort(descending=True).tolist()[:top_k]
    kept = [i for i in order if probs[i] > 0]
    assert kept == order[: len(kept)] and float(probs.sum()) == pytest.approx(1)
    share = plain[order] / plain[order].sum()
    assert float(share[: len(kept) - 1].sum()) < top_p + 1e-5
    assert len(kept) == len(order) or float(share[: len(kept)].sum()) >= top_p - 1e-5
    assert torch.allclose(probs[kept], plain[kept] / plain[kept].sum(), atol=1e-5)


@pytest.mark.parametrize("constrained", [False, True])
def test_engine_samples_alike_with_and_without_drafts(constrained: bool, tmp_path: Path) -> None:
    """Through the whole engine, many seeds after one prompt: the tokens at each position are as frequent either way."""
    target, drafter = write_target(tmp_path / "t"), write_drafter(tmp_path / "d", seed=3)
    counts: list[list[Counter[int]]] = []
    samples = 1000
    for k in (0, 3):
        core = LLMCore(target, drafter if k else None, ByteTokenizer(), draft_tokens=k, max_batch=64, threads=1)
        wanted = {
            f"{k}-{i}": Completion(
                (2, 3, 4),
                4,
                sampling=Sampling(0.7, 0.9, 8, seed=i + 10_000 * k),
                constraint=Automaton.sample(4, states=3) if constrained else None,
            )
            for i in range(samples)
        }
        out = run(core, wanted)
        counts.append([Counter(ids[at] for ids in out.values() if len(ids) > at) for at in range(4)])
    for without, drafted in zip(*counts, strict=True):
        total = sum(without.values()) + sum(drafted.values())
        cells = [t for t in without | drafted if without[t] + drafted[t] >= 20]
        share = sum(drafted.values()) / total
        statistic = sum(
            (drafted[t] - (without[t] + drafted[t]) * share) ** 2 / ((without[t] + drafted[t]) * share * (1 - share))
            for t in cells
        )
        assert statistic < len(cells) + 4 * math.sqrt(2 * len(cells))


def test_a_seed_repeats_itself(tmp_path: Path) -> None:
    target, drafter = write_target(tmp_path / "t"), write_drafter(tmp_path / "d")
    outputs = []
    for seed in (7, 7, 8):
        core = LLMCore(target, drafter, ByteTokenizer(), draft_tokens=3, threads=1)
        outputs.append(run(core, {"a": Completion((2, 3, 4), 20, sampling=Sampling(seed=seed))})["a"])
    assert outputs[0] == outputs[1] != outputs[2]
