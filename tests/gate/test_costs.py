"""What steps take: the model against the obvious, what it learns from steps, and files that hold something else."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.gate import CostModel, Rounds, cost_file
from dovetail.gate.costs import LEAST_NOISE, PARTS, features
from dovetail.gate.step_times import StepTimes
from tests.gate.simulation import DEAR, LARGE, MACHINES, MOST, NEVER, SMALL, Machine, profiled

BATCH = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000)), min_size=1, max_size=6)


@given(BATCH, st.lists(st.floats(0.0, 9.0), min_size=len(PARTS), max_size=len(PARTS)))
def test_a_step_takes_the_sum_of_its_parts(batch: list[tuple[int, int]], parts: list[float]) -> None:
    """Summed up sequence by sequence and draft by draft."""
    model = CostModel([1.0, *parts[1:]], [[0.0] * len(PARTS)] * len(PARTS))
    step, token, rows, drafting, one_pass, draft, draft_rows, beyond = model.parameters
    seconds, size = step, 0
    for drafts, context in batch:
        seconds += token + rows * context / 1024
        size += 1
        for _ in range(drafts):
            seconds += token + draft + draft_rows * context / 1024
            size += 1
            seconds += beyond * (size > 32)
    deepest = max(drafts for drafts, _ in batch)
    seconds += drafting * (deepest > 0) + one_pass * deepest
    total = len(batch) + sum(drafts for drafts, _ in batch)
    # Of the tokens beyond the knee those count that were drafted, in whichever order they stand.
    seconds += beyond * (max(0, total - 32) - sum(1 for size in _draft_places(batch) if size > 32))
    drafts, contexts = zip(*batch, strict=True)
    assert model.seconds(features(drafts, contexts)) == pytest.approx(seconds)


def _draft_places(batch: list[tuple[int, int]]) -> list[int]:
    places, size = [], 0
    for drafts, _ in batch:
        places += range(size + 2, size + 2 + drafts)
        size += 1 + drafts
    return places


@pytest.mark.parametrize("name", MACHINES)
def test_a_quiet_profile_gives_the_ratios_of_the_machine(name: str) -> None:
    """Also of batches, contexts and numbers of drafts that were not timed."""
    machine = MACHINES[name]
    model = profiled(machine, "quiet", 0)
    for batch, k, context in product((1, 2, 8, 16), (1, 2, 5, 8), (10, 500)):
        taken = [machine.seconds([n] * batch, [context] * batch) for n in (0, k)]
        expected = [model.seconds(features([n] * batch, [context] * batch)) for n in (0, k)]
        assert expected[1] / expected[0] == pytest.approx(taken[1] / taken[0], rel=0.35)


@pytest.mark.parametrize("noise", ["a neighbour", "a crowd", "outliers"])
def test_beside_others_the_spread_says_how_far_off_the_ratios_may_be(noise: str) -> None:
    """In most of the profiles they are within two standard deviations (and what the sum of parts is off anyway)."""
    within = []
    for machine, seed in product((SMALL, NEVER, LARGE), range(8)):
        model = profiled(machine, noise, seed)
        for batch in (1, 16):
            none, some = (features([k] * batch, [10] * batch) for k in (0, MOST))
            taken = machine.seconds([MOST] * batch, [10] * batch) / machine.seconds([0] * batch, [10] * batch)
            error = math.log(model.seconds(some) / model.seconds(none) / taken)
            within.append(abs(error) < 2 * model.spread(none, some) + 0.1)
    assert sum(within) >= 0.8 * len(within)


def rounds(machine: Machine, factor: float, drafts: tuple[int, ...] = (0, 8)) -> Rounds:
    one = tuple(factor * machine.seconds([k], [2]) for k in drafts)
    return Rounds(1, 2, drafts, (one, one, one))


def test_a_model_of_another_hour_is_scaled_or_refused() -> None:
    model = profiled(SMALL, "quiet", 0)
    before = copy.deepcopy(model)
    assert model.try_on(rounds(SMALL, 2.5))
    one, other = features([0], [2]), features([3], [2])
    assert model.seconds(one) == pytest.approx(2.5 * SMALL.seconds([0], [2]), rel=0.05)
    assert model.seconds(other) / model.seconds(one) == pytest.approx(before.seconds(other) / before.seconds(one))
    assert model.spread(one, other) == pytest.approx(before.spread(one, other))
    assert not before.try_on(rounds(NEVER, 1.0))


def test_a_machine_that_is_too_slow_to_be_one_does_not_scale_a_model() -> None:
    model = CostModel.unmeasured(1e5)
    before = list(model.parameters)
    model.scale(1e9)
    model.learn_ratio(features([0], [0]), features([1], [0]), 1e9, 0.1)
    assert model.parameters == before


# --- learning


def test_ratios_alone_are_learned_and_a_common_factor_changes_none() -> None:
    """A model of another machine, which sees blocks of steps, each of them slower or faster as a whole."""
    chance = random.Random(0)
    model, times = profiled(LARGE, "quiet", 0), StepTimes(CostModel.unmeasured())
    times.costs = model
    end = 0
    for number in range(120):
        drafts = chance.choice((0, 1, 3, 5, 8)) if number % 2 else 3
        factor = math.exp(0.3 * math.sin(number / 5))
        block = [(4 * drafts, factor * DEAR.seconds([drafts] * 4, [50] * 4)) for _ in range(8)]
        end += len(block)
        times.learn(features([drafts] * 4, [50] * 4), block, end)
    for k in (1, 3, 8):
        taken = DEAR.seconds([k] * 4, [50] * 4) / DEAR.seconds([0] * 4, [50] * 4)
        none, some = features([0] * 4, [50] * 4), features([k] * 4, [50] * 4)
        assert model.seconds(some) / model.seconds(none) == pytest.approx(taken, rel=0.12)


def test_the_noise_is_that_of_neighbouring_medians() -> None:
    chance = random.Random(0)
    times, step = StepTimes(CostModel.unmeasured()), features([3], [50])
    before = list(times.costs.parameters)
    for spread in (0.0, 0.5, 0.0):
        for number in range(60):
            times.learn(step, [(3, math.exp(chance.gauss(0, spread))) for _ in range(6)], 6 * (number + 1))
        # The median of six is off by half of what one is, and here are two.
        assert times.costs.noise == pytest.approx(0.5 * 2**0.5 * spread, abs=max(LEAST_NOISE, 0.4 * spread))
    assert times.costs.parameters == before


def test_one_pause_is_not_what_a_step_takes() -> None:
    model = profiled(SMALL, "quiet", 0)
    none, some = features([0], [50]), features([3], [50])
    ratio = model.seconds(some) / model.seconds(none)
    for pause in (20.0, 1 / 20):
        model.learn_ratio(none, some, pause * ratio, 0.02)
    assert model.seconds(some) / model.seconds(none) == pytest.approx(ratio, rel=0.15)


STEP = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 10**6)), min_size=1, max_size=4)


@given(
    st.lists(
        st.tuples(STEP, STEP, st.floats(allow_nan=True) | st.sampled_from([0.0, 1e-9, 1e9]), st.floats(0, 2)),
        max_size=25,
    )
)
def test_any_sequence_of_ratios_leaves_a_valid_model(samples: list[tuple[Any, Any, float, float]]) -> None:
    model = CostModel.unmeasured(0.01)
    for one, other, ratio, spread in samples:
        a, b = (features(*zip(*batch, strict=True)) for batch in (one, other))
        model.learn_ratio(a, b, ratio, spread)
        model.drift()
        assert 0 < model.seconds(a) < math.inf and 0 <= model.spread(a, b) < math.inf
    model.__post_init__()


# --- files


def plain() -> dict[str, Any]:
    """A model as its file has it."""
    model = profiled(SMALL, "quiet", 0)
    model.acceptance = [0.5, 0.25]
    made: dict[str, Any] = msgspec.to_builtins(model)
    return made


def test_a_model_comes_back_from_its_file_and_learns_faster(tmp_path: Path) -> None:
    file, model = tmp_path / "new" / cost_file.name("a"), profiled(SMALL, "quiet", 0)
    assert cost_file.read(file) is None
    cost_file.write(file, model)
    known = cost_file.read(file)
    assert known is not None and known.parameters == model.parameters
    assert all(known.covariance[i][i] >= model.covariance[i][i] for i in range(len(PARTS)))
    assert cost_file.name("a") != cost_file.name("b")


def change(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda model: model.update({key: value})


SIZE = len(PARTS)
DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "too few parameters": (change("parameters", [1.0]), "has 8 parameters"),
    "a negative parameter": (change("parameters", [1.0, -1.0, *[0.0] * (SIZE - 2)]), "must take from"),
    "no time at all": (change("parameters", [0.0] * SIZE), "must take from"),
    "a huge time": (change("parameters", [1e300] * SIZE), "must take from"),
    "too few rows": (change("covariance", [[0.0] * SIZE]), "and their covariance"),
    "a short row": (change("covariance", [[0.0]] * SIZE), "and their covariance"),
    "a huge covariance": (change("covariance", [[1e300] * SIZE] * SIZE), "covariance must be finite"),
    "a negative variance": (change("covariance", [[-1.0] * SIZE] * SIZE), "variances must not be negative"),
    "no noise": (change("noise", 0.0), "noise must be within"),
    "acceptance above 1": (change("acceptance", [1.5]), "acceptance must be within"),
    "a bool for a time": (change("parameters", [True] * SIZE), "Expected `float`, got `bool`"),
    "text for acceptance": (change("acceptance", "no"), "Expected `array`, got `str`"),
    "no covariance": (lambda model: model.pop("covariance"), "missing required field `covariance`"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_holds_no_model_is_refused(damage: str) -> None:
    model = plain()
    assert msgspec.json.decode(msgspec.json.encode(model), type=CostModel).acceptance == [0.5, 0.25]
    harm, message = DAMAGE[damage]
    harm(model)
    with pytest.raises(ValueError, match=message):
        msgspec.json.decode(msgspec.json.encode(model), type=CostModel)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_file_with_numbers_that_are_none_is_refused(number: str) -> None:
    encoded = msgspec.json.encode(plain()).replace(b'"acceptance":[0.5', f'"acceptance":[{number}'.encode())
    assert number.encode() in encoded
    with pytest.raises(ValueError, match=r"malformed|out of range"):
        msgspec.json.decode(encoded, type=CostModel)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_is_never_made_of_what_no_file_can_hold(value: float) -> None:
    fine = CostModel.unmeasured()
    for parameters, covariance in (
        ([value] * SIZE, fine.covariance),
        (fine.parameters, [[value] * SIZE] * SIZE),
    ):
        with pytest.raises(ValueError, match=r"must take from|must be finite"):
            CostModel(parameters, covariance)


@given(st.data())
def test_a_damaged_file_is_a_model_or_a_value_error(data: st.DataObject) -> None:
    """One byte is another, or the end is missing."""
    encoded = bytearray(ENCODED)
    place = data.draw(st.integers(0, len(encoded) - 1))
    if data.draw(st.booleans()):
        del encoded[place:]
    else:
        encoded[place] = data.draw(st.integers(0, 255))
    try:
        model = msgspec.json.decode(bytes(encoded), type=CostModel)
    except ValueError:
        return
    assert 0 < model.seconds(features([3, 0], [5, 5000])) < math.inf


ENCODED = msgspec.json.encode(plain())
