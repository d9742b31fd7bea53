"""Tokens per second of one cell, a context and a batch, for every way of drafting, side by side.

All ways go on from the same moment with the same sequences and take turns; then the best of those without a gate and
the gated one take turns again, alone: the best of six is partly luck, and a machine is not the same a minute later. One
run ends when all sequences together
have so many new tokens; its first step is not counted. A gate's table is what the engine measured at its start; it
learns as runs go by, from cell to cell, as a server's does, and before it is counted in a cell it has `warm` seconds
there, ten times as many where steps are so long that it would not have decided twice. Every acceptance has a gate of
its own.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.speculation.frozen import Frozen
from benchmarks.speculation.models import Model
from benchmarks.speculation.neighbour import interval
from dovetail.completion import TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.gate import DECIDE_EVERY, Gate, Limits

#: Gated is to be at least so fast in relation to the best of off and every fixed number: in quiet, beside a neighbour.
GOAL, NOISY_GOAL = 0.97, 0.93
#: At least so many steps are counted, however long they take.
_STEPS = 3
#: Beyond this a sequence might come to the end of what it has room for.
_MOST = 96


@dataclass(frozen=True)
class Plan:
    """How to measure. `fixed` are numbers of drafts; a run without drafts takes about `seconds`. Where there is
    real text, fewer than `sequences` sequences are several batches, one after the other, so that no figure hangs on one
    text."""

    fixed: tuple[int, ...]
    turns: int
    seconds: float
    warm: float
    sequences: int
    goal: float = GOAL


@dataclass(frozen=True)
class Way:
    """One way of drafting: by which drafter, None for no drafting; how many, None for as many as the gate says; and the
    share of drafts that a synthetic drafter has right."""

    drafter: str | None = None
    drafts: int | None = 0
    acceptance: float | None = None

    @property
    def of(self) -> tuple[str | None, float | None]:
        """What drafts, however much."""
        return self.drafter, self.acceptance

    @property
    def drafts_by(self) -> str:
        """Drafter, and its acceptance if that is a setting."""
        return f"{self.drafter} {self.acceptance:g}" if self.acceptance is not None else str(self.drafter)


@dataclass
class Run:
    """`windows` counts the steps of every sequence."""

    tokens: int = 0
    steps: int = 0
    windows: int = 0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Watch:
    """A `Gate` that is timed: seconds of `decide` and `observe` together, step by step."""

    gate: Gate
    seconds: list[float] = field(default_factory=list)

    def decide(self, *args: Any) -> Any:
        before = time.perf_counter()
        decision = self.gate.decide(*args)
        self.seconds.append(time.perf_counter() - before)
        return decision

    def observe(self, *args: Any) -> None:
        before = time.perf_counter()
        self.gate.observe(*args)
        self.seconds[-1] += time.perf_counter() - before

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gate, name)


Note = Callable[[str], None]
_Engines = Mapping[str | None, Frozen]


def ways(model: Model, plan: Plan, acceptances: Sequence[float]) -> list[Way]:
    """Every way in which `model` can draft, off first."""
    found = [Way()]
    for drafter in model.drafting:
        for acceptance in acceptances if model.script is not None else (None,):
            found += [Way(drafter, drafts, acceptance) for drafts in (*plan.fixed, None)]
    return found


class Measurement:
    """The cells of one model. Gates go from one to the next."""

    def __init__(self, model: Model, plan: Plan) -> None:
        self._model, self._plan = model, plan
        self._gates: dict[Way, Gate] = {}

    def cell(
        self, context: int, batch: int, ways: Sequence[Way], note: Note = lambda text: None
    ) -> list[dict[str, Any]]:
        """One cell, a row for each drafter. `note` is called with the progress."""
        texts = self._plan.sequences if self._model.script is None else 1
        count = max(batch, texts // batch * batch)
        prompts = self._model.prompts(count, context)
        note("prompts")
        drafters = list(dict.fromkeys(way.drafter for way in ways if way.drafter is not None))
        begun = self._model.begin(prompts, drafters)
        names = [str(i) for i in range(count)]
        sets = [names[i : i + batch] for i in range(0, count, batch)]
        first = self._run(begun, Way(), sets[:1], 1)
        step = first.seconds / first.steps
        tokens = max(_STEPS, min(_MOST, round(self._plan.seconds / step / len(sets))))
        runs: dict[Way, list[Run]] = {way: [] for way in ways}
        overhead: dict[Way, list[float]] = {way: [] for way in ways if way.drafts is None}
        for turn in range(self._plan.turns):
            for way in ways:
                note(f"turn {turn + 1}, {way.drafter or 'off'} {'gated' if way.drafts is None else way.drafts or ''}")
                if turn == 0 and way.drafts is None:
                    self._luck(way, -1)  # not that on which it will be measured
                    self._warm_up(begun, way, sets, tokens)
                self._luck(way, turn)
                runs[way].append(self._run(begun, way, sets, tokens, overhead.get(way)))
        pairs: dict[Way, list[tuple[Run, Run]]] = {}
        for way in overhead:
            rivals = [rival for rival in runs if rival == Way() or (rival.of == way.of and rival.drafts is not None)]
            best = max(rivals, key=lambda rival: _speed(runs[rival]))
            pairs[way] = []
            for turn in range(self._plan.turns):
                note(f"pair {turn + 1}, {way.drafter}")
                both: dict[Way, Run] = {}
                for side in (way, best) if turn % 2 else (best, way):
                    self._luck(way, turn)
                    both[side] = self._run(begun, side, sets, tokens, overhead.get(side))
                pairs[way].append((both[way], both[best]))
        place = {"model": self._model.title, "context": context, "batch": batch, "tokens": tokens}
        return [place | row for row in _rows(runs, pairs, overhead, self._plan.goal)]

    def _luck(self, way: Way, turn: int) -> None:
        if self._model.script is not None:
            self._model.script.turn, self._model.script.acceptance = turn, way.acceptance or 0.0

    def _warm_up(self, begun: _Engines, way: Way, sets: Sequence[list[str]], tokens: int) -> None:
        """In whole runs, of which there is one at least."""
        steps, started, passed = 0, time.perf_counter(), 0.0
        while not steps or passed < self._plan.warm or (steps < 2 * DECIDE_EVERY and passed < 10 * self._plan.warm):
            steps += self._run(begun, way, sets, tokens).steps
            passed = time.perf_counter() - started

    def _run(
        self,
        begun: _Engines,
        way: Way,
        sets: Sequence[list[str]],
        tokens: int,
        overhead: list[float] | None = None,
    ) -> Run:
        """Each set after the other until its sequences have `tokens` new ones on average."""
        frozen, run, watch = begun[way.drafter], Run(), None
        if way.drafts is None:
            watch = Watch(self._gates.setdefault(way, copy.deepcopy(frozen.find(Gate))))
        for names in sets:
            gate = Gate(None, Limits(), way.drafts) if way.drafts is not None else watch
            core = frozen.thaw(lambda shared, gate=gate: gate if isinstance(shared, Gate) else shared)
            _decode(core, names, tokens, run)
        if watch is not None and overhead is not None:
            overhead += watch.seconds
        return run


def _decode(core: LLMCore, names: Sequence[str], tokens: int, run: Run) -> None:
    """Add to `run` what decoding these sequences takes; the others stay where they are."""
    scheduler = core.scheduler
    scheduler.running[:] = [request for request in scheduler.running if request.id in names]
    gc.collect()
    core.step()
    new = steps = 0
    while new < tokens * len(names) or steps < _STEPS:
        before = time.perf_counter()
        outcomes = core.step()
        run.seconds += time.perf_counter() - before
        steps += 1
        for _, outcome in outcomes:
            if not isinstance(outcome, TokenBatch):
                raise outcome
            if outcome.finish is not None:
                raise ValueError("a sequence has come to its end: it has room for fewer tokens than are measured")
            new += len(outcome.ids)
            run.windows += 1
            run.drafted += outcome.drafted
            run.accepted += outcome.accepted
    run.tokens += new
    run.steps += steps


def _speed(runs: Sequence[Run]) -> float:
    return statistics.median(run.rate for run in runs)


def _rows(
    runs: Mapping[Way, list[Run]],
    pairs: Mapping[Way, list[tuple[Run, Run]]],
    overhead: Mapping[Way, list[float]],
    goal: float,
) -> Iterator[dict[str, Any]]:
    """One row for each drafter: medians over turns; the ratios are medians of what turns say, of gated to best those
    in which only these two took turns. `best_again` is what the best then made of what it had made before."""

    def ratio(way: Way, to: Way) -> float:
        return statistics.median(a.rate / b.rate for a, b in zip(runs[way], runs[to], strict=True))

    off = Way()
    for by in dict.fromkeys(way.drafts_by for way in runs if way.drafter is not None):
        own = [way for way in runs if way.drafter is not None and way.drafts_by == by]
        fixed = [way for way in own if way.drafts is not None]
        best = max([off, *fixed], key=lambda way: _speed(runs[way]))
        row: dict[str, Any] = {
            "drafter": by,
            "off": _speed(runs[off]),
            "fixed": {str(way.drafts): _speed(runs[way]) for way in fixed},
            "accepted": {str(way.drafts): _share(runs[way]) for way in fixed},
            "best": best.drafts,
            "best_to_off": ratio(best, off),
        }
        for gated in (way for way in own if way.drafts is None):
            ratios = [ours.rate / its.rate for ours, its in pairs[gated]]
            to_best = statistics.median(ratios)
            row |= {
                "gated": _speed(runs[gated]),
                "gated_to_best": to_best,
                "interval": interval(ratios),
                "best_again": _speed([its for _, its in pairs[gated]]) / _speed(runs[best]),
                "gated_to_off": ratio(gated, off),
                "gated_drafts": _per_window(runs[gated]),
                "holds": to_best >= goal,
                "gate_us": {
                    "median": 1e6 * statistics.median(overhead[gated]),
                    "mean": 1e6 * statistics.mean(overhead[gated]),
                    "steps": len(overhead[gated]),
                },
            }
        yield row


def _share(runs: Sequence[Run]) -> float:
    """Of the drafts how many stood."""
    drafted = sum(run.drafted for run in runs)
    return sum(run.accepted for run in runs) / drafted if drafted else 0.0


def _per_window(runs: Sequence[Run]) -> float:
    """How many were drafted for a sequence in a step, on average."""
    return sum(run.drafted for run in runs) / sum(run.windows for run in runs)
