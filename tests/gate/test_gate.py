"""Law 13, never slower: the decision against brute force, and the gate on machines made of chance and a formula."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dovetail.gate import CONTEXTS, Acceptance, CostTable, Forecast, Gate, Limits, Point, Track, best
from dovetail.gate.costs import Correction

pytestmark = pytest.mark.slow

MOST = 8

# --- the decision


@dataclass(frozen=True)
class Case:
    """What `best` is asked, with its table in plain numbers."""

    survivals: list[list[float]]
    weights: list[float]
    table: CostTable
    context: float

    def naive_rate(self, drafts: Sequence[int]) -> float:
        """Tokens per second, word for word as `Forecast` says."""
        batch = len(self.survivals)
        seconds = self.table.at(batch, 0, self.context)
        for draft in range(max(drafts)):
            own = [weight for weight, k in zip(self.weights, drafts, strict=True) if k > draft]
            alone, all_of_them = (
                self.table.at(size, draft + 1, self.context) - self.table.at(size, draft, self.context)
                for size in (len(own), batch)
            )
            seconds += max(0.0, alone, all_of_them * len(own) / batch) * sum(own) / len(own)
        return (batch + sum(sum(own[:k]) for own, k in zip(self.survivals, drafts, strict=True))) / seconds

    def all_drafts(self) -> list[tuple[int, ...]]:
        return list(product(*(range(len(own) + 1) for own in self.survivals)))


def machine_table(batches: Sequence[int], drafts: int, parts: Sequence[float], noise: Sequence[float]) -> list[float]:
    """T of a machine that takes `parts`: a step, a token, a draft, and one of each sequence; each cell with noise."""
    step, token, draft, own = parts
    places = product(batches, range(drafts + 1))
    return [
        (step + token * batch * (k + 1) + k * (draft + own * batch)) * off
        for (batch, k), off in zip(places, noise, strict=True)
    ]


PART = st.floats(0.05, 1.0)
SURVIVES = st.floats(0.0, 1.0)


@st.composite
def cases(draw: st.DrawFn, *, wild: bool, weighted: bool, alike: bool = False) -> Case:
    """Up to four sequences and four drafts on a machine or, if `wild`, any table at all."""
    batch, drafts = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    batches = draw(st.sampled_from([(1, 2, 3, 4), (1, 2, 4), (1, 4, 8), (1,)]))
    cells = len(batches) * (drafts + 1)
    if wild:
        seconds = draw(st.lists(st.floats(0.3, 3.0), min_size=cells, max_size=cells))
    else:
        noise = draw(st.lists(st.floats(0.95, 1.05), min_size=cells, max_size=cells))
        seconds = machine_table(batches, drafts, draw(st.tuples(PART, PART, PART, PART)), noise)
    survivals: list[list[float]] = []
    for _ in range(batch):
        if alike and survivals:
            survivals.append(survivals[0])
            continue
        own, stands = list[float](), 1.0
        for _ in range(drafts if alike else draw(st.integers(0, drafts))):
            stands *= draw(SURVIVES)
            own.append(stands)
        survivals.append(own)
    weights = draw(st.lists(st.floats(0.1, 3.0), min_size=batch, max_size=batch)) if weighted else [1.0] * batch
    return Case(survivals, weights, table_of(batches, drafts, seconds), 0.0)


def table_of(batches: tuple[int, ...], drafts: int, seconds: Sequence[float]) -> CostTable:
    """A table of one context that learned nothing."""
    sizes = (1, len(batches), len(seconds), len(seconds))
    one, by_context, by_drafts, own = (Correction([0.0] * size, [0.0] * size) for size in sizes)
    return CostTable(batches, (0,), drafts, tuple(seconds), (one, by_context, by_drafts, own))


@given(
    cases(wild=False, weighted=False) | cases(wild=False, weighted=True) | cases(wild=True, weighted=True), st.data()
)
def test_a_forecast_is_what_it_says(case: Case, data: st.DataObject) -> None:
    if not any(case.survivals):
        return
    forecast = Forecast(case.survivals, case.weights, case.table, case.context)
    drafts = data.draw(st.sampled_from(case.all_drafts()))
    assert forecast.rate(drafts) == pytest.approx(case.naive_rate(drafts))
    for k in range(forecast.depth + 1):
        alike = [min(k, len(own)) for own in case.survivals]
        assert forecast.uniform(k) == pytest.approx(case.naive_rate(alike))


@given(cases(wild=False, weighted=False))
def test_on_a_machine_nothing_is_better_than_the_best(case: Case) -> None:
    """Whatever is tried; but for the last percents where sequences differ and times are noisy."""
    found = case.naive_rate(best(case.survivals, case.weights, case.table, case.context))
    assert found >= 0.93 * max(map(case.naive_rate, case.all_drafts()))


@given(cases(wild=True, weighted=True) | cases(wild=True, weighted=False) | cases(wild=False, weighted=True))
def test_on_any_table_the_best_is_near_the_best_and_never_worse_than_off(case: Case) -> None:
    drafts = best(case.survivals, case.weights, case.table, case.context)
    assert all(0 <= k <= len(own) for k, own in zip(drafts, case.survivals, strict=True))
    found = case.naive_rate(drafts)
    assert found >= 0.8 * max(map(case.naive_rate, case.all_drafts()))
    assert found >= case.naive_rate([0] * len(drafts)) * (1 - 1e-9)


@given(cases(wild=True, weighted=False, alike=True))
def test_sequences_alike_draft_alike_and_as_many_as_is_best(case: Case) -> None:
    drafts = best(case.survivals, case.weights, case.table, case.context)
    every = [[k] * len(drafts) for k in range(len(case.survivals[0]) + 1)]
    if case.table.batches[-1] >= len(drafts):  # and no batch is as cheap as a smaller one
        every = [drafts, *every]
    assert case.naive_rate(drafts) >= max(map(case.naive_rate, every)) * (1 - 1e-8)


@given(cases(wild=False, weighted=True))
def test_what_never_stands_is_never_drafted(case: Case) -> None:
    hopeless = [[0.0] * len(own) for own in case.survivals]
    assert not any(best(hopeless, case.weights, case.table, case.context))


@pytest.mark.parametrize("batch, bad", [(2, 1), (3, 1), (4, 1), (4, 3), (5, 2)])
def test_who_never_stands_is_left_out(batch: int, bad: int) -> None:
    """The others draft as many as is best for them, whoever is first, though the table knows no such batch."""
    batches = (1, 2, 4, 8)
    table = table_of(batches, 4, machine_table(batches, 4, (1.0, 0.05, 0.1, 0.05), [1.0] * 20))
    survivals = [[0.01, 0.0, 0.0, 0.0]] * bad + [[0.9, 0.8, 0.7, 0.6]] * (batch - bad)
    case = Case(survivals, [1.0] * batch, table, 0.0)
    every = [[0] * bad + [k] * (batch - bad) for k in range(5)]
    assert best(case.survivals, case.weights, table, 0.0) == max(every, key=case.naive_rate)
    assert case.naive_rate(max(every, key=case.naive_rate)) == max(map(case.naive_rate, case.all_drafts()))


# --- acceptance


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 4)), max_size=60), st.integers(0, 60))
def test_acceptance_is_counted_by_position_and_context(told: list[tuple[int, int, int]], learned_at: int) -> None:
    """A position is tested where all before it stood; with no more drafts than are remembered nothing is forgotten."""
    acceptance = Acceptance(4)
    for number, (context, drafted, accepted) in enumerate(told):
        acceptance.accepted[context][drafted][min(accepted, drafted)] += 1
        acceptance.made[context][drafted] += 1
        if number == learned_at:
            acceptance.learn()
    acceptance.learn()
    told = [(context, drafted, min(accepted, drafted)) for context, drafted, accepted in told]
    for context in range(len(CONTEXTS)):
        own = [(drafted, accepted) for where, drafted, accepted in told if where == context]
        all_drafted, all_accepted = acceptance.totals(context)
        assert all_drafted == [sum(d > i for d, _ in own) for i in range(4)]
        assert all_accepted == [sum(a > i for _, a in own) for i in range(4)]
        before = 0.7
        for i in range(4):

            def share(of: list[tuple[int, int]], prior: float, i: int = i) -> float:
                tested = sum(d > i and a >= i for d, a in of)
                return (sum(a > i for _, a in of) + 8 * prior) / (tested + 8)

            before = share([(d, a) for _, d, a in told], before)
            assert acceptance.likely[context][i] == pytest.approx(share(own, before))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=40), st.lists(st.floats(0.01, 1), max_size=4))
def test_a_request_is_like_all_until_its_own_drafts_say_otherwise(
    told: list[tuple[int, int]], likely: list[float]
) -> None:
    told = [(drafted, min(accepted, drafted)) for drafted, accepted in told]
    track = Track()
    for number, one in enumerate(told):
        track.unlearned.append(one)
        if number % 7 == 0:
            track.learn()
    track.learn()
    survives, less = 1.0, 1.0
    for i, (usual, found) in enumerate(zip(likely, track.survivals(likely), strict=True)):
        tested = sum(d > i and a >= i for d, a in told)
        stands = (sum(a > i for _, a in told) + 6 * usual * less) / (tested + 6)
        less = min(1.0, stands / usual)
        survives *= min(0.995, stands)
        assert found == pytest.approx(survives)


def test_the_latest_drafts_count_most() -> None:
    acceptance = Acceptance(2)
    for accepted in (2, 0):
        for _ in range(40):
            acceptance.accepted[0][2][accepted] += 250
            acceptance.made[0][2] += 250
            acceptance.learn()
    assert acceptance.likely[0][0] < 0.1 and acceptance.totals(0) == ([20_000, 20_000], [10_000, 10_000])


# --- limits


LIMITS = st.builds(Limits, st.none() | st.integers(0, 5000), st.none() | st.integers(0, 6))


class Served(RuleBasedStateMachine):
    """Requests come, grow and go; batches are any of them, in any order; what the gate is told is true or absurd."""

    @initialize(limits=LIMITS, drafts=st.integers(0, 4), gated=st.booleans())
    def begin(self, limits: Limits, drafts: int, gated: bool) -> None:
        seconds = machine_table((1, 2, 4), drafts, (1.0, 0.1, 0.1, 0.05), [1.0] * (3 * drafts + 3))
        self.limits, self.drafts, self.gated = limits, drafts, gated
        self.gate = Gate(table_of((1, 2, 4), drafts, seconds) if gated else None, limits, drafts)
        self.live: list[tuple[Track, list[int]]] = []
        self.chosen = 0
        self.drafted, self.accepted = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        self.before: dict[str, float] = {}

    @rule(context=st.integers(0, 20_000))
    def come(self, context: int) -> None:
        self.live.append((Track(), [context]))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        self.live.remove(data.draw(st.sampled_from(self.live)))

    @rule(data=st.data(), steps=st.integers(1, 40), seconds=st.none() | st.floats(0, 10), change=st.booleans())
    def steps(self, data: st.DataObject, steps: int, seconds: float | None, change: bool) -> None:
        draw = random.Random(data.draw(st.integers(0, 99)))
        batch = draw.sample(self.live, draw.randint(0, len(self.live)))
        for _ in range(steps):
            if change:
                batch = draw.sample(self.live, draw.randint(0, len(self.live)))
            caps = [draw.choice((self.drafts, draw.randint(0, self.drafts))) for _ in batch]
            contexts = [context[0] for _, context in batch]
            rooms = list(self.gate.decide([track for track, _ in batch], contexts, caps).allowed)
            self.chosen += len(batch)
            told: list[tuple[Track | None, int, int, int]] = []
            for (track, context), cap, room in zip(batch, caps, rooms, strict=True):
                allowed = cap
                if self.limits.below_context is not None and context[0] >= self.limits.below_context:
                    allowed = 0
                if self.limits.up_to_batch is not None and len(batch) > self.limits.up_to_batch:
                    allowed = 0
                assert 0 <= room <= allowed
                if not self.gated:
                    assert room == allowed
                count = draw.randint(0, room)  # a drafter may have fewer
                if room:
                    accepted = draw.randint(0, count)
                    if draw.random() < 0.2:  # a grammar made them
                        told.append((None, room, count, accepted))
                        count = 0
                    else:
                        told.append((track, room, count, accepted))
                    bucket = CONTEXTS[track.context]
                    for position in range(count):
                        self.drafted[bucket, position] += 1
                        self.accepted[bucket, position] += position < accepted
                context[0] += draw.choice((1, 1, 1000))
            self.gate.observe(told, seconds)

    @invariant()
    def everything_is_counted(self) -> None:
        if not hasattr(self, "gate"):
            return
        counts = self.gate.counts("some")
        assert sum(value for name, value in counts.items() if name.startswith("gate_decisions")) == self.chosen
        for kind, expected in (("drafted", self.drafted), ("accepted", self.accepted)):
            for (context, position), count in expected.items():
                name = f'{kind}_per_position_total{{position="{position}",drafter="some",context="{context}"}}'
                assert counts[name] == count
        totals = {name: value for name, value in counts.items() if "_total" in name}
        assert all(value >= self.before.get(name, 0) for name, value in totals.items())
        self.before = totals


TestServed = Served.TestCase


def test_reasons_are_what_they_say() -> None:
    table = table_of((1, 2, 4), 2, machine_table((1, 2, 4), 2, (1.0, 0.01, 0.01, 0.01), [1.0] * 9))
    gate = Gate(table, Limits(below_context=100, up_to_batch=3), 2)
    tracks = [Track() for _ in range(4)]
    assert list(gate.decide(tracks[:3], [10, 100, 10], [2, 2, 0]).allowed) == [2, 0, 0]
    assert list(gate.decide(tracks, [10] * 4, [2] * 4).allowed) == [0] * 4
    counts = gate.counts("some")
    reasons = {"draft": 1, "context": 1, "request": 1, "batch": 4}
    assert {f'gate_decisions_total{{reason="{reason}"}}': count for reason, count in reasons.items()}.items() <= (
        counts.items()
    )
    assert not Limits().too_many(10**9) and not Limits().too_long(10**9)


def test_a_request_is_counted_where_it_is_long_from_its_first_step() -> None:
    """In the range of contexts that its drafts were made in, with a table or without."""
    for table in (None, table_of((1, 2), 1, [1.0, 1.1, 1.0, 1.1])):
        gate = Gate(table, Limits(), 1)
        first, second = Track(), Track()
        gate.decide([first], [10], [1])
        gate.observe([(first, 1, 1, 1)], 1.0)
        gate.decide([first, second], [11, 5000], [1, 1])
        gate.observe([(first, 1, 1, 1), (second, 1, 1, 0)], 1.0)
        counts = gate.counts("some")
        drafted = {
            context: f'drafted_per_position_total{{position="0",drafter="some",context="{context}"}}'
            for context in CONTEXTS
        }
        assert [counts.get(drafted[context], 0) for context in CONTEXTS] == [2, 0, 0, 1, *[0] * (len(CONTEXTS) - 4)]


def test_drafts_of_a_grammar_alone_are_no_measure_unless_they_are_few() -> None:
    """Each takes half of what one of the drafter's takes."""
    batches = (1, 4, 8)
    for batch, forced, measured in ((1, 1, False), (4, 1, True), (8, 3, False), (8, 2, True)):
        table = table_of(batches, 1, machine_table(batches, 1, (1.0, 0.01, 0.5, 0.0), [1.0] * 6))
        gate, tracks = Gate(table, Limits(), 1), [Track() for _ in range(batch)]
        before, told = table.at(batch, 1, 0), gate.decide(tracks, [10] * batch, [1] * batch).allowed
        for _ in range(40):
            gate.observe([(None, 1, 1, 1)] * forced, 3.0)
            gate.decide(tracks, [10] * batch, [1] * batch)
        assert list(told) == [1] * batch
        assert (table.at(batch, 1, 0) != before) is measured
        assert not [name for name in gate.counts("some") if "per_position" in name]


