"""The gate's decisions: recorded ones, and properties of the pure function."""

from __future__ import annotations

import copy
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from dovetail.gate import CostModel, Forecast, Gate, Limits, Track
from dovetail.gate.costs import features
from dovetail.gate.decision import Batch, Clock, State, best_counts, decide, too_long_in
from tests.gate.replay import FAST, SCENARIOS, costs, recorded

RECORDED = json.loads((Path(__file__).parent / "decisions.json").read_text())


@pytest.mark.parametrize("name", SCENARIOS)
def test_decisions_are_those_that_were_recorded(name: str) -> None:
    """To record them again: `json.dump({name: recorded(name) for name in SCENARIOS}, file, indent=0)`."""
    assert recorded(name) == RECORDED[name]


def test_a_decision_changes_nothing_that_it_is_given() -> None:
    """The same values, the same decision, as often as it is asked."""
    state, batch = State(default=3, common=3), Batch([3, 3], [10, 20], [4, 2])
    forecast = Forecast([[0.9, 0.8, 0.7, 0.6], [0.2, 0.1]], [10, 20], costs(FAST, 4), [0.1] * 4)
    for clock in (Clock(1, 0), Clock(100, 99)):
        first, second = (decide(state, clock, batch, Limits(), forecast, best_counts) for _ in range(2))
        assert first == second
    assert state == State(default=3, common=3) and batch == Batch([3, 3], [10, 20], [4, 2])


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0])
def test_under_doubt_of_the_costs_the_drafters_own_number_stays(spread: float) -> None:
    """Two drafts make 3 % more than three, by the forecast."""
    covariance = [[spread**2 * (i == j == 4) for i in range(8)] for j in range(8)]
    costs = CostModel([1.0, 0.0, 0.0, 0.0, 0.1, *[0.0] * 3], covariance)
    forecast = Forecast([[0.7, 0.4, 0.1]], [10], costs, [0.0] * 3)
    assert 1.03 < forecast.options[2].rate / forecast.options[3].rate < 1.04 and forecast.best().counts == [2]
    _, decision = decide(
        State(default=3, common=3), Clock(1, 0), Batch([3], [10], [3]), Limits(), forecast, best_counts
    )
    assert (decision.counts == (2,)) is (spread < 1.0)


@pytest.mark.parametrize("spread", [0.0, 1.0, 100.0])
def test_drafts_that_are_never_accepted_are_given_up_however_much_is_in_doubt(spread: float) -> None:
    costs = CostModel(
        [1.0, 0.0, 0.0, 0.0, 0.1, *[0.0] * 3], [[spread**2 * (i == j) for i in range(8)] for j in range(8)]
    )
    forecast = Forecast([[0.001] * 3], [10], costs, [0.0] * 3)
    _, decision = decide(
        State(default=3, common=3), Clock(1, 0), Batch([3], [10], [3]), Limits(), forecast, best_counts
    )
    assert decision.counts == (0,)


def test_while_nothing_is_drafted_single_steps_draft_one_token() -> None:
    """At most a hundredth of the time, and seldom enough that all drafts of probes are few."""
    for per_draft, wait in ((0.01, 24), (0.3, 50), (3.0, 96)):
        costs = CostModel([1.0, 0.0, 0.0, 0.0, per_draft, *[0.0] * 3], [[0.0] * 8] * 8)
        gate, track, probes = Gate(costs, Limits(), 3), Track(), list[int]()
        for step in range(1000):
            [drafts] = gate.decide([track], [10], [3]).allowed
            gate.observe([(track, drafts, drafts, 0)] if drafts else [], costs.seconds(features([drafts], [10])))
            if drafts and step > 100:
                probes.append(step)
                assert drafts == 1
        # A longer trial of one draft may come between two probes.
        [(usual, _)] = Counter(b - a for a, b in pairwise(probes)).most_common(1)
        assert usual in (wait, wait + 1)


def test_sequences_that_reach_the_limit_are_named_while_a_decision_stands() -> None:
    gate, tracks = Gate(None, Limits(below_context=100), 2), [Track(), Track()]
    assert gate.decide(tracks, [98, 10], [2, 2]).too_long == ()
    decisions = [gate.decide(tracks, [context, 10], [0, 2]) for context in (99, 100, 101)]
    assert [each.too_long for each in decisions] == [(), (0,), (0,)]
    assert [each.allowed for each in decisions] == [(0, 2)] * 3
    assert too_long_in([99, 100], Limits(below_context=100)) == (1,)


def test_a_gate_can_be_copied_with_what_it_has_learned() -> None:
    """As benchmarks do, which begin with the same gate again and again."""
    gate, track = Gate(costs(FAST, 1), Limits(), 3), Track()
    for _ in range(40):
        gate, track = copy.deepcopy((gate, track))
        (drafts,) = gate.decide([track], [10], [3]).allowed
        gate.observe([(track, drafts, drafts, drafts)] if drafts else [], 1e-3)
    assert gate.expected_acceptance[0] > 0.8
