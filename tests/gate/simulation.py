"""A simulated machine under noise, and what a gate loses on it: the judge of every change to the gate.

`Machine` has true step times. A noise process multiplies them, step by step, the same for every number of drafts, so
that a gate is compared with every fixed number in the very same weather. Noise has two factors: one for all work, and
one more for work that grows with tokens, which a busy neighbour slows most.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.gate import CostModel, Gate, Limits, Rounds, Track

MOST, HOME = 8, 3
RECORDED = Path(__file__).parent / "step_times.json"


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

    def seconds(self, drafts: Sequence[int], contexts: Sequence[int], weather: Weather = (1.0, 1.0)) -> float:
        """Of a step in which sequence i drafts ``drafts[i]`` tokens."""
        wide = self.token * (len(drafts) + sum(drafts))
        wide += sum(self.row * context * (1 + self.wider * k) for k, context in zip(drafts, contexts, strict=True))
        fixed = self.step + (self.start if any(drafts) else 0.0)
        for j in range(max(drafts)):
            drafting = [context for k, context in zip(drafts, contexts, strict=True) if k > j]
            fixed += self.draft
            wide += self.own * len(drafting) + self.draft_row * sum(drafting)
        return weather[0] * (fixed + weather[1] * wide)

    def parts(self, k: int, batch: int, context: int) -> tuple[float, float]:
        """Of a step in which all draft `k` tokens: seconds that grow with tokens, and the others; `context` of all."""
        fixed = self.step + (self.start if k else 0.0) + k * self.draft
        wide = self.token * batch * (k + 1) + self.row * context * (1 + self.wider * k)
        return fixed, wide + k * (self.own * batch + self.draft_row * context)

    def rate(self, drafts: Sequence[int], accepts: Sequence[float], contexts: Sequence[int]) -> float:
        """Tokens per second, on average."""
        return tokens(drafts, accepts) / self.seconds(drafts, contexts)

    def best_fixed(self, accepts: Sequence[float], contexts: Sequence[int]) -> float:
        return max(self.rate([k] * len(accepts), accepts, contexts) for k in range(MOST + 1))


MACHINES = {
    "a small model on a processor": Machine(1.4e-3, 5e-5, 2e-8, 0.2, 3.5e-4, 2.4e-4, 1e-5, 1e-8),
    "a model where a token is dear": Machine(0.038, 0.005, 1e-6, 0.2, 0.002, 0.002, 0.0003, 1e-7),
    "a drafter that never pays": Machine(1.4e-3, 1e-3, 2e-7, 1.0, 3.5e-4, 8e-4, 1e-4, 1e-7),
    "a large model on an accelerator": Machine(0.012, 2e-5, 2e-9, 0.05, 1e-4, 4e-4, 1e-6, 1e-10),
}
SMALL, DEAR, NEVER, LARGE = MACHINES.values()


def tokens(drafts: Sequence[int], accepts: Sequence[float]) -> float:
    """Of a step, on average."""
    return sum(sum(accept**j for j in range(k + 1)) for k, accept in zip(drafts, accepts, strict=True))


# --- noise

Weather = tuple[float, float]
"""The factor on all of a step, and one more on the work that grows with tokens."""


def quiet(chance: random.Random) -> Iterator[Weather]:
    while True:
        yield 1 + abs(chance.gauss(0, 0.02)), 1.0


def neighbour(chance: random.Random) -> Iterator[Weather]:
    """Another process comes for a dozen steps and goes for as many."""
    while True:
        for busy in (False, True):
            for _ in range(1 + int(chance.expovariate(1 / 12))):
                spread = math.exp(chance.gauss(0, 0.2 if busy else 0.05))
                yield (1.6 * spread, 1.5) if busy else (spread, 1.0)


def crowd(chance: random.Random) -> Iterator[Weather]:
    """Six others on two cores: every step waits for its turn, once or several times."""
    while True:
        yield 2.5 * math.exp(chance.gauss(0, 0.35)), 1.2


def slow_minute(chance: random.Random) -> Iterator[Weather]:
    for step in range(10**9):
        slow = 2.5 if 150 <= step % 700 < 450 else 1.0
        yield slow * (1 + abs(chance.gauss(0, 0.03))), 1.0


def drifting_clock(chance: random.Random) -> Iterator[Weather]:
    for step in range(10**9):
        yield math.exp(0.35 * math.sin(step / 60)) * (1 + abs(chance.gauss(0, 0.03))), 1.0


def outliers(chance: random.Random) -> Iterator[Weather]:
    while True:
        pause = chance.uniform(3, 20) if chance.random() < 0.03 else 1.0
        yield pause * (1 + abs(chance.gauss(0, 0.03))), 1.0


def recorded(chance: random.Random) -> Iterator[Weather]:
    """What steps of the embedded engine took on a machine with two cores and six other users, by what a model of their
    costs expects: the same stretch of it, from a random place on."""
    ratios = json.loads(RECORDED.read_text())["ratios"]
    at = chance.randrange(len(ratios))
    while True:
        yield ratios[at % len(ratios)], 1.0
        at += 1


NOISE: dict[str, Callable[[random.Random], Iterator[Weather]]] = {
    "quiet": quiet,
    "a neighbour": neighbour,
    "a crowd": crowd,
    "a slow minute": slow_minute,
    "a drifting clock": drifting_clock,
    "outliers": outliers,
    "recorded": recorded,
}


def profiled(machine: Machine, noise: str, seed: int, batch: int = 16) -> CostModel:
    """The costs as an engine measures them at start in this weather: fewer the slower the machine is."""
    weather, measured, spent = NOISE[noise](random.Random(f"profile {noise} {seed}")), list[Rounds](), 0.0
    for size, context in ((1, 2), (batch, 2), (1, 1024), (4, 2)):
        if len(measured) >= 2 and spent > 0.4:
            break
        rounds, own, kinds = list[tuple[float, ...]](), 0.0, (0, MOST, 3, 1)
        while len(rounds) < 2 or (len(rounds) < 5 and own < 0.1):
            rounds.append(tuple(machine.seconds([k] * size, [context] * size, next(weather)) for k in kinds))
            own += sum(rounds[-1])
        spent += own
        measured.append(Rounds(size, context, kinds, tuple(rounds)))
    return CostModel.fit(measured)


def gate_of(machine: Machine, noise: str = "quiet", seed: int = 0) -> Gate:
    """A gate as an engine on this machine begins with."""
    return Gate(profiled(machine, noise, seed), Limits(), MOST, default=HOME)


# --- serving


@dataclass
class Result:
    """What a run made and took; `fixed[k]`: seconds and tokens of k drafts in every step of the same weather."""

    made: float = 0.0
    took: float = 0.0
    fixed: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in range(MOST + 1)])
    drafts: list[list[int]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.made / self.took

    @property
    def of_best(self) -> float:
        """Tokens per second in relation to the best number of drafts that is the same for all, at all steps."""
        return self.rate / max(made / took for made, took in self.fixed)

    @property
    def of_none(self) -> float:
        """… in relation to no drafts."""
        made, took = self.fixed[0]
        return self.rate / (made / took)


class Serving:
    """Requests on a simulated machine, endless or of `length` steps each (a new one in place of each that ends).

    `bursts`: every so often prompts are computed beside for a few steps, which the gate cannot time.
    """

    def __init__(
        self,
        machine: Machine,
        gate: Gate,
        accepts: Sequence[float],
        contexts: Sequence[int],
        *,
        noise: str = "quiet",
        seed: int = 0,
        length: int | None = None,
        bursts: bool = False,
    ) -> None:
        self.machine, self.gate = machine, gate
        self.accepts, self.contexts, self._first = list(accepts), list(contexts), list(contexts)
        self.tracks = [Track() for _ in contexts]
        self.chance = random.Random(seed)
        self.weather = NOISE[noise](random.Random(f"{noise} {seed}"))
        self._made = [tokens([k] * len(contexts), accepts) for k in range(MOST + 1)]
        self._length, self._bursts, self._burst, self._steps = length, bursts, 0, 0

    def step(self, result: Result) -> None:
        drafts = list(self.gate.decide(self.tracks, self.contexts, [MOST] * len(self.tracks)).allowed)
        weather = next(self.weather)
        seconds = self.machine.seconds(drafts, self.contexts, weather)
        result.made += tokens(drafts, self.accepts)
        result.took += seconds
        result.drafts.append(drafts)
        size, context = len(drafts), sum(self.contexts)
        for k, both in enumerate(result.fixed):
            fixed, wide = self.machine.parts(k, size, context)
            both[0] += self._made[k]
            both[1] += weather[0] * (fixed + weather[1] * wide)
        observed: list[tuple[Track | None, int, int, int]] = []
        for i, (track, k) in enumerate(zip(self.tracks, drafts, strict=True)):
            accepted = 0
            while accepted < k and self.chance.random() < self.accepts[i]:
                accepted += 1
            if k:
                observed.append((track, k, k, accepted))
            self.contexts[i] += 1
        if self._bursts and not self._burst and self.chance.random() < 0.04:
            self._burst = self.chance.randint(1, 6)
        prompts, self._burst = self._burst > 0, max(0, self._burst - 1)
        self._steps += 1
        ended = self._length and self._steps % max(1, self._length // size) == 0
        self.gate.observe(observed, None if prompts or ended else seconds)
        if ended:
            i = self._steps // max(1, self._length // size) % size
            self.tracks[i], self.contexts[i] = Track(), self._first[i]

    def run(self, steps: int) -> Result:
        result = Result()
        for _ in range(steps):
            self.step(result)
        return result