def test_steps_without_a_batch_say_nothing_of_the_last_one() -> None:
    table = table_of((1,), 1, [1.0, 1.1])
    gate, track = Gate(table, Limits(), 1), Track()
    for number in range(200):
        batch = [track] if number % 2 else []
        chosen = gate.decide(batch, [10] * len(batch), [1] * len(batch)).allowed
        gate.observe([(track, 1, 1, 1)] if any(chosen) else [], (1.1 if any(chosen) else 1.0) if batch else 0.0)
    assert table.at(1, 0, 0) == pytest.approx(1.0, rel=0.01) and table.at(1, 1, 0) == pytest.approx(1.1, rel=0.01)


# --- never slower


@dataclass(frozen=True)
class Machine:
    """Seconds: of a step; of a token; of a token of context, and of each draft's share of it; of drafting at all; of
    one pass of the drafter, of one sequence in it, and of a token of context there."""

    step: float
    token: float
    row: float
    wider: float
    start: float
    draft: float
    own: float
    draft_row: float

    def seconds(self, drafts: Sequence[int], contexts: Sequence[int]) -> float:
        took = self.step + self.token * (len(drafts) + sum(drafts))
        took += sum(self.row * context * (1 + self.wider * k) for k, context in zip(drafts, contexts, strict=True))
        if any(drafts):
            took += self.start
        for j in range(max(drafts)):
            drafting = [context for k, context in zip(drafts, contexts, strict=True) if k > j]
            took += self.draft + self.own * len(drafting) + self.draft_row * sum(drafting)
        return took

    def profile(self, batch: int, wrong: float = 1.0) -> CostTable:
        """As an engine measures it at start, with what drafting adds wrong by a factor."""
        points = [
            Point(size, k, context, self.seconds([k] * size, [context] * size) * (wrong if k else 1.0))
            for size, context in (*((size, 0) for size in (1, 4, 16, 64) if size <= batch), (1, 1024))
            for k in ((0, 1, 3, MOST) if not context else (0, MOST))
        ]
        return CostTable.of(points, batch=batch, drafts=MOST, context=32768)

    def rate(self, drafts: Sequence[int], accepts: Sequence[float], contexts: Sequence[int]) -> float:
        """Tokens per second, on average."""
        return tokens(drafts, accepts) / self.seconds(drafts, contexts)

    def best_fixed(self, accepts: Sequence[float], contexts: Sequence[int]) -> float:
        return max(self.rate([k] * len(accepts), accepts, contexts) for k in range(MOST + 1))


