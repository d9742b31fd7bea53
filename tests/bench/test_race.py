"""Settings told apart by rounds: what is ruled out and when, that drift of the machine does not matter, and limits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.bench.figures import Cell
from dovetail.bench.race import Place, Race, Round

SETTINGS = ("none", "slow", "fast", "faster")
PLACES: tuple[Place, ...] = ((256, 1, "prose"), (256, 4, "prose"), (4096, 1, "prose"), (4096, 4, "prose"))
SPEEDS = {"none": 1.0, "slow": 0.6, "fast": 1.5, "faster": 1.52}


def rounds(
    speeds: dict[str, float], number: int, *, noise: float = 0.02, drift: tuple[float, ...] = (), seed: int = 0
) -> list[Round]:
    """So many rounds of settings with these speeds, and machines that are `drift` times as fast from round to round."""
    draw, made = random.Random(seed), []
    for n in range(1, number + 1):
        machine = 100 * (drift[n - 1] if drift else 1.0)
        for name, speed in speeds.items():
            cells = [
                Cell("e", *place, name, waves=(machine * speed * draw.uniform(1 - noise, 1 + noise),) * 2)
                for place in PLACES
            ]
            made.append(Round(n, name, tuple(cells)))
    return made


def test_nothing_is_ruled_out_before_the_third_round() -> None:
    assert Race(SETTINGS, rounds(SPEEDS, 2)).left == list(SETTINGS)
    race = Race(SETTINGS, rounds(SPEEDS, 3))
    assert race.left == ["fast", "faster"] and race.best in race.left
    assert race.ruled_out["slow"].startswith("0.") and "after 3 rounds" in race.ruled_out["slow"]


@given(st.lists(st.floats(0.2, 5), min_size=4, max_size=4), st.integers(0, 99))
def test_a_machine_that_drifts_changes_no_comparison(drift: list[float], seed: int) -> None:
    still = Race(SETTINGS, rounds(SPEEDS, 4, seed=seed)).standings()
    drifting = Race(SETTINGS, rounds(SPEEDS, 4, seed=seed, drift=tuple(drift))).standings()
    ratios = {each.setting: each.beside_first.ratio for each in still if each.beside_first is not None}
    for each in drifting:
        assert each.beside_first is not None
        assert each.beside_first.ratio == pytest.approx(ratios[each.setting])
        assert (each.because is None) == (each.setting in {s.setting for s in still if s.because is None})


def test_equals_stay() -> None:
    """By chance one of two equals is ruled out, more often than once in twenty, because every round looks anew."""
    lost = 0
    for seed in range(60):
        race = Race(("none", "same"), rounds({"none": 1.0, "same": 1.0}, 6, noise=0.1, seed=seed))
        lost += len(race.left) < 2
    assert lost < 10


def test_a_setting_that_fails_is_given_up_and_the_others_go_on() -> None:
    failed = Round(1, "faster", (), "it does not start: no such method")
    race = Race(SETTINGS, [each for each in rounds(SPEEDS, 3) if each.setting != "faster"] + [failed])
    assert race.ruled_out["faster"] == "it does not start: no such method"
    assert race.left == ["fast"] and race.best == "fast"
    (last,) = (each for each in race.standings() if each.setting == "faster")
    assert last.rounds == 0 and last.tokens_per_second is None


def test_a_round_that_is_not_whole_decides_nothing() -> None:
    whole = rounds(SPEEDS, 3)
    cut_short = [each for each in whole if (each.number, each.setting) != (3, "faster")]
    assert Race(SETTINGS, cut_short).left == list(SETTINGS)
    assert Race(SETTINGS, whole[:2]).best is None and Race(SETTINGS, []).best is None


def test_limits_are_where_drafts_are_slower_beyond_doubt() -> None:
    made = []
    for each in rounds({"none": 1.0, "drafts": 2.0}, 3):
        cells = each.cells
        if each.setting == "drafts":
            slowed = {4096: 0.3}
            cells = tuple(
                Cell(
                    "e",
                    c.context,
                    c.concurrency,
                    c.kind,
                    c.speculation,
                    waves=tuple((w or 0) * slowed.get(c.context, 1.0) for w in c.waves),
                )
                for c in cells
            )
        made.append(Round(each.number, each.setting, cells))
    race = Race(("none", "drafts"), made)
    assert race.limits("drafts") == {"speculate_below_context": 4096}
    assert {at.place: at.fastest for at in race.by_place()}["4096 x 1 prose"] == "drafts"
    assert Race(("none", "drafts"), rounds({"none": 1.0, "drafts": 2.0}, 3)).limits("drafts") == {}
