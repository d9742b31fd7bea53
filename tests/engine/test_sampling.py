"""From logits to a distribution and to log probabilities, compared with simple loops in numpy and float64."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from dovetail.completion import Sampling
from dovetail.engine.sampling import Penalties, check_sampling, draw, logprobs, probabilities
from dovetail.errors import InvalidRequest

VOCAB = 12
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=12)
PENALTY = st.sampled_from([-2.0, -0.7, 0.0, 0.3, 2.0])
REPETITION = st.sampled_from([0.5, 1.0, 1.3, 4.0])


def random_logits(rows: int, seed: int, vocab: int = VOCAB) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def naive_penalties(
    row: Sequence[float], prompt: Sequence[int], output: Sequence[int], sampling: Sampling
) -> list[float]:
    counts = Counter(output)
    out = []
    for token, logit in enumerate(row):
        if token in prompt or token in counts:
            logit = logit * sampling.repetition_penalty if logit < 0 else logit / sampling.repetition_penalty
        logit -= counts[token] * sampling.frequency_penalty
        if token in counts:
            logit -= sampling.presence_penalty
        out.append(logit)
    return out


@given(TOKENS, TOKENS, TOKENS, PENALTY, PENALTY, REPETITION, st.integers(0, 99), st.data())
def test_penalties_are_those_of_a_dictionary_of_counts(
    prompt: list[int],
    output: list[int],
    drafts: list[int],
    presence: float,
    frequency: float,
    repetition: float,
    seed: int,
    data: st.DataObject,
) -> None:
    """Row j is as if the drafts before it were accepted; many tokens are as one by one; a masked token stays masked."""
    sampling = Sampling(presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition)
    penalties = Penalties.of(sampling, prompt, VOCAB)
    if presence == frequency == 0 and repetition == 1:
        assert penalties is None
        return
    assert penalties is not None
    cut = data.draw(st.integers(0, len(output)))
    penalties.add(output[:cut])
    penalties.apply_(random_logits(len(drafts) + 1, 0), drafts)  # drafts that fell leave nothing behind
    penalties.add(output[cut:])
    logits = random_logits(len(drafts) + 1, seed)
    logits[:, 5] = -math.inf
    logits[:, 6] = 0.0
    before = logits.clone()
    # A part of a step's logits, as the engine has them.
    batch = torch.cat([torch.ones(2, VOCAB), logits, torch.ones(1, VOCAB)])
    penalties.apply_(batch[2:-1], drafts)
    assert bool((batch[[0, 1, -1]] == 1).all())
    for j, row in enumerate(before.tolist()):
        wanted = naive_penalties(row, prompt, output + drafts[:j], sampling)
        assert batch[2 + j].tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    assert bool((batch[2:-1, 5] == -math.inf).all())


@given(TOKENS.filter(bool), TOKENS, st.sampled_from([0.5, 1.3, 4.0]), st.integers(0, 99))
def test_repetition_is_that_of_transformers(prompt: list[int], output: list[int], penalty: float, seed: int) -> None:
    logits = random_logits(1, seed)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
    penalties = Penalties(Sampling(repetition_penalty=penalty), prompt, VOCAB)
    penalties.add(output)
    penalties.apply_(logits, [])
    assert torch.equal(logits, theirs)


@given(TOKENS, TOKENS, st.integers(0, 99))
def test_a_row_after_drafts_is_bit_for_bit_that_without_drafting(
    output: list[int], drafts: list[int], seed: int
) -> None:
    """Law 12 for greedy answers with penalties: not nearly the same logits, the same."""
    sampling = Sampling(presence_penalty=0.3, frequency_penalty=0.7, repetition_penalty=1.3)
    rows = random_logits(len(drafts) + 1, seed)
    drafted, plain = Penalties(sampling, [3], VOCAB), Penalties(sampling, [3], VOCAB)
    drafted.add(output)
    plain.add(output)
    together = rows.clone()
    drafted.apply_(together, drafts)
    for j in range(len(rows)):
        row = rows[j : j + 1].clone()
        plain.apply_(row, [])
        assert torch.equal(row[0], together[j])
        plain.add(drafts[j : j + 1])


def test_every_token_may_have_been_seen() -> None:
    penalties = Penalties(Sampling(repetition_penalty=2.0, frequency_penalty=1.0), range(VOCAB), VOCAB)
    penalties.add([*range(VOCAB)] * 2)
    logits = torch.ones(2, VOCAB)
    penalties.apply_(logits, [4])
    assert logits[0].tolist() == [0.5 - 2] * VOCAB
    assert logits[1].tolist() == [0.5 - 3 if token == 4 else 0.5 - 2 for token in range(VOCAB)]


def naive_probabilities(row: Sequence[float], sampling: Sampling) -> tuple[np.ndarray[Any, Any], float]:
    """In float64: the distribution, and how near the nearest decision to keep a token was to falling otherwise."""
    scaled = np.array(row, dtype=np.float64) / sampling.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    margins = [1.0]
    if sampling.min_p:
        floor = sampling.min_p * probs.max()
        margins += [abs(p - floor) for p in probs if p and p != probs.max()]
        probs[probs < floor] = 0
    order = sorted(range(len(row)), key=lambda token: (-probs[token], token))
    if sampling.top_k is not None:
        for token in order[sampling.top_k :]:
            if probs[token] < probs[order[sampling.top_k - 1]]:
                probs[token] = 0
    probs /= probs.sum()
    filled = 0.0
    for token in order:
        if sampling.top_p < 1:
            margins.append(abs(filled - sampling.top_p))
            if filled >= sampling.top_p:
                probs[token] = 0
        filled += probs[token]
    return probs / probs.sum(), min(margins)


@given(
    st.floats(0.05, 3.0),
    st.just(1.0) | st.floats(0.01, 1.0),
    st.none() | st.integers(1, 15),
    st.sampled_from([0.0, 1.0]) | st.floats(0.001, 1.0),
    st.integers(0, 10_000),
    st.sampled_from([VOCAB, 700]),
)
def test_truncation_is_that_of_naive_code(
    temperature: float, top_p: float, top_k: int | None, min_p: float, seed: int, vocab: int
) -> None:
    """Temperature, min-p, top-k, top-p, in this order; the larger vocabulary is more than top-p looks at first."""
    sampling = Sampling(temperature, top_p, top_k, min_p)
    logits = random_logits(2, seed, vocab)
    logits[1, ::3] = -math.inf  # masked by a constraint
    wanted = [naive_probabilities(row, sampling) for row in logits.tolist()]
    assume(all(margin > 1e-5 for _, margin in wanted))
    probs = probabilities(logits, sampling)
    assert probs.dtype == torch.float32
    for row, (naive, _) in zip(probs, wanted, strict=True):
        assert row.tolist() == pytest.approx(naive.tolist(), rel=1e-3, abs=1e-6)
        assert [p > 0 for p in row.tolist()] == [p > 1e-45 for p in naive.tolist()]
    assert not probs[1, ::3].any()


def test_top_p_over_a_large_vocabulary() -> None:
    """Whether the nucleus is in the first few, the first few hundred or not, it is the one that sorting all gives."""
    logits = random_logits(3, 5, 3000) / 3
    logits[0, 7] += 20
    logits[1] *= 2
    rows = [
        *probabilities(logits, Sampling(top_p=0.8)),
        *(probabilities(row[None], Sampling(top_p=0.8))[0] for row in logits),
    ]
    sizes = []
    for row, plain in zip(rows, [*logits.softmax(-1)] * 2, strict=True):
        order = plain.argsort(descending=True)
        kept = int((row > 0).sum())
        assert set(order[:kept].tolist()) == set(row.nonzero().squeeze(1).tolist())
        assert float(plain[order[: kept - 1]].sum()) < 0.8 <= float(plain[order[:kept]].sum()) + 1e-6
        sizes.append(kept)
    assert sizes[:3] == sizes[3:]
    assert sizes[0] == 1 and 64 < sizes[1] < 512 < sizes[2]


def test_equals_at_the_edge() -> None:
    """Those as likely as the last of top-k or min-p stay; top-p takes no more than fill it."""
    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]])
    assert probabilities(logits, Sampling(top_k=2))[0].tolist() == [0.25, 0.25, 0.25, 0.25, 0.0]
    assert probabilities(logits, Sampling(min_p=1.0))[0].tolist() == [0.25, 0.25, 0.25, 0.25, 0.0]
    assert int((probabilities(logits, Sampling(top_k=1, top_p=0.5)) > 0).sum()) == 2
    assert int((probabilities(logits, Sampling(top_p=5e-324)) > 0).sum()) == 1


def test_extremes_stay_distributions() -> None:
    """The smallest and largest that a request may ask for give no NaN."""
    logits = torch.tensor([[9.0, 1e4, -1e4, 3.0], [-math.inf, -5.0, -math.inf, -1e4]])
    for temperature in (1e-5, 1e30):
        for repetition in (1e-6, 1e6):
            sampling = Sampling(temperature, 1e-30, 3, 5e-324, 2, -2, repetition)
            check_sampling(sampling)
            for row in logits:
                penalised = row.unsqueeze(0).clone()
                penalties = Penalties(sampling, [0, 1, 2, 3], 4)
                penalties.apply_(penalised, [])
                probs = probabilities(penalised, sampling)
                assert float(probs.sum()) == pytest.approx(1) and not probs[0][row == -math.inf].any()


def test_tokens_are_drawn_as_often_as_their_probability() -> None:
    weights = torch.tensor([0.0, 3.0, 0.0, 1e-7, 5.0, 2.0, 0.0])  # need not sum to 1
    generator = torch.Generator().manual_seed(3)
    samples = 20_000
    seen = Counter(draw(weights, generator) for _ in range(samples))
    assert set(seen) <= {1, 3, 4, 5}
    statistic = sum(
        (seen[token] - samples * share) ** 2 / (samples * share) for token, share in ((1, 0.3), (4, 0.5), (5, 0.2))
    )
    assert statistic < 13.8  # chi-square of two degrees of freedom, p = 0.001; the seed is fixed


def test_a_draw_at_either_end_has_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0])
    for point, token in ((0.0, 1), (1 - 2**-53, 3)):
        monkeypatch.setattr(torch, "rand", lambda *_, point=point, **__: torch.tensor([point], dtype=torch.float64))
        assert draw(weights, None) == token


def naive_logprobs(row: Sequence[float], top: int) -> tuple[list[float], list[int]]:
    total = math.log(math.fsum(math.exp(logit) for logit in row))
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    return [logit - total for logit in row], order[:top]


@given(
    st.lists(
        st.lists(
            st.sampled_from([-4.0, -1.5, -0.0, 0.0, 0.25, 2.0]) | st.floats(-9, 9, width=32),
            min_size=VOCAB,
            max_size=VOCAB,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 20),
    st.data(),
)
def test_logprobs(rows: list[list[float]], top: int, data: st.DataObject) -> None:
    """Of the model's own logits; exact order, and of equals (the values above repeat) the lower id first."""
    tokens = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=len(rows) - 1, max_size=len(rows)))
    entries = logprobs(torch.tensor(rows), tokens, top)
    assert [entry.token for entry in entries] == tokens
    for entry, row in zip(entries, rows, strict=False):
        naive, order = naive_logprobs(row, top)
        assert entry.logprob == pytest.approx(naive[entry.token], abs=1e-5)
        assert [token for token, _ in entry.top] == order
        assert [value for _, value in entry.top] == pytest.approx([naive[token] for token in order], abs=1e-5)
        assert all(value == entry.logprob for token, value in entry.top if token == entry.token)


