"""What steps take: a table from few measurements, against the obvious; learning; and files that hold something else."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.gate import CONTEXTS, CostTable, Point
from dovetail.gate.costs import Correction

SECONDS = st.floats(1e-4, 10.0)


def naive_line(axis: Sequence[int], values: Sequence[float], at: float) -> float:
    """`values` at `axis`, in straight lines between, level beyond."""
    if at <= axis[0]:
        return values[0]
    for low, high, a, b in zip(axis, axis[1:], values, values[1:], strict=False):
        if low <= at <= high:
            return a + (b - a) * (at - low) / (high - low)
    return values[-1]


def naive_seconds(table: CostTable, batch: float, drafts: float, context: float) -> float:
    """T of a table that learned nothing: one line after the other."""
    times = iter(table.seconds)
    cells = {place: next(times) for place in product(table.batches, table.contexts, range(table.drafts + 1))}
    by_batch = []
    for size in table.batches:
        by_context = [
            naive_line(range(table.drafts + 1), [cells[size, length, k] for k in range(table.drafts + 1)], drafts)
            for length in table.contexts
        ]
        by_batch.append(naive_line(table.contexts, by_context, context))
    return naive_line(table.batches, by_batch, batch)


def blank(batches: tuple[int, ...], contexts: tuple[int, ...], drafts: int, seconds: Sequence[float]) -> CostTable:
    """A table that learned nothing."""
    kinds = drafts + 1
    sizes = (1, len(batches) * len(contexts), len(batches) * kinds, len(seconds))
    one, by_context, by_drafts, own = (Correction([0.0] * size, [0.0] * size) for size in sizes)
    return CostTable(batches, contexts, drafts, tuple(seconds), (one, by_context, by_drafts, own))


@st.composite
def tables(draw: st.DrawFn) -> CostTable:
    batches = draw(st.sampled_from([(1,), (1, 2), (1, 2, 4, 5)]))
    contexts = draw(st.sampled_from([(0,), (0, 1024), (0, 1024, 4096)]))
    drafts = draw(st.integers(0, 4))
    cells = len(batches) * len(contexts) * (drafts + 1)
    return blank(batches, contexts, drafts, draw(st.lists(SECONDS, min_size=cells, max_size=cells)))


@given(tables(), st.integers(1, 9), st.floats(0, 6), st.floats(0, 10_000))
def test_a_table_is_linear_between_its_points_and_level_beyond(
    table: CostTable, batch: int, drafts: float, context: float
) -> None:
    assert table.at(batch, drafts, context) == pytest.approx(naive_seconds(table, batch, drafts, context))
    columns = table.columns(context, table.batches[-1])
    assert [len(column) for column in columns] == [table.drafts + 1] * len(table.batches)
    for size, column in zip(table.batches, columns, strict=True):
        assert column == pytest.approx([naive_seconds(table, size, k, context) for k in range(table.drafts + 1)])


@given(st.data())
def test_measured_points_come_back_as_they_were(data: st.DataObject) -> None:
    """At the sizes that were measured, whichever those were; and between two of them the line."""
    drafts = data.draw(st.integers(0, 5))
    sizes = data.draw(st.sets(st.sampled_from([1, 2, 4, 8, 12]), min_size=1))
    points = []
    for size in sorted(sizes):
        for k in sorted(data.draw(st.sets(st.integers(0, drafts), min_size=1))):
            points.append(Point(size, k, 0, data.draw(SECONDS)))
    first = points[0]
    longer = Point(first.batch, first.drafts, 1024, first.seconds + data.draw(st.floats(0, 1)))
    table = CostTable.of(data.draw(st.permutations([*points, longer])), batch=12, drafts=drafts, context=2048)
    assert table.batches == (1, 2, 4, 8, 12) and table.contexts == (0, 1024, 2048) and table.drafts == drafts
    for point in (*points, longer):
        assert table.at(point.batch, point.drafts, point.context) == pytest.approx(point.seconds)
    for size in sizes:
        own = [point for point in points if point.batch == size]
        for low, high in pairwise(own):
            for k in range(low.drafts, high.drafts):
                share = (k - low.drafts) / (high.drafts - low.drafts)
                assert table.at(size, k, 0) == pytest.approx(low.seconds + (high.seconds - low.seconds) * share)


def test_beyond_what_was_measured_it_goes_on_as_it_went_and_never_falls() -> None:
    rising = CostTable.of(
        [Point(1, 0, 0, 1.0), Point(2, 0, 0, 1.5), Point(2, 1, 0, 1.75)], batch=8, drafts=3, context=9
    )
    assert [rising.at(size, 0, 0) for size in (1, 2, 4, 8)] == pytest.approx([1.0, 1.5, 2.5, 4.5])
    assert [rising.at(2, k, 0) for k in range(4)] == pytest.approx([1.5, 1.75, 2.0, 2.25])
    falling = CostTable.of([Point(1, 0, 0, 2.0), Point(2, 0, 0, 1.0)], batch=8, drafts=0, context=9)
    assert [falling.at(size, 0, 0) for size in (1, 2, 4, 8)] == pytest.approx([2.0, 1.0, 1.0, 1.0])


def test_every_sequence_pays_for_its_own_context() -> None:
    """As much a token as where two contexts were measured, with as many drafts, or between such numbers of drafts."""
    points = [Point(1, 0, 0, 1.0), Point(4, 0, 0, 1.0), Point(1, 0, 1000, 2.0), Point(1, 2, 0, 1.0)]
    table = CostTable.of([*points, Point(1, 2, 1000, 4.0)], batch=4, drafts=2, context=20_000)
    for batch, context in product((1, 2, 4), (0, 1024, 4096, 16384)):
        for drafts, token in enumerate((0.001, 0.002, 0.003)):
            assert table.at(batch, drafts, context) == pytest.approx(1.0 + batch * context * token)


@pytest.mark.parametrize("context", [1, 1024, 1025, 20_000, 10**9])
@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_the_axes_reach_what_was_asked_for(batch: int, context: int) -> None:
    table = CostTable.of([Point(1, 0, 0, 1.0)], batch=batch, drafts=2, context=context)
    assert table.batches[0] == 1 and table.batches[-1] == batch
    assert table.contexts == (*(lower for lower in CONTEXTS if lower < context), context)
    assert table.at(batch, 2, context) == 1.0


@given(tables(), st.lists(st.tuples(st.integers(1, 6), st.floats(0, 5), st.floats(0, 9999), SECONDS), max_size=20))
def test_a_table_comes_back_from_its_file(table: CostTable, told: list[tuple[int, float, float, float]]) -> None:
    for batch, drafts, context, seconds in told:
        table.correct(batch, drafts, context, seconds, steps=2)
    assert msgspec.json.decode(msgspec.json.encode(table), type=CostTable) == table


# --- learning


def truth(batch: float, drafts: float, context: float) -> float:
    """Linear between the points of these tests' tables, and nothing like what was measured."""
    return 0.01 + 0.001 * batch * (drafts + 1) + 1e-6 * batch * context + 0.004 * drafts


