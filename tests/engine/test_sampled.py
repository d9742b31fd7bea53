"""Law 12, sampled: through the whole engine, output with drafts has the distribution of the target alone.

The expectation is computed, not drawn: every continuation of two tokens with its probability, by whole-sequence passes
of the target without cache, masks and cuts written out naively. Seeds are fixed, so a run is the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from dovetail.completion import Completion, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.sampling import draw
from tests.engine.checkpoints import load_core, run, write_drafter, write_target
from tests.engine.constraints import Automaton
from tests.engine.drafters import Peaked, use
from tests.engine.loop import last_logits

pytestmark = pytest.mark.slow

PROMPT = (2, 3, 4, 5)
DRAWS = 1500
ALLOWED = sorted({5, 9, 11, 20, 21, 33, 47, 60, 61, 70, 71, 90})
CASES = {
    "cut by top-k": Sampling(temperature=1.3, top_k=5),
    "cut by top-p": Sampling(temperature=0.8, top_p=0.5),
    "cut by min-p": Sampling(temperature=1.0, min_p=0.2),
    "penalised": Sampling(temperature=1.0, top_k=4, repetition_penalty=1.4, presence_penalty=0.5),
    "masked": Sampling(temperature=1.5),
}


def distribution(
    logits: list[float], sampling: Sampling, seen: set[int], earlier: list[int], mask: bool
) -> dict[int, float]:
    """Naive: token -> probability."""
    for token in seen:
        value = logits[token]
        logits[token] = value * sampling.repetition_penalty if value < 0 else value / sampling.repetition_penalty
    for token in set(earlier):
        logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * earlier.count(token)
    allowed = ALLOWED if mask else range(len(logits))
    weights = {t: math.exp(logits[t] / sampling.temperature) for t in allowed}
    most = max(weights.values())
    order = sorted((t for t, w in weights.items() if w >= sampling.min_p * most), key=lambda t: -weights[t])
    order = order[: sampling.top_k]
    total, kept, filled = sum(weights[t] for t in order), list[int](), 0.0
    for token in order:
        if filled >= sampling.top_p:
            break
        kept.append(token)
        filled += weights[token] / total
    total = sum(weights[t] for t in kept)
    return {t: weights[t] / total for t in kept}


def expected(core: LLMCore, sampling: Sampling, mask: bool) -> dict[tuple[int, int], float]:
    """Probability of every pair of first tokens; an end token counts as followed by itself."""
    pairs: dict[tuple[int, int], float] = {}
    first = distribution(last_logits(core.models.target, list(PROMPT)), sampling, set(PROMPT), [], mask)
    for token, share in first.items():
        if token == 1:
            pairs[1, 1] = share
            continue
        logits = last_logits(core.models.target, [*PROMPT, token])
        for other, after in distribution(logits, sampling, {*PROMPT, token}, [token], mask).items():
            pairs[token, other] = share * after
    return pairs


def distance(counts: dict[tuple[int, int], int], pairs: dict[tuple[int, int], float]) -> tuple[float, int]:
    """Pearson's chi-square and its degrees of freedom; outcomes expected fewer than 5 times are put together."""
    draws = sum(counts.values())
    assert counts.keys() <= pairs.keys(), "something came out that cannot"
    rare = {pair for pair, share in pairs.items() if share * draws < 5}
    cells = [(counts.get(pair, 0), share * draws) for pair, share in pairs.items() if pair not in rare]
    if rare:
        cells.append((sum(counts.get(pair, 0) for pair in rare), sum(pairs[pair] for pair in rare) * draws))
    return sum((seen - share) ** 2 / share for seen, share in cells), len(cells) - 1


def limit(freedom: int) -> float:
    """Chi-square's 0.9999 quantile (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return write_target(root / "target"), write_drafter(root / "drafter")


def drawn(
    core: LLMCore, sampling: Sampling, mask: bool, drafts: bool, draws: int = DRAWS
) -> dict[tuple[int, int], int]:
    """How often each pair of first tokens came out."""
    counts: dict[tuple[int, int], int] = {}
    for begin in range(0, DRAWS, 500):
        completions = {
            str(i): Completion(
                PROMPT,
                3,
                sampling=msgspec.structs.replace(sampling, seed=i),
                constraint=Automaton([dict.fromkeys(ALLOWED, 0)]) if mask else None,
                draft_tokens=None if drafts else 0,
            )
            for i in range(begin, min(begin + 500, DRAWS))
        }
        for ids in run(core, completions).values():
            pair_of = (ids[0], ids[1] if ids[0] != 1 else 1)
            counts[pair_of] = counts.get(pair_of, 0) + 1
    return counts


def peaked(pairs: dict[tuple[int, int], float]) -> Peaked:
    """Half of its drafts are the likeliest second token, the others the next three and one that cannot come."""
    shares: dict[int, float] = {}
    for (_, token), share in pairs.items():
        shares[token] = shares.get(token, 0) + share
    likeliest = sorted(shares, key=lambda token: -shares[token])[:4]
    return Peaked(dict(zip([*likeliest, 4], (0.5, 0.2, 0.1, 0.1, 0.1), strict=True)))


def pairs_of_tokens() -> Iterator[Any]:
    """Every case with every drafter. In `.ci/run`: every case with one drafter, and the drafter that learned in one."""
    for drafter, case in product(("eagle3", "peaked", "none"), CASES):
        in_ci = drafter == "peaked" or (drafter, case) == ("eagle3", "penalised")
        yield pytest.param(drafter, case, marks=() if in_ci else pytest.mark.proof)


@pytest.mark.parametrize(("drafter", "case"), list(pairs_of_tokens()))
def test_pairs_of_tokens(pair: tuple[Path, Path], drafter: str, case: str) -> None:
    sampling, mask, drafts = CASES[case], case == "masked", drafter != "none"
    core = load_core(*pair, draft_tokens=3, max_batch=16)
    pairs = expected(core, sampling, mask)
    if drafter == "peaked":
        use(core, peaked(pairs))
    counts = drawn(core, sampling, mask, drafts)
    assert math.isclose(sum(pairs.values()), 1, rel_tol=1e-5) and len(pairs) > 4
    chi, freedom = distance(counts, pairs)
    assert chi < limit(freedom), (chi, freedom)
    counters = core.counters()
    assert bool(counters.drafted) == drafts and (not drafts or 0 < counters.accepted < counters.drafted)


def test_a_wrong_verifier_is_noticed(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that replaces a fallen draft by a token of p, and not of what p has more than q."""

    def careless(target: Tensor, drafts: list[int], drafter: Tensor, generator: torch.Generator) -> list[int]:
        for i, draft in enumerate(drafts):
            if torch.rand(1, generator=generator) * drafter[i, draft] >= target[i, draft]:
                return [*drafts[:i], draw(target[i], generator)]
        return [*drafts, draw(target[len(drafts)], generator)]

    monkeypatch.setattr("dovetail.engine.step.verify_sampled", careless)
    core = load_core(*pair, draft_tokens=3, max_batch=16)
    pairs = expected(core, CASES["cut by top-k"], False)
    use(core, peaked(pairs))
    chi, freedom = distance(drawn(core, CASES["cut by top-k"], False, True), pairs)
    assert chi > limit(freedom), (chi, freedom)
