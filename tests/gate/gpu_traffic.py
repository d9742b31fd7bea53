"""A simulated vLLM on a GPU: requests that come and go, steps that overlap, one number of drafts for all sequences.

`Server` asks the gate as `GatedScheduler` does: a step is scheduled while the one before runs, it drafts for the step
after it, and what it verifies is known when it is done. Step times are those of a Llama of 1B on one H100; their noise
has either the statistics in `NOISE` or is recorded (`recorded`).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

from dovetail.gate import CostModel, Gate, Limits, UniformGate
from dovetail.plugins.vllm.step_gate import Decoding, Outcome, StepGate

K = 3
RECORDED = Path(__file__).parents[3] / "shared/data/gpu"

#: Of 68 recorded runs of up to 1,024 steps: the level of all times changes about every 100 steps, by a Laplace of this
#: scale in the logarithm; single steps spread by a normal in the logarithm; some steps are much slower.
NOISE = {"steps": 100, "jump": 0.08, "return": 0.7, "spread": 0.13, "slow": 0.015, "slowest": 4.0}


def synthetic(chance: random.Random) -> Iterator[float]:
    """Factors on step times, with the statistics in `NOISE`."""
    level = 0.0
    while True:
        jump = NOISE["jump"] * math.log(chance.random() / chance.random())
        level = NOISE["return"] * level + jump
        for _ in range(1 + int(chance.expovariate(1 / NOISE["steps"]))):
            slow = chance.uniform(1.5, NOISE["slowest"]) if chance.random() < NOISE["slow"] else 1.0
            yield slow * math.exp(level + chance.gauss(0, NOISE["spread"]))


def recorded(chance: random.Random) -> Iterator[float]:
    """Factors on step times, by the quantiles of recorded runs in random order."""
    while True:
        steps, medians, p90, p99 = chance.choice(_recorded_runs())
        for share, median in zip((0.05, 0.15, 0.3, 0.5), medians, strict=True):
            for _ in range(int(steps * share)):
                at = chance.random()
                points = ((0.0, 0.85), (0.5, 1.0), (0.9, p90), (0.99, p99), (1.0, 1.5 * p99))
                yield next(
                    median * (low + (high - low) * (at - left) / (right - left))
                    for (left, low), (right, high) in pairwise(points)
                    if at <= right
                )


@cache
def _recorded_runs() -> list[tuple[int, list[float], float, float]]:
    """Steps, the medians of four parts by the run's own, and the 90th and 99th percentile by the last part's."""
    runs = []
    for path in sorted(RECORDED.glob("*/diag.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            if row["what"] == "steps" and row["case"] != "gpu gate no list":
                ms = row["ms"]
                usual = sum(share * each for share, each in zip((0.05, 0.15, 0.3, 0.5), ms, strict=True))
                high = max(1.02, row["p90"] / max(ms))
                runs.append((row["steps"], [each / usual for each in ms], high, max(high, row["p99"] / max(ms))))
    return runs


def seconds(batch: int, drafts: int) -> float:
    """Of a step that verifies and makes as many drafts for each of `batch` sequences, without noise."""
    return (2.3e-3 + 0.5e-3 * (batch / 16) ** 0.5) + (0.25e-3 if drafts else 0.0) + drafts * (0.1e-3 + 4e-6 * batch)


Accepts = Callable[[int], float]
"""The probability that a draft is accepted if those before it were, by the number of the step."""


@dataclass
class Figures:
    """What was served: by step the seconds, the tokens made, and the drafts verified for all sequences."""

    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    batch: list[int] = field(default_factory=list)

    def after(self, tokens: int) -> Figures:
        """The steps after the first so many tokens."""
        first = sum(made < tokens for made in accumulate(self.tokens))
        return Figures(self.seconds[first:], self.tokens[first:], self.drafts[first:], self.batch[first:])

    @property
    def rate(self) -> float:
        return sum(self.tokens) / sum(self.seconds)

    @property
    def drafted(self) -> float:
        """The drafts in relation to `K` for each sequence and step."""
        return sum(self.drafts) / (K * sum(self.batch))


class Server:
    """`batch` requests at once, of about `length` tokens each; a new one takes the place of each that ends.

    `together`: the first ones begin at the same length. `ahead`: steps that are scheduled before the oldest is done.
    """

    def __init__(
        self,
        gate: Gate,
        batch: int,
        accepts: Accepts,
        *,
        noise: Callable[[random.Random], Iterator[float]] = synthetic,
        seed: int = 0,
        length: int = 272,
        together: bool = True,
        ahead: int = 1,
    ) -> None:
        self._now, self._number = 0.0, 0
        self._gate = StepGate(gate, lambda: self._now)
        self._accepts, self._length, self._ahead = accepts, length, ahead
        self._chance, self._noise = random.Random(seed), noise(random.Random(f"noise {seed}"))
        self._left = {str(i): self._new(i, batch, together) for i in range(batch)}
        self._names = batch
        # Sequence -> drafts made for it. Scheduled and not done: the sequences and their drafts, and if of a prompt.
        self._made: dict[str, int] = {}
        self._running: list[tuple[dict[str, int], bool, int]] = []
        self._prompts = set(self._left)

    def _new(self, place: int, batch: int, together: bool) -> int:
        return self._length if together else 1 + self._length * (place + 1) // batch

    def run(self, steps: int) -> Figures:
        figures = Figures()
        for _ in range(steps):
            self._schedule()
            if len(self._running) > self._ahead:
                self._done(figures)
        return figures

    def _schedule(self) -> None:
        names = list(self._left)
        verifies = {name: self._made.pop(name, 0) for name in names}
        decoding = [Decoding(name, 1024 + self._length - self._left[name], K) for name in names]
        prompt = bool(self._prompts)
        self._prompts.clear()
        self._gate.scheduled(names, decoding, set(names))
        self._made = {name: self._gate.allowed(name) for name in names}
        self._running.append((verifies, prompt, self._gate.depth))

    def _done(self, figures: Figures) -> None:
        verifies, prompt, drafts = self._running.pop(0)
        verified, batch = max(verifies.values()), len(verifies)
        accepts = self._accepts(self._number)
        self._number += 1
        took = next(self._noise) * (seconds(batch, verified) + seconds(batch, drafts)) / 2 + 0.002 * prompt
        outcomes, tokens = {}, 0
        for name, count in verifies.items():
            stood = 0
            while stood < count and self._chance.random() < accepts:
                stood += 1
            if name in self._left:
                outcomes[name] = Outcome(count, stood)
                tokens += 1 + stood
                self._left[name] -= 1 + stood
                if self._left[name] <= 0:
                    del self._left[name]
                    self._left[str(self._names)] = round(self._length * random.Random(self._names).uniform(0.5, 1.5))
                    self._prompts.add(str(self._names))
                    self._names += 1
        self._now += took
        self._gate.done(outcomes, more=True)
        figures.seconds.append(took)
        figures.tokens.append(tokens)
        figures.drafts.append(sum(verifies.values()))
        figures.batch.append(batch)


def fresh() -> UniformGate:
    """The gate that a vLLM begins with that was never started before."""
    return UniformGate(CostModel.unmeasured(), Limits(), K)


def fixed(drafts: int) -> Gate:
    """`drafts` in every step: 0 is a gate that a limit has closed."""
    return Gate(None, Limits(), drafts)


def serve(gate: Gate, batch: int, accepts: Accepts, steps: int, **how: object) -> Figures:
    return Server(gate, batch, accepts, **how).run(steps)  # type: ignore[arg-type]


def found_within(drafts: Sequence[int], change: int, batch: int, *, opens: bool) -> int:
    """The steps after `change` until of 20 steps in a row at least 16 draft (or do not)."""
    right = [(each >= batch) is opens for each in drafts[change:]]
    return next((i for i in range(len(right) - 20) if sum(right[i : i + 20]) >= 16), len(right))