def test_what_is_told_becomes_the_truth_there() -> None:
    """With noise and pauses, at places between the points of the grid, too."""
    chance = random.Random(0)
    table = CostTable.of([Point(1, 0, 0, 0.02), Point(1, 4, 0, 0.021)], batch=8, drafts=4, context=8192)
    places = [(b, k, c) for b in (1, 3, 8) for k in (0, 1, 2.5, 4) for c in (0, 700, 4096)]
    for _ in range(300):
        for place in chance.sample(places, len(places)):
            pause = 20.0 if chance.random() < 0.01 else 1.0
            table.correct(*place, truth(*place) * chance.uniform(0.97, 1.03) * pause)
    for place in places:
        assert table.at(*place) == pytest.approx(truth(*place), rel=0.1), place


def test_a_machine_that_is_slower_as_a_whole_is_learned_from_few_places() -> None:
    """Some of it, that is: what all cells share goes to those that nobody told of, too."""
    points = [Point(b, k, 0, truth(b, k, 0)) for b in (1, 8) for k in (0, 4)]
    table = CostTable.of(points, batch=8, drafts=4, context=8192)
    for _ in range(200):
        for batch, drafts in product((1, 4), (0, 1, 4)):
            table.correct(batch, drafts, 0, 2 * truth(batch, drafts, 0))
    for batch, drafts in product((1, 4), (0, 1, 4)):
        assert table.at(batch, drafts, 0) == pytest.approx(2 * truth(batch, drafts, 0), rel=0.02)
    for batch, drafts in product((2, 8), (2, 3)):
        assert table.at(batch, drafts, 0) > 1.2 * truth(batch, drafts, 0)