def tokens(drafts: Sequence[int], accepts: Sequence[float]) -> float:
    """Of a step, on average."""
    return sum(sum(accept**j for j in range(k + 1)) for k, accept in zip(drafts, accepts, strict=True))


MACHINES = {
    "a small model on a processor": Machine(1.4e-3, 5e-5, 2e-8, 0.2, 3.5e-4, 2.4e-4, 1e-5, 1e-8),
    "a model where a token is dear": Machine(0.038, 0.005, 1e-6, 0.2, 0.002, 0.002, 0.0003, 1e-7),
    "a drafter that never pays": Machine(1.4e-3, 1e-3, 2e-7, 1.0, 3.5e-4, 8e-4, 1e-4, 1e-7),
    "a large model on an accelerator": Machine(0.012, 2e-5, 2e-9, 0.05, 1e-4, 4e-4, 1e-6, 1e-10),
}
SMALL, DEAR, NEVER, LARGE = MACHINES.values()


class Serving:
    """Requests without an end on a machine; what the gate is told has noise, and one step of a hundred takes longer."""

    def __init__(self, machine: Machine, table: CostTable, accepts: Sequence[float], contexts: Sequence[int]) -> None:
        self.machine, self.gate = machine, Gate(table, Limits(), MOST)
        self.accepts, self.contexts = list(accepts), list(contexts)
        self.tracks = [Track() for _ in contexts]
        self.chance = random.Random(0)

    def step(self) -> tuple[list[int], float, float]:
        """What was drafted; tokens and seconds, without noise."""
        drafts = list(self.gate.decide(self.tracks, self.contexts, [MOST] * len(self.tracks)).allowed)
        seconds = self.machine.seconds(drafts, self.contexts)
        told = []
        for i, (track, k) in enumerate(zip(self.tracks, drafts, strict=True)):
            accepted = 0
            while accepted < k and self.chance.random() < self.accepts[i]:
                accepted += 1
            if k:
                told.append((track, k, k, accepted))
            self.contexts[i] += 1
        pause = 3.0 if self.chance.random() < 0.01 else 1.0
        self.gate.observe(told, seconds * (1 + abs(self.chance.gauss(0, 0.03))) * pause)
        return drafts, tokens(drafts, self.accepts), seconds

    def run(self, steps: int) -> tuple[list[list[int]], float]:
        """What was drafted in so many steps, and tokens per second."""
        drafts, made, took = zip(*(self.step() for _ in range(steps)), strict=True)
        return list(drafts), sum(made) / sum(took)

    def share(self, steps: int) -> float:
        """Tokens per second in relation to the best number of drafts that is the same for all, at all steps."""
        middle = [context + steps // 2 for context in self.contexts]
        return self.run(steps)[1] / self.machine.best_fixed(self.accepts, middle)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("wrong", [1.0, 0.85, 1.15])
def test_never_slower(name: str, wrong: float) -> None:
    """Whatever the batch, the context and the acceptance, and where the profile of drafting was wrong."""
    machine = MACHINES[name]
    shares = []
    for batch, context, accept in product((1, 4, 16), (100, 8000), (0.1, 0.6, 0.9)):
        serving = Serving(machine, machine.profile(16, wrong), [accept] * batch, [context] * batch)
        serving.run(150)
        shares.append(serving.share(250))
    assert min(shares) > 0.85 and statistics.mean(shares) > 0.97


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_that_becomes_slower_is_followed(name: str) -> None:
    machine = MACHINES[name]
    slower = Machine(*(1.5 * seconds for seconds in astuple(machine)))
    slower = replace(slower, wider=machine.wider)
    for batch, accept in ((1, 0.8), (16, 0.9)):
        serving = Serving(machine, machine.profile(16), [accept] * batch, [100] * batch)
        serving.run(200)
        serving.machine = slower
        serving.run(200)
        assert serving.share(300) > 0.93


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_drafting_is_turned_off_where_drafts_fall_and_comes_back(batch: int) -> None:
    serving = Serving(SMALL, SMALL.profile(16), [0.9] * batch, [100] * batch)
    assert mean_drafts(serving.run(300)[0][-100:]) > 2
    serving.accepts = [0.2] * batch
    drafts, _ = serving.run(500)
    assert mean_drafts(drafts[200:]) < 0.3
    serving.accepts = [0.9] * batch
    drafts, _ = serving.run(1500)
    assert mean_drafts(drafts[-200:]) > 2
    assert serving.share(200) > 0.97


def test_requests_of_one_batch_that_differ_draft_as_differently() -> None:
    for machine, batch, bad in ((SMALL, 4, 1), (DEAR, 2, 1), (DEAR, 8, 4)):
        accepts = [0.9] * (batch - bad) + [0.02] * bad
        serving = Serving(machine, machine.profile(16), accepts, [100] * batch)
        serving.run(300)
        drafts, rate = serving.run(300)
        good = batch - bad
        assert mean_drafts([step[:good] for step in drafts]) > 1.5 > 0.5 > mean_drafts([step[good:] for step in drafts])
        assert rate > machine.best_fixed(accepts, [550] * batch)


@pytest.mark.parametrize("name", MACHINES)
def test_requests_of_very_different_context_are_no_slower_together(name: str) -> None:
    machine = MACHINES[name]
    for contexts in ([100, 20_000], [100] * 3 + [30_000], [100] * 12 + [16_000] * 4):
        serving = Serving(machine, machine.profile(16), [0.7] * len(contexts), contexts)
        serving.run(300)
        assert serving.share(300) > 0.95


def test_requests_that_come_and_go_are_served_as_well() -> None:
    """Each makes about a hundred tokens; whoever is new begins with what others have shown."""
    for machine, accept in product((SMALL, DEAR, LARGE), (0.2, 0.9)):
        serving = Serving(machine, machine.profile(4), [accept] * 4, [100] * 4)
        made = took = 0.0
        for number in range(1200):
            if number % 15 == 0:
                i = number // 15 % 4
                serving.tracks[i], serving.contexts[i] = Track(), 100
            _, tokens_now, seconds = serving.step()
            if number >= 200:
                made, took = made + tokens_now, took + seconds
        assert made / took > 0.97 * machine.best_fixed([accept] * 4, [130] * 4)


def test_what_is_level_is_not_changed_at_every_decision() -> None:
    """Forty decisions between numbers of drafts that are nearly as good; some changes of mind are chance."""
    changes = []
    for machine, batch, accept in ((SMALL, 1, 0.6), (SMALL, 4, 0.7), (DEAR, 4, 0.7), (LARGE, 1, 0.6)):
        serving = Serving(machine, machine.profile(16), [accept] * batch, [100] * batch)
        serving.run(300)
        usual = [Counter(drafts).most_common(1)[0][0] for drafts in serving.run(640)[0]]
        held = [Counter(usual[i : i + 16]).most_common(1)[0][0] for i in range(0, 640, 16)]
        changes.append(sum(a != b for a, b in pairwise(held)))
    assert max(changes) <= 8


def mean_drafts(steps: Sequence[Sequence[int]]) -> float:
    """Of a sequence in a step."""
    return statistics.mean(statistics.mean(step) for step in steps)
