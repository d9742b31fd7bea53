"""What the gate takes of a step: `python -m benchmarks.speculation.overhead [--json]`.

CPU time of `decide` and `observe` in served requests of a simulated machine, without a model: no step is computed.
Every run has the same steps with the same decisions and trials. `least` takes the least of all runs for each step:
what the gate itself takes. `median`, of the means of runs, has what other work on the machine adds (caches, clock).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time

from benchmarks import tables
from dovetail.gate import CostModel, Gate, Limits, Rounds, Track

#: Microseconds of a step, by batch: the goals.
GOALS = {1: 10.0, 64: 20.0}
_BATCHES, _STEPS, _MOST, _HOME = (1, 4, 16, 64), 1000, 8, 3
# Seconds of a step, of each of its tokens and of each pass of the drafter: the demo pair on one core.
_STEP, _TOKEN, _PASS = 1.4e-3, 5e-5, 2.4e-4


class Traffic:
    """A batch of endless requests, whose drafts are accepted by a fixed share."""

    def __init__(self, batch: int, acceptance: float) -> None:
        self._chance = random.Random(batch)
        self._acceptance = acceptance
        self._tracks = [Track() for _ in range(batch)]
        self._contexts, self._caps = [100] * batch, [_MOST] * batch
        kinds = (0, 1, 3, _MOST)
        row = tuple(_seconds([k] * batch) for k in kinds)
        costs = CostModel.fit([Rounds(batch, 100, kinds, (row, row))])
        self._gate = Gate(costs, Limits(), _MOST, default=_HOME)

    def run(self, steps: int) -> list[int]:
        """Nanoseconds of CPU time that the gate took of each step."""
        times, clock = list[int](), time.process_time_ns
        gate, chance, acceptance = self._gate, self._chance, self._acceptance
        for _ in range(steps):
            began = clock()
            decision = gate.decide(self._tracks, self._contexts, self._caps)
            spent = clock() - began
            drafted = []
            for i, (track, asked) in enumerate(zip(self._tracks, decision.allowed, strict=True)):
                accepted = 0
                while accepted < asked and chance.random() < acceptance:
                    accepted += 1
                if asked:
                    drafted.append((track, asked, asked, accepted))
                self._contexts[i] += 1 + accepted
            seconds = _seconds(decision.allowed) * chance.uniform(0.97, 1.03)
            began = clock()
            gate.observe(drafted, seconds)
            times.append(spent + clock() - began)
        return times


def _seconds(drafts: tuple[int, ...] | list[int]) -> float:
    return _STEP + _TOKEN * (len(drafts) + sum(drafts)) + _PASS * max(drafts)


def _clock(reads: int) -> list[int]:
    """Nanoseconds that reading the clock adds to a step, which reads it twice around nothing."""
    clock, times = time.process_time_ns, list[int]()
    for _ in range(reads):
        began = clock()
        spent = clock() - began
        began = clock()
        times.append(spent + clock() - began)
    return times


def _run(batch: int, steps: int) -> list[int]:
    """The times of steps after the first ones: the same steps, decisions and trials in every run."""
    traffic = Traffic(batch, 0.7)
    traffic.run(300)
    gc.collect()
    return traffic.run(steps)


def measured(runs: int, steps: int = _STEPS) -> list[dict[str, float]]:
    """For each batch size microseconds of a step: `least`, where each step takes its least of all runs, and `median`,
    of the means of the runs."""
    rows, clock = list[dict[str, float]](), min(_clock(10_000))
    for batch in _BATCHES:
        times = [_run(batch, steps) for _ in range(runs)]
        least = statistics.mean(map(min, zip(*times, strict=True))) - clock
        median = statistics.median(map(statistics.mean, times)) - clock
        rows.append({"batch": batch, "least": least / 1e3, "median": median / 1e3})
    return rows


def loop_ns() -> tuple[float, float]:
    """Nanoseconds of one turn of a small loop, the least and the median: how far this machine is from its own best."""
    times = list[float]()
    for _ in range(500):
        began, x = time.process_time_ns(), 0.0
        for i in range(1000):
            x = i * 2.0 + 1
        times.append((time.process_time_ns() - began) / (x + 1) * 2)
    return min(times), statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation.overhead", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print figures, not a table")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    rows, (least, median) = measured(options.runs), loop_ns()
    note = f"{tables.machine()}; a small loop takes {least:.0f} ns a turn at best and {median:.0f} in the median."
    if options.json:
        print(json.dumps({"machine": note, "rows": rows}, indent=2))
        return
    cells = []
    for row in rows:
        goal = GOALS.get(int(row["batch"]))
        verdict = ["–", ""] if goal is None else [f"{goal:g}", "yes" if row["least"] <= goal else "no"]
        cells.append([f"{row['batch']:g}", f"{row['least']:.1f}", f"{row['median']:.1f}", *verdict])
    sheet = ("the gate, us of CPU a step", ["batch", "least", "median", "goal", "met"], cells)
    tables.show([sheet], [note], as_markdown=options.markdown, words=("met",))


if __name__ == "__main__":
    main()
