"""Seeded traffic for a gate, step by step. decisions.json has what gates decide in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dovetail.gate import CostModel, Gate, Limits, Rounds, Track, UniformGate

STEPS = 900
MOST = 6


@dataclass(frozen=True)
class Scenario:
    """One gate and its traffic. `machine`: seconds of a step, per token, and per draft pass."""

    gate: Callable[[CostModel], Gate]
    machine: tuple[float, float, float]
    batch: int
    overlapping: bool = False


def costs(machine: tuple[float, float, float], batch: int) -> CostModel:
    """A model of the machine in which drafting is measured a little too cheap."""
    groups = []
    for size, context in ((1, 0), (batch, 0), (1, 1024)):
        row = tuple((0.9 if k else 1.0) * seconds(machine, [k] * size, [context] * size) for k in (0, 1, MOST))
        groups.append(Rounds(size, context, (0, 1, MOST), (row, row)))
    return CostModel.fit(groups)


def seconds(machine: tuple[float, float, float], drafts: Sequence[int], contexts: Sequence[int]) -> float:
    step, token, draft = machine
    took = step + token * (len(drafts) + sum(drafts)) + 1e-7 * sum(contexts)
    return took + draft * max(drafts, default=0)


FAST, SLOW, DEAR = (1.4e-3, 5e-5, 2.4e-4), (0.07, 2e-3, 4e-3), (1.4e-3, 1e-3, 8e-4)
_SOME = Limits(below_context=1500, up_to_batch=4)
SCENARIOS: dict[str, Scenario] = {
    "one sequence": Scenario(lambda t: Gate(t, Limits(), MOST, default=3), FAST, 1),
    "a batch": Scenario(lambda t: Gate(t, Limits(), MOST, default=3), FAST, 6),
    "slow steps": Scenario(lambda t: Gate(t, Limits(), MOST, default=3), SLOW, 6),
    "drafting is dear": Scenario(lambda t: Gate(t, Limits(), MOST, default=3), DEAR, 6),
    "limits": Scenario(lambda t: Gate(t, _SOME, MOST, default=3), FAST, 6),
    "limits alone": Scenario(lambda t: Gate(None, _SOME, MOST), FAST, 6),
    "one number for all": Scenario(lambda t: UniformGate(t, Limits(), MOST), FAST, 6),
    "one number, nothing measured": Scenario(lambda t: UniformGate(CostModel.unmeasured(), Limits(), MOST), FAST, 6),
    "one number, overlapping": Scenario(
        lambda t: UniformGate(CostModel.unmeasured(), _SOME, MOST), DEAR, 6, overlapping=True
    ),
}


def decisions(name: str) -> Iterator[str]:
    """What the gate of a scenario decides at every step: draft tokens per sequence, as digits."""
    scenario = SCENARIOS[name]
    gate = scenario.gate(costs(scenario.machine, scenario.batch))
    chance = random.Random(name)
    live: list[tuple[Track, list[int], float]] = []
    batch: list[tuple[Track, list[int], float]] = []
    reports: list[tuple[list[tuple[Track | None, int, int, int]], float | None]] = []
    for number in range(STEPS):
        if number % 40 == 0:  # sequences come and go
            live = [each for each in live if chance.random() < 0.7]
            while len(live) < chance.randint(1, scenario.batch):
                live.append((Track(), [chance.choice((10, 900, 1490, 5000))], chance.choice((0.05, 0.5, 0.8, 0.95))))
            batch = list(live)
        if chance.random() < 0.02:  # prompts alone
            batch = chance.sample(live, chance.randint(0, len(live)))
        elif chance.random() < 0.05:
            batch = list(live)
        caps = [MOST if chance.random() < 0.98 else chance.randint(0, MOST) for _ in batch]
        contexts = [context[0] for _, context, _ in batch]
        allowed = gate.decide([track for track, _, _ in batch], contexts, caps).allowed
        yield "".join(map(str, allowed))
        report: list[tuple[Track | None, int, int, int]] = []
        for (track, context, accept), drafts in zip(batch, allowed, strict=True):
            made = drafts if chance.random() < 0.9 else chance.randint(0, drafts)
            accepted = 0
            while accepted < made and chance.random() < accept:
                accepted += 1
            if drafts:
                report.append((None if chance.random() < 0.1 else track, drafts, made, accepted))
            context[0] += 1 + accepted
        took = seconds(scenario.machine, allowed, contexts) * (1 + abs(chance.gauss(0, 0.03)))
        reports.append((report, took * 3 if chance.random() < 0.01 else None if chance.random() < 0.1 else took))
        if not scenario.overlapping or number % 7:
            gate.observe(*reports.pop(0))
    counts = gate.counts()
    names = {f'gate_decisions_total{{reason="{reason}"}}': count for reason, count in counts.decisions.items()}
    for (at, position), both in counts.by_position.items():
        labels = f'{{position="{position}",drafter="x",context="{at}"}}'
        names |= {
            f"{kind}_per_position_total{labels}": n for kind, n in zip(("drafted", "accepted"), both, strict=True)
        }
    names["gate_draft_tokens"] = counts.draft_tokens
    yield " ".join(f"{name}={count:g}" for name, count in sorted(names.items()))


def recorded(name: str) -> list[str]:
    """The decisions in short: each with the number of steps that it stood; last the counters."""
    *steps, counts = decisions(name)
    return [" ".join(f"{allowed or '-'}x{sum(1 for _ in same)}" for allowed, same in groupby(steps)), counts]