def test_many_steps_at_once_are_as_many_steps() -> None:
    ones, at_once = (CostTable.of([Point(1, 0, 0, 1.0)], batch=1, drafts=0, context=1) for _ in range(2))
    for _ in range(8):
        ones.correct(1, 0, 0, 1.2)
    at_once.correct(1, 0, 0, 1.2, steps=8)
    assert ones.steps_at(1, 0, 0) == at_once.steps_at(1, 0, 0) == 8
    assert ones.at(1, 0, 0) == pytest.approx(at_once.at(1, 0, 0), rel=0.01)


@given(
    tables(),
    st.lists(
        st.tuples(
            st.integers(1, 100),
            st.floats(0, 100),
            st.floats(0, 1e9),
            st.floats() | st.sampled_from([0.0, -1.0, math.inf, math.nan]),
            st.integers(1, 10**6),
        )
    ),
)
def test_whatever_is_told_a_table_stays_one(table: CostTable, told: list[tuple[int, float, float, float, int]]) -> None:
    for batch, drafts, context, seconds, steps in told:
        table.correct(batch, drafts, context, seconds, steps)
        assert 0 < table.at(batch, drafts, context) < math.inf
        table.__post_init__()


def test_one_pause_is_not_what_a_step_takes() -> None:
    table = CostTable.of([Point(1, 0, 0, 1.0)], batch=1, drafts=0, context=1)
    for _ in range(16):
        table.correct(1, 0, 0, 1.0)
    table.correct(1, 0, 0, 1000.0)
    assert table.at(1, 0, 0) < 1.03


def test_what_is_forgotten_is_soon_learned_anew() -> None:
    kept, forgot = (CostTable.of([Point(1, 0, 0, 1.0)], batch=1, drafts=0, context=1) for _ in range(2))
    for table in (kept, forgot):
        for _ in range(100):
            table.correct(1, 0, 0, 1.0)
    forgot.forget(4)
    assert kept.at(1, 0, 0) == forgot.at(1, 0, 0) and forgot.steps_at(1, 0, 0) == 4 < kept.steps_at(1, 0, 0)
    for table in (kept, forgot):
        for _ in range(16):
            table.correct(1, 0, 0, 1.2)
    assert forgot.at(1, 0, 0) > 1.12 > kept.at(1, 0, 0)
    before = msgspec.json.encode(kept)
    kept.forget(1000)
    assert msgspec.json.encode(kept) == before  # nothing was known that well


# --- files


def plain() -> dict[str, Any]:
    """A table as its file has it: batches 1 and 2, contexts 0 and 1024, up to 2 drafts."""
    points = [Point(1, 0, 0, 1.0), Point(1, 0, 1024, 2.0), Point(2, 2, 0, 3.0)]
    made: dict[str, Any] = msgspec.to_builtins(CostTable.of(points, batch=2, drafts=2, context=1024))
    return made


