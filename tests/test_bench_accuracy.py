"""The comparison of the demo pair's calls with and without a constraint: its counts, and a whole run."""

from __future__ import annotations

import pytest
import torch

from benchmarks.constraint import accuracy
from benchmarks.constraint.accuracy import Turn
from benchmarks.constraint.weights import DEMO

RIGHT, WRONG, NONE = Turn(1, 1, 1, True, 0), Turn(1, 1, 0, False, 1), Turn(0, 0, 0, True, 0)


def test_turns_are_compared_in_pairs() -> None:
    before = [RIGHT] * 3 + [WRONG] * 6 + [NONE]
    after = [RIGHT] * 2 + [WRONG] + [RIGHT] * 5 + [WRONG, NONE]
    row = accuracy.rows({(0.0, "off"): before, (0.0, "schema"): after})[1]
    assert (row["better"], row["worse"], row["exact"], row["right"], row["invalid"]) == (5, 1, 8, 7, 2)
    assert row["chance"] == pytest.approx(2 * (1 + 6) / 2**6)
    assert accuracy.rows({(0.0, "off"): before})[0]["chance"] == 1


@pytest.mark.slow
def test_the_demo_pair_is_measured_at_every_level() -> None:
    torch.set_num_threads(1)
    ticks: list[None] = []
    measured = accuracy.measure(DEMO, conversations=4, seeds=1, tick=lambda: ticks.append(None))
    assert len(ticks) == len(measured) == 6
    rows = accuracy.rows(measured)
    assert {row["turns"] for row in rows} == {4} and len({row["calls"] for row in rows}) == 1
    assert all(row["right"] > 0 for row in rows)
    assert rows[0]["invalid"] >= next(row for row in rows if row["strict"] == "schema")["invalid"]
