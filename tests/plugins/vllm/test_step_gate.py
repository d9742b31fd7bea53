"""The gate for an engine that drafts one number for all sequences: what it observes, and that it finds what pays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import PlanError
from dovetail.gate import CostModel, Gate, Limits, Track, UniformGate
from dovetail.plugins.vllm import gate_settings
from dovetail.plugins.vllm.step_gate import Decoding, Outcome, StepGate

K = 3


class RecordingGate(Gate):
    """Records the calls of `tell`."""

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008, it is frozen
        super().__init__(None, limits, K)
        self.calls: list[tuple[list[tuple[int, int, int]], float | None]] = []

    def observe(self, drafted: Iterable[tuple[Track | None, int, int, int]], seconds: float | None) -> None:
        rows = list(drafted)
        self.calls.append(([row[1:] for row in rows], seconds))
        super().observe(rows, seconds)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def measuring(limits: Limits = Limits()) -> UniformGate:  # noqa: B008
    return UniformGate(CostModel.unmeasured(), limits, K)


def decoding(*names: str, context: int = 10, cap: int = K) -> list[Decoding]:
    return [Decoding(name, context, cap) for name in names]


def test_a_step_is_timed_where_it_tests_and_makes_the_same_drafts() -> None:
    recorder, clock = RecordingGate(), Clock()
    gate = StepGate(recorder, clock)

    def step(names: list[str], after: list[Decoding], **outcomes: Outcome) -> float | None:
        gate.scheduled(names, after, {*names, *(each.name for each in after)})
        clock.now += 1
        gate.done(outcomes, more=True)
        return recorder.calls[-1][1]

    assert step(["a"], decoding("a")) is None  # a prompt
    assert step(["a"], decoding("a"), a=Outcome(3, 1)) == 1.0
    assert recorder.calls[-1][0] == [(3, 3, 1)]
    assert step(["a", "b"], decoding("a", "b"), a=Outcome(3, 0)) is None  # another request's prompt in the same step
    assert step(["a", "b"], decoding("a", "b"), a=Outcome(3, 0), b=Outcome(2, 2)) == 1.0
    assert recorder.calls[-1][0] == [(3, 3, 0), (3, 2, 2)]
    assert step(["b"], decoding("b"), b=Outcome(3, 0)) is None  # one of them waits
    assert step(["a", "b"], decoding("a", "b"), a=Outcome(3, 3), b=Outcome(3, 3)) is None
    assert step(["a", "b"], decoding("a", "b"), a=Outcome(3, 3), b=Outcome(3, 3)) == 1.0


def test_time_in_which_there_was_nothing_to_do_is_no_step_s() -> None:
    recorder, clock = RecordingGate(), Clock()
    gate = StepGate(recorder, clock)
    for more in (True, True, False, True, True):
        gate.scheduled(["a"], decoding("a"), {"a"})
        clock.now += 1
        gate.done({"a": Outcome(3, 1)}, more=more)
    assert [seconds for _, seconds in recorder.calls] == [None, 1.0, 1.0, None, 1.0]


def test_steps_overlap_where_the_next_is_scheduled_before_this_one_is_done() -> None:
    recorder, clock = RecordingGate(), Clock()
    gate = StepGate(recorder, clock)
    gate.scheduled(["a"], decoding("a"), {"a"})
    for number in range(5):
        gate.scheduled(["a"], decoding("a"), {"a"})
        clock.now += 1
        gate.done({"a": Outcome(3 * (number > 0), 0)}, more=True)
    assert [rows for rows, _ in recorder.calls] == [[], *[[(3, 3, 0)]] * 4]
    assert [seconds for _, seconds in recorder.calls] == [None, 1.0, 1.0, 1.0, 1.0]
    gate.scheduled(["a", "b"], decoding("a", "b"), {"a", "b"})  # known before the last two are done
    for _ in range(2):
        clock.now += 1
        gate.done({"a": Outcome(3, 0)}, more=True)
        assert recorder.calls[-1] == ([(3, 3, 0)], None)


def test_a_requests_cap_is_checked_once_and_released_with_it() -> None:
    recorder = RecordingGate()
    gate = StepGate(recorder)
    gate.scheduled(["a", "b", "c"], decoding("a", "b", "c"), {"a", "b", "c"})
    assert [gate.allowed(name) for name in "abcd"] == [3, 3, 3, 0]
    gate.done({}, more=True)
    gate.scheduled(["a"], [], {"a"})  # b and c are gone
    assert [gate.allowed(name) for name in "abc"] == [0, 0, 0]
    gate.done({}, more=True)
    assert recorder.calls[-1][0] == []  # stopped before anything was tested


def test_sequences_of_a_step_that_needs_a_graph_draft_the_same_number() -> None:
    """Whatever their limits and caps; none, if none of them may draft."""
    gate = StepGate(Gate(None, Limits(below_context=50), K), uniform=True)
    for contexts, caps, drafts in (((10, 90), (K, K), K), ((10, 10), (1, 2), 2), ((90, 90), (K, K), 0)):
        after = [Decoding(name, *each) for name, each in zip("ab", zip(contexts, caps, strict=True), strict=True)]
        gate.scheduled(["a", "b"], after, {"a", "b"})
        assert gate.depth == gate.allowed("a") == gate.allowed("b") == drafts
        gate.done({"a": Outcome(drafts, 1), "b": Outcome(drafts, 1)}, more=True)


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40), st.integers(0, K)), unique_by=lambda d: d[0]),
        max_size=40,
    ),
    st.integers(1, 40),
    st.integers(1, 6),
    st.booleans(),
)
def test_limits_and_caps_hold_in_every_step(steps: list[list[Any]], below: int, most: int, measured: bool) -> None:
    limits = Limits(below, most)
    gate = StepGate(measuring(limits) if measured else Gate(None, limits, K))
    for step in steps:
        after = [Decoding(*each) for each in step]
        gate.scheduled([each.name for each in after], after, set("abcdef"))
        for name, context, cap, _ in after:
            drafts = gate.allowed(name)
            assert drafts <= (0 if context >= below or len(after) > most else min(cap, gate.depth))
        gate.done({each.name: Outcome(K, 1) for each in after}, more=True)


def tokens_per_second(
    gate: Gate, batch: int, seconds: Callable[[int], float], accepts: float, steps: int
) -> tuple[float, list[int]]:
    """Over the last half of so many steps, and how much was drafted in each."""
    clock, chance = Clock(), random.Random(0)
    driver, names = StepGate(gate, clock), [str(i) for i in range(batch)]
    made, total, since, depths = 0, 0, 0.0, list[int]()
    for number in range(steps):
        if number == steps // 2:
            total, since = 0, clock.now
        driver.scheduled(names, [Decoding(name, 100, K) for name in names], set(names))
        assert len({driver.allowed(name) for name in names}) == 1
        outcomes = {}
        for name in names:
            stood = next((i for i in range(made) if chance.random() > accepts), made)
            outcomes[name] = Outcome(made, stood)
            total += 1 + stood
        clock.now += seconds(made) * chance.uniform(0.97, 1.03)
        driver.done(outcomes, more=True)
        made = driver.depth
        depths.append(driver.depth)
    return total / (clock.now - since), depths


def machine(step: float, per_draft: float, drafts: int) -> float:
    """Seconds."""
    return step * (1 + per_draft * drafts)


def best(seconds: Callable[[int], float], accepts: float, batch: int) -> float:
    rates = [batch * sum(accepts**i for i in range(k + 1)) / seconds(k) for k in range(K + 1)]
    return max(rates)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("accepts", [0.05, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("per_draft", [0.03, 0.4, 2.0])
@pytest.mark.parametrize("step", [0.0005, 0.03])
def test_it_finds_what_pays_from_no_profile(batch: int, accepts: float, per_draft: float, step: float) -> None:
    seconds = partial(machine, step, per_draft)
    gate = measuring()
    reached, _ = tokens_per_second(gate, batch, seconds, accepts, 2000)
    assert reached >= 0.94 * best(seconds, accepts, batch)


def test_it_closes_and_opens_again_when_drafts_begin_to_stand_or_to_pay() -> None:
    for per_draft, accepts in ((0.3, 0.1), (0.9, 0.8)):
        gate = measuring()
        dear = partial(machine, 0.01, per_draft)
        _, closed = tokens_per_second(gate, 1, dear, accepts, 300)
        assert closed[-100:].count(0) > 90
        _, opened = tokens_per_second(gate, 1, partial(machine, 0.01, 0.3), 0.8, 900)
        assert opened[-100:].count(0) < 10


def test_a_gate_begins_with_the_drafters_own_number_and_acceptance() -> None:
    settings = gate_settings.read({"dovetail": {"draft_tokens": 2, "acceptance": 0.25, "speculate_up_to_batch": 1}})
    gate = settings.gate_for(CostModel.unmeasured(), 5)
    assert isinstance(gate, UniformGate) and gate.expected_acceptance == pytest.approx([0.25] * 5)
    assert gate.decide([Track()], [10], [5]).counts == (2,)
    assert gate.decide([Track(), Track()], [10, 10], [5, 5]).allowed == (0, 0)
    plain = gate_settings.read({}).gate_for(CostModel.unmeasured(), 5)
    assert plain.expected_acceptance == pytest.approx([0.7] * 5) and plain.decide([Track()], [10], [5]).counts == (5,)
    assert settings.gate_for(None, 5).decide([Track()], [10], [5]).allowed == (5,)


def test_an_invalid_setting_is_refused_by_name() -> None:
    assert gate_settings.read({}) == gate_settings.GateSettings()
    assert (
        gate_settings.read({"dovetail": {"gate": "off", "speculate_below_context": 7000}}).speculate_below_context
        == 7000
    )
    for wrong, named in (
        ({"speculate_below": 1}, "speculate_below"),
        ({"gate": "sometimes"}, "gate"),
        ({"speculate_up_to_batch": 0}, "speculate_up_to_batch"),
        ({"draft_tokens": 0}, "draft_tokens"),
        ({"acceptance": 1.5}, "acceptance"),
        ([], "object"),
    ):
        with pytest.raises(PlanError, match=rf"--additional-config: dovetail: .*{named}"):
            gate_settings.read({"dovetail": wrong})