def change(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda table: table.update({key: value})


def correct(index: int, key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda table: table["corrections"][index].update({key: value})


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no batches": (change("batches", []), "axes must ascend from 1"),
    "batches from 0": (change("batches", [0, 1]), "axes must ascend from 1"),
    "batches from 2": (change("batches", [2, 3]), "axes must ascend from 1"),
    "batches that fall": (change("batches", [2, 1]), "axes must ascend from 1"),
    "a batch twice": (change("batches", [1, 1]), "axes must ascend from 1"),
    "a negative batch": (change("batches", [-1, 1]), "axes must ascend from 1"),
    "no contexts": (change("contexts", []), "axes must ascend from 0"),
    "contexts from 1": (change("contexts", [1, 2]), "axes must ascend from 0"),
    "a huge context": (change("contexts", [0, 10**400]), "axes must ascend from 0"),
    "negative drafts": (change("drafts", -1), "a table of 0 cells has 12 times"),
    "other drafts": (change("drafts", 3), "a table of 16 cells has 12 times"),
    "huge drafts": (change("drafts", 10**400), "cells has 12 times"),
    "too few times": (change("seconds", [1.0] * 11), "a table of 12 cells has 11 times"),
    "no time at all": (change("seconds", [1.0] * 11 + [0]), "times must be within"),
    "a negative time": (change("seconds", [-1.0] + [1.0] * 11), "times must be within"),
    "a huge time": (change("seconds", [1.0] * 11 + [1e300]), "times must be within"),
    "too few corrections": (correct(1, "values", [0.0]), "1 corrections in 4 steps, not 4"),
    "too few steps": (correct(2, "steps", [0.0]), "6 corrections in 1 steps, not 6"),
    "a huge correction": (correct(0, "values", [4.1]), "corrections must be within"),
    "a huge correction down": (correct(0, "values", [-4.1]), "corrections must be within"),
    "a negative step": (correct(0, "steps", [-0.1]), "steps must not be negative"),
    "a bool for a size": (change("batches", [True, 2]), "Expected `int`, got `bool`"),
    "a bool for a time": (change("seconds", [True] * 12), "Expected `float`, got `bool`"),
    "text for drafts": (change("drafts", "2"), "Expected `int`, got `str`"),
    "null for a time": (change("seconds", [None] * 12), "Expected `float`, got `null`"),
    "three kinds of corrections": (
        lambda table: table.update(corrections=table["corrections"][1:]),
        "Expected `array` of length 4",
    ),
    "no corrections": (lambda table: table.pop("corrections"), "missing required field `corrections`"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_holds_no_table_is_refused(damage: str) -> None:
    table = plain()
    assert msgspec.json.decode(msgspec.json.encode(table), type=CostTable).drafts == 2
    harm, message = DAMAGE[damage]
    harm(table)
    with pytest.raises(ValueError, match=message):
        msgspec.json.decode(msgspec.json.encode(table), type=CostTable)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1" + "0" * 400])
def test_a_file_with_numbers_that_are_none_is_refused(number: str) -> None:
    encoded = msgspec.json.encode(plain()).replace(b'"seconds":[1.0', f'"seconds":[{number}'.encode())
    assert number.encode() in encoded
    with pytest.raises(ValueError, match=r"malformed|out of range"):
        msgspec.json.decode(encoded, type=CostTable)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_table_is_never_made_of_what_no_file_can_hold(value: float) -> None:
    with pytest.raises(ValueError, match="times must be within"):
        blank((1,), (0,), 0, [value])
    for correction in (Correction([value], [0.0]), Correction([0.0], [value])):
        with pytest.raises(ValueError, match=r"corrections must be within|steps must not be negative"):
            none = Correction([0.0], [0.0])
            CostTable((1,), (0,), 0, (1.0,), (correction, none, none, none))


@given(st.data())
def test_a_damaged_file_is_a_table_or_a_value_error(data: st.DataObject) -> None:
    """One byte is another, or the end is missing."""
    encoded = bytearray(msgspec.json.encode(plain()))
    place = data.draw(st.integers(0, len(encoded) - 1))
    if data.draw(st.booleans()):
        del encoded[place:]
    else:
        encoded[place] = data.draw(st.integers(0, 255))
    try:
        table = msgspec.json.decode(bytes(encoded), type=CostTable)
    except ValueError:
        return
    for batch, drafts, context in product((1, 2, 3), (0, 2, 5), (0, 1000, 5000)):
        assert 0 < table.at(batch, drafts, context) < math.inf
