"""The gate's decisions: recorded ones, and properties of the pure function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.gate import Gate, Limits, Track
from dovetail.gate.decision import Batch, Clock, State, best_counts, decide, too_long_in
from tests.gate.replay import FAST, SCENARIOS, recorded, table

RECORDED = json.loads((Path(__file__).parent / "decisions.json").read_text())


@pytest.mark.parametrize("name", SCENARIOS)
def test_decisions_are_those_that_were_recorded(name: str) -> None:
    """To record them again: `json.dump({name: recorded(name) for name in SCENARIOS}, file, indent=0)`."""
    assert recorded(name) == RECORDED[name]


def test_a_decision_changes_nothing_that_it_is_given() -> None:
    """The same values, the same decision, as often as it is asked."""
    costs = table(FAST, 4)
    state, batch = State(usual=3), Batch([3, 3], [10, 20], [4, 2])
    survivals = [[0.9, 0.8, 0.7, 0.6], [0.2, 0.1]]
    for clock in (Clock(1, 0), Clock(100, 99)):
        first, second = (decide(state, clock, batch, Limits(), costs, survivals, best_counts) for _ in range(2))
        assert first == second
    assert state == State(usual=3) and costs == table(FAST, 4)


def test_sequences_that_reach_the_limit_are_named_while_a_decision_stands() -> None:
    gate, tracks = Gate(None, Limits(below_context=100), 2), [Track(), Track()]
    assert gate.decide(tracks, [98, 10], [2, 2]).too_long == ()
    decisions = [gate.decide(tracks, [context, 10], [0, 2]) for context in (99, 100, 101)]
    assert [each.too_long for each in decisions] == [(), (0,), (0,)]
    assert [each.allowed for each in decisions] == [(0, 2)] * 3
    assert too_long_in([99, 100], Limits(below_context=100)) == (1,)
