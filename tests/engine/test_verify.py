"""Law 12, sampled: with drafts the output is distributed as without them, truncation and masks included."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dovetail.completion import Completion, Sampling
from dovetail.engine.sampling import Penalties, draw, probabilities
from dovetail.engine.verify import verify_greedy, verify_sampled
from tests.engine.checkpoints import load_core, run, write_drafter, write_target
from tests.engine.constraints import Automaton

pytestmark = pytest.mark.slow


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


VOCAB, MASKED, SAMPLES = 6, 2, 6_000
Verifier = Callable[[Tensor, Sequence[int], Tensor | None, torch.Generator], list[int]]
KINDS = ["drawn", "certain", "refused at the end"]
SAMPLINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.6, top_k=3),
    Sampling(temperature=1.5, top_p=0.7),
    Sampling(temperature=1.2, min_p=0.3),
    Sampling(temperature=0.9, min_p=0.02, top_k=4, top_p=0.8),
    Sampling(temperature=1.0, presence_penalty=1.5),
    Sampling(temperature=0.8, top_p=0.9, frequency_penalty=1.0, repetition_penalty=1.5),
]


class Pairs:
    """The first two tokens of answers in a 6-token vocabulary whose logits depend on the place, with token 2 masked;
    penalties make the second depend on the first. The drafter is unlike the target and knows of neither."""

    def __init__(self, sampling: Sampling) -> None:
        self.generator = torch.Generator().manual_seed(5)
        self._sampling = sampling
        self._logits = torch.tensor(
            [[0.5, 1.0, 2.0, 0.1, 0.3, -1.0], [0.0, -0.5, 2.0, 0.8, 1.0, 0.3], [0.6, 0.4, 0.2, 0.0, -0.2, 1.2]]
        )
        self._q = torch.tensor([[0.3, 0.05, 0.3, 0.05, 0.25, 0.05], [0.1, 0.3, 0.3, 0.05, 0.05, 0.2]])
        self.target = functools.cache(self._target)

    def _target(self, earlier: tuple[int, ...], drafts: tuple[int, ...]) -> Tensor:
        """p at the places of `drafts` and one more, after the tokens `earlier`."""
        logits = self._logits[len(earlier) : len(earlier) + len(drafts) + 1].clone()
        logits[:, MASKED] = -math.inf
        penalties = Penalties.of(self._sampling, [1, 3], VOCAB)
        if penalties is not None:
            penalties.add(earlier)
            penalties.apply_(logits, drafts)
        return probabilities(logits, self._sampling)

    def expected(self) -> dict[tuple[int, ...], float]:
        """What plain sampling gives."""
        first = self.target((), ())[0].tolist()
        second = [self.target((a,), ())[0].tolist() for a in range(VOCAB)]
        return {(a, b): first[a] * second[a][b] for a in range(VOCAB) for b in range(VOCAB)}

    def drafted(self, kind: str, verify: Verifier) -> tuple[int, int]:
        rows: Tensor | None = None
        if kind == "certain":
            drafts = (1, 4)
        else:
            rows = self._q
            drafts = tuple(torch.multinomial(rows, 1, generator=self.generator).squeeze(1).tolist())
            if kind == "refused at the end" and MASKED in drafts:
                # What a window cut by a constraint looks like: the refused draft is gone, its distribution stays.
                drafts = drafts[: drafts.index(MASKED)]
                rows = rows[: len(drafts) + 1]
        new = verify(self.target((), drafts), drafts, rows, self.generator)
        if len(new) == 1:  # the second comes from the next step
            new = [*new, draw(self.target((new[0],), ())[0], self.generator)]
        return new[0], new[1]


def distance(sampling: Sampling, kind: str, verify: Verifier) -> float:
    """`chi_square` of many pairs drafted and verified, beside plain sampling."""
    pairs = Pairs(sampling)
    expected = pairs.expected()
    seen: Counter[tuple[int, ...]] = Counter(pairs.drafted(kind, verify) for _ in range(SAMPLES))
    assert all(expected[pair] > 0 for pair in seen) or verify is not verify_sampled
    return chi_square(seen, expected, SAMPLES)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_verification_keeps_the_distribution(sampling: Sampling, kind: str) -> None:
    assert distance(sampling, kind, verify_sampled) < 4


def accept_always(p: Tensor, drafts: Sequence[int], q: Tensor | None, generator: torch.Generator) -> list[int]:
    return [*drafts, draw(p[-1], generator)]


def nothing_subtracted(p: Tensor, drafts: Sequence[int], q: Tensor | None, generator: torch.Generator) -> list[int]:
    for i, draft in enumerate(drafts):
        if float(torch.rand(1, generator=generator)) * (1 if q is None else float(q[i, draft])) >= float(p[i, draft]):
            return [*drafts[:i], draw(p[i], generator)]
    return [*drafts, draw(p[-1], generator)]


def refused_forgotten(p: Tensor, drafts: Sequence[int], q: Tensor | None, generator: torch.Generator) -> list[int]:
    return verify_sampled(p, drafts, None if q is None or not drafts else q[: len(drafts)], generator)


@pytest.mark.parametrize("sampling", SAMPLINGS[::2], ids=str)
@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (accept_always, "drawn"),
        (accept_always, "certain"),
        (nothing_subtracted, "drawn"),
        (nothing_subtracted, "certain"),
        (refused_forgotten, "refused at the end"),
    ],
)
def test_a_wrong_verifier_is_caught(sampling: Sampling, wrong: Verifier, kind: str) -> None:
    """By the same test, so that one can fail."""
    assert distance(sampling, kind, wrong) > 10


def test_penalties_that_do_not_see_drafts_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Penalties.apply_
    monkeypatch.setattr(
        Penalties, "apply_", lambda self, logits, drafts: [apply(self, row[None], ()) for row in logits]
    )
    assert distance(SAMPLINGS[-2], "drawn", verify_sampled) > 10


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_drafter_that_is_right_is_never_refused(sampling: Sampling) -> None:
    pairs = Pairs(sampling)
    for _ in range(200):
        drafts: tuple[int, ...] = ()
        for _ in range(2):
            drafts = (*drafts, draw(pairs.target(drafts, ())[0], pairs.generator))
        p = pairs.target((), drafts)
        assert verify_sampled(p, drafts, p[:2], pairs.generator)[:2] == list(drafts)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.data())
def test_greedy_keeps_the_longest_true_prefix(best: list[int], data: st.DataObject) -> None:
    drafts = data.draw(st.lists(st.integers(0, 3), min_size=len(best) - 1, max_size=len(best) - 1))
    new = verify_greedy(best, drafts)
    assert new == best[: len(new)] and new[:-1] == drafts[: len(new) - 1]
    assert len(new) == len(best) or drafts[len(new) - 1] != best[len(new) - 1]


PENALISED = Sampling(0.7, presence_penalty=0.5, frequency_penalty=1.0, repetition_penalty=1.4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "constrained"),
    [
        pytest.param(Sampling(0.7, 0.9, 8), False, id="free", marks=pytest.mark.proof),
        pytest.param(Sampling(0.7, 0.95, min_p=0.02), True, id="constrained", marks=pytest.mark.proof),
        pytest.param(PENALISED, True, id="penalised and constrained"),
    ],
)
def test_engine_samples_alike_with_and_without_drafts(sampling: Sampling, constrained: bool, tmp_path: Path) -> None:
    """Through the whole engine, many seeds after one prompt: the tokens at each position are as frequent either way."""
    target, drafter = write_target(tmp_path / "t"), write_drafter(tmp_path / "d", seed=3)
    counts: list[list[Counter[int]]] = []
    samples = 1000
    for k in (0, 3):
        core = load_core(target, drafter if k else None, draft_tokens=k, max_batch=64)
        wanted = {
            f"{k}-{i}": Completion(
                (2, 3, 4),
                4,
                sampling=msgspec.structs.replace(sampling, seed=i + 10_000 * k),
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


def test_greedy_answers_with_penalties_are_the_same_with_drafts(tmp_path: Path) -> None:
    target, drafter = write_target(tmp_path / "t"), write_drafter(tmp_path / "d", seed=3)
    plain, penalised = Sampling(0), msgspec.structs.replace(PENALISED, temperature=0.0)
    wanted = {
        f"{name} {i}": Completion((2, 3 + i, 4), 60, sampling=sampling)
        for name, sampling in (("plain", plain), ("penalised", penalised))
        for i in range(4)
    }
    without, drafted = (run(load_core(target, drafter if k else None, draft_tokens=k), wanted) for k in (0, 3))
    assert drafted == without
    assert all(without[f"plain {i}"] != without[f"penalised {i}"] for i in range(4))


def test_a_seed_repeats_itself(tmp_path: Path) -> None:
    target, drafter = write_target(tmp_path / "t"), write_drafter(tmp_path / "d")
    outputs = []
    for seed in (7, 7, 8):
        core = load_core(target, drafter, draft_tokens=3)
        outputs.append(run(core, {"a": Completion((2, 3, 4), 20, sampling=Sampling(seed=seed))})["a"])
    assert outputs[0] == outputs[1] != outputs[2]
