"""Runs the cells: requests in waves, and the variants of a cell in turns, so that a slow minute meets all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec

from dovetail.bench.figures import Calls, Cell, Ratio, measured, ratio
from dovetail.bench.plan import Kind, Plan, Speculation
from dovetail.bench.prompts import tolerance, wrong
from dovetail.bench.target import Target, Timed, timed
from dovetail.client.not_tested import NotTested

#: Called after each wave: its requests, and what to show of it.
Progress = Callable[[int, str], None]


class _Variant:
    """One endpoint with drafting set in one way, in one cell. `reason`: why the cell stays empty."""

    def __init__(self, target: Target, empty: Cell, extra: Mapping[str, Any]) -> None:
        self.target, self.empty, self.extra = target, empty, extra
        self.waves: list[list[Timed]] = []
        self.counted: list[list[int]] = []
        self.reason: str | None = None

    def cell(self) -> Cell:
        if self.reason is not None:
            return msgspec.structs.replace(self.empty, because=self.reason)
        warm_up, *waves = [[timed.sample for timed in wave] for wave in self.waves]
        calls = _checked([timed for wave in self.waves for timed in wave]) if self.empty.kind == "calls" else Calls()
        return measured(self.empty, warm_up, waves, calls, self.counted[1:])


def _checked(timed: Sequence[Timed]) -> Calls:
    """Every finished answer is checked, in the warm-up too."""
    finished = [each.answer for each in timed if not each.answer.cut_off]
    reasons = [reason for answer in finished if (reason := wrong(answer)) is not None]
    return Calls(len(finished), len(reasons), reasons[0] if reasons else None)


class Run:
    """A run of a plan. `cells`: what an earlier run has measured, and this one does not measure again."""

    def __init__(self, plan: Plan, targets: Sequence[Target], cells: Sequence[Cell] = ()) -> None:
        self.cells: list[Cell] = [*cells]
        self._plan, self._targets = plan, targets
        self._failed: dict[str, str] = {}
        #: Why calls could not be measured that an endpoint does not take, or not in so short a prompt.
        self.lacking: set[str] = set()

    async def prepare(self) -> None:
        for target in self._targets:
            try:
                await target.prepare()
            except NotTested as reason:
                self._failed[target.name] = reason.because

    @property
    def requests(self) -> int:
        """How many timed and warm-up requests the plan still needs: cells that are measured need none."""
        groups = self._groups()
        return sum(len(group) * self._requests(group[0].empty.concurrency) for group in groups)

    def _requests(self, concurrency: int) -> int:
        return (self._plan.waves(concurrency) + 1) * concurrency

    def _groups(self) -> list[list[_Variant]]:
        """The variants of each cell that are not measured yet. If one is missing, all of them run again."""
        done = {_key(cell) for cell in self.cells if cell.because is None}
        groups = [self._group(*of) for of in self._places()]
        return [group for group in groups if not all(_key(variant.empty) in done for variant in group)]

    def _places(self) -> Iterator[tuple[int, int, Kind]]:
        for context in self._plan.contexts:
            for concurrency in self._plan.concurrencies:
                for kind in self._plan.kinds:
                    yield context, concurrency, kind

    def _group(self, context: int, concurrency: int, kind: Kind) -> list[_Variant]:
        return [
            _Variant(target, Cell(target.name, context, concurrency, kind, speculation), extra)
            for target in self._targets
            for speculation, extra in target.variants.items()
        ]

    async def warm_up(self, progress: Progress) -> None:
        """The first wave of every place, untimed: a gate and caches meet all of them before one is measured."""
        for group in self._groups():
            for variant in group:
                await self._wave(variant, 0)
                progress(variant.empty.concurrency, "warming up")

    async def run(self, progress: Progress, finished: Callable[[Sequence[Cell]], None]) -> None:
        """Measure what is not measured yet. `finished` gets the cells of each place of the matrix."""
        for group in self._groups():
            await self._measure(group, progress)
            cells = [variant.cell() for variant in group]
            keys = {_key(cell) for cell in cells}
            self.cells = [cell for cell in self.cells if _key(cell) not in keys] + cells
            finished(cells)

    async def _measure(self, group: Sequence[_Variant], progress: Progress) -> None:
        for variant in group:
            variant.reason = self._failed.get(variant.target.name)
        concurrency = group[0].empty.concurrency
        for wave in range(self._plan.waves(concurrency) + 1):
            turn = wave % len(group)
            for variant in (*group[turn:], *group[:turn]):
                if variant.reason is None:
                    try:
                        await self._wave(variant, wave)
                    except NotTested as reason:
                        variant.reason = reason.because
                        if variant.empty.kind == "calls" and not reason.blocking:
                            self.lacking.add(reason.because)
                progress(concurrency, _shown(variant))

    async def _wave(self, variant: _Variant, wave: int) -> None:
        cell = variant.empty
        variant.target.check_context(cell.context, self._plan.tokens)
        # A prompt's own words are in no other prompt; the rest is the same in all variants.
        variant_of = "" if self._plan.alike else f"{cell.endpoint} {cell.speculation} "
        place = f"{variant_of}{cell.context} {cell.concurrency} {cell.kind}"
        numbers = range(wave * cell.concurrency, (wave + 1) * cell.concurrency)
        if cell.kind == "own":
            start = self._plan.seed * self._requests(cell.concurrency)
            requests = [variant.target.own_prompt(cell.context, start + number) for number in numbers]
        else:
            owns = [f"{self._plan.seed} {place} {number}" for number in numbers]
            requests = [await variant.target.prompt(cell.kind, cell.context, own) for own in owns]
        before = await variant.target.counters()
        tasks = [
            asyncio.create_task(variant.target.arrival(request, cell.kind, self._plan.tokens, variant.extra))
            for request in requests
        ]
        try:
            arrivals = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        wave_timed = [timed(arrival) for arrival in arrivals]
        for each in wave_timed:
            self._check(each, variant)
        variant.waves.append(wave_timed)
        after = await variant.target.counters()
        if before is not None and after is not None:
            variant.counted.append([max(now - then, 0) for then, now in zip(before, after, strict=False)])

    def _check(self, timed: Timed, variant: _Variant) -> None:
        """Raises `NotTested` for an answer or a prompt of another length than planned."""
        sample, cell = timed.sample, variant.empty
        if cell.kind != "own" and abs(sample.prompt_tokens - cell.context) > tolerance(cell.context):
            raise NotTested(f"a prompt has {sample.prompt_tokens} tokens by its usage instead of {cell.context}")
        if cell.kind == "prose" and sample.tokens < self._plan.tokens:
            refused = "" if variant.target.ignores_eos else "it refuses ignore_eos, and "
            ended = f"an answer ended after {sample.tokens} of {self._plan.tokens} tokens (lower --tokens)"
            raise NotTested(refused + ended)

    def everything(self) -> list[Cell]:
        """A cell for each place and variant of the plan, with those that were not reached."""
        done = {_key(cell): cell for cell in self.cells}
        stopped = "the run was stopped before it was measured"
        empty = [variant.empty for of in self._places() for variant in self._group(*of)]
        return [done.get(_key(cell), msgspec.structs.replace(cell, because=stopped)) for cell in empty]


def ratios(cells: Sequence[Cell]) -> list[Ratio]:
    """Each two variants of one place beside each other: the later one over the earlier one."""
    places: dict[tuple[int, int, Kind], list[Cell]] = {}
    for cell in cells:
        places.setdefault((cell.context, cell.concurrency, cell.kind), []).append(cell)
    found = [
        ratio(second, first, (title(second), title(first)))
        for group in places.values()
        for first, second in combinations(group, 2)
        if first.endpoint == second.endpoint or first.speculation == second.speculation
    ]
    return [each for each in found if each is not None]


def title(cell: Cell) -> str:
    return f"{cell.endpoint} {cell.speculation}"


def _key(cell: Cell) -> tuple[str, int, int, Kind, Speculation]:
    return cell.endpoint, cell.context, cell.concurrency, cell.kind, cell.speculation


def _shown(variant: _Variant) -> str:
    cell = variant.empty
    where = f"{cell.context} x {cell.concurrency} {cell.kind}, drafting {cell.speculation}"
    times = [timed.sample.time_per_token for wave in variant.waves[-1:] for timed in wave]
    rates = [1 / time for time in times if time is not None]
    return f"{where}: {sum(rates) / len(rates):.0f} tokens/s" if rates else where
