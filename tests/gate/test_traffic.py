"""Law 13 over traffic, as vLLM on a GPU serves it: what exploring costs, and how soon a change is found."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence

import pytest

from dovetail.gate import Gate
from tests.gate import gpu_traffic
from tests.gate.gpu_traffic import Accepts, K, found_within, fresh, recorded, serve, synthetic

Noise = Callable[[random.Random], Iterator[float]]

NOISES = [
    synthetic,
    pytest.param(
        recorded,
        marks=pytest.mark.skipif(not any(gpu_traffic.RECORDED.glob("*/diag.jsonl")), reason="no recorded step times"),
    ),
]
# Requests of about so many tokens. Short ones end so often that hardly any step of a batch can be timed.
LONG, SHORT = 272, 40


def never(step: int) -> float:
    return 0.0


def always(step: int) -> float:
    return 1.0


def pairs(
    accepts: Accepts, other: int, batch: int, steps: int, skipped: int, noise: Noise, seeds: Sequence[int]
) -> tuple[float, float]:
    """The drafts of fresh gates, and their speed in relation to a fixed number, after the first tokens; means."""
    drafted, speeds = [], []
    for seed, length in zip(seeds, (LONG, SHORT) * len(seeds), strict=False):

        def figures(gate: Gate, seed: int = seed, length: int = length) -> gpu_traffic.Figures:
            served = serve(gate, batch, accepts, steps, noise=noise, seed=seed, length=length, together=seed % 3 == 0)
            return served.after(skipped)

        gated, fixed = figures(fresh()), figures(gpu_traffic.fixed(other))
        drafted.append(gated.drafted)
        speeds.append(gated.rate / fixed.rate)
    return max(drafted), statistics.mean(speeds)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("batch", "steps"), [(1, 3200), (16, 400), (64, 150)])
def test_where_nothing_is_accepted_it_costs_two_hundredths(noise: Noise, batch: int, steps: int) -> None:
    """Of all drafts at most 2 % after the first 2,000 tokens, and no slower than a gate that a limit has closed."""
    drafted, speed = pairs(never, 0, batch, steps, 2000, noise, range(2))
    assert drafted <= 0.02 and speed >= 0.98


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("batch", "steps"), [(1, 800), (16, 700), (64, 150)])
def test_where_all_are_accepted_it_is_as_fast_as_always_drafting(noise: Noise, batch: int, steps: int) -> None:
    """From the 200th token of a fresh server on."""
    drafted, speed = pairs(always, K, batch, steps, 200, noise, range(2))
    assert drafted > 0.9 and speed >= 0.98


@pytest.mark.parametrize("batch", [1, 16, 64])
def test_a_change_of_traffic_is_found(batch: int) -> None:
    """Within 100 steps, in both directions."""
    opened, closed, change = [], [], 400
    for seed in range(4):
        after = serve(fresh(), batch, lambda i: 0.0 if i < change else 0.95, change + 150, seed=seed, together=False)
        opened.append(found_within(after.drafts, change, batch, opens=True))
        after = serve(fresh(), batch, lambda i: 0.95 if i < change else 0.0, change + 150, seed=seed, together=False)
        closed.append(found_within(after.drafts, change, batch, opens=False))
    assert max(opened) <= 100 and max(closed) <= 100, (opened, closed)


def test_new_requests_begin_with_what_recent_ones_of_their_kind_had() -> None:
    from dovetail.gate import CostModel, Limits, Track, UniformGate

    gate = UniformGate(CostModel.unmeasured(), Limits(), K)
    for _ in range(60):
        for kind, accepted in (("text", 0), ("constrained", K)):
            track = Track(kind)
            for _ in range(20):
                [drafts] = gate.decide([track], [50], [K]).allowed
                gate.observe([(track, drafts, drafts, min(drafts, accepted))] if drafts else [], 0.01 + 0.001 * drafts)
    begins = {}
    for kind in ("text", "constrained"):
        begins[kind] = gate.decide([Track(kind)], [50], [K]).counts[0]
        gate.observe([], None)
    assert begins == {"text": 0, "constrained": K}