def test_many_equals_are_cut_where_asked() -> None:
    (entry,) = logprobs(torch.zeros(1, 5000), [4999], 20)
    assert [token for token, _ in entry.top] == list(range(20))
    assert entry.logprob == pytest.approx(-math.log(5000))


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", (-0.1, INF, NAN)),
        ("top_p", (0.0, 1.1, -INF, NAN)),
        ("top_k", (0, -1)),
        ("min_p", (-0.1, 1.1, INF, NAN)),
        ("presence_penalty", (-2.1, 2.1, INF, NAN)),
        ("frequency_penalty", (-2.1, 2.1, -INF, NAN)),
        ("repetition_penalty", (0.0, -1.0, INF, NAN)),
    ],
)
def test_a_value_out_of_range_is_refused_by_field(field: str, values: tuple[float, ...]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest, match=field) as error:
            check_sampling(msgspec.structs.replace(Sampling(), **{field: value}))
        assert error.value.param == field


def test_how_many_logprobs_is_checked_too() -> None:
    for fine in (None, 0, 20):
        check_sampling(Sampling(), fine)
    for wrong in (-1, 21):
        with pytest.raises(InvalidRequest, match="logprobs") as error:
            check_sampling(Sampling(), wrong)
        assert error.value.param == "logprobs"
