"""Settings that are measured in rounds until they can be told apart: which is the fastest, and which are ruled out.

Every setting has its turn in every round, so a slow minute meets all of them, and settings are compared within rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from dovetail.bench.figures import Cell
from dovetail.bench.plan import Kind
from dovetail.client.statistics import Interval, mean_interval

#: Fewer rounds rule nothing out.
_FEWEST = 3

#: Context, concurrency and kind of a cell.
Place = tuple[int, int, Kind]
#: By place and wave, the logarithm of the decode speed.
Speeds = dict[tuple[Place, int], float]


class Round(msgspec.Struct, frozen=True):
    """What a setting made in one round, from 1: a cell for each place, whose `speculation` is the setting's name.

    `because`: why the setting failed. It is given up then.
    """

    number: int
    setting: str
    cells: tuple[Cell, ...]
    because: str | None = None


class Beside(msgspec.Struct, frozen=True):
    """How many times as fast as another setting, over the rounds of both. `interval`: 95 %; None of a single round."""

    ratio: float
    interval: Interval | None


class Standing(msgspec.Struct, frozen=True):
    """A setting so far. `tokens_per_second`: of one request, the geometric mean over places and rounds.

    `acceptance_length`: tokens a step. `beside_first`: by the first setting, which drafts nothing. `places`: the speed
    at each. `because`: why it is ruled out.
    """

    setting: str
    rounds: int
    tokens_per_second: float | None = None
    acceptance_length: float | None = None
    beside_first: Beside | None = None
    places: dict[str, float] = {}
    because: str | None = None


class AtPlace(msgspec.Struct, frozen=True):
    """One place: tokens/s without drafts and with the best setting, one by the other, and the fastest setting there."""

    place: str
    first: float
    best: float
    beside: Beside | None
    fastest: str


class Race:
    """The rounds so far of `settings`, of which the first drafts nothing."""

    def __init__(self, settings: Sequence[str], rounds: Sequence[Round]) -> None:
        self._settings = settings
        self._speeds: dict[str, dict[int, Speeds]] = {name: {} for name in settings}
        self._cells: dict[str, list[Cell]] = {name: [] for name in settings}
        self.ruled_out: dict[str, str] = {}
        for each in rounds:
            self._speeds[each.setting][each.number] = _speeds(each.cells)
            self._cells[each.setting] += each.cells
            if each.because is not None:
                self.ruled_out[each.setting] = each.because
        for number in range(1, 1 + max((each.number for each in rounds), default=0)):
            self._rule_out(number)

    @property
    def left(self) -> list[str]:
        """The settings that are not ruled out."""
        return [name for name in self._settings if name not in self.ruled_out]

    def measured(self, name: str, number: int) -> bool:
        return number in self._speeds[name]

    @property
    def best(self) -> str | None:
        """The fastest setting that is left; None before a round."""
        return self._best(max((number for speeds in self._speeds.values() for number in speeds), default=0))

    def _best(self, until: int) -> str | None:
        """Chosen by the rounds up to `until`, of which each setting that is left has as many, but for one that runs."""
        means = {name: self._mean(name, until) for name in self.left}
        known = {name: mean for name, mean in means.items() if mean is not None}
        return max(known, key=lambda name: known[name], default=None)

    def _mean(self, name: str, until: int) -> float | None:
        """Over the waves that all settings have which are left."""
        means = []
        for number in (number for number in self._speeds[name] if number <= until):
            waves = set.intersection(*({*self._speeds[other].get(number, {})} for other in self.left))
            if waves:
                means.append(fmean(self._speeds[name][number][wave] for wave in waves))
        return fmean(means) if means else None

    def _rule_out(self, number: int) -> None:
        """Rule out what is slower than the best, beyond doubt, after round `number`."""
        best = self._best(number)
        if best is None or number < _FEWEST or any(not self.measured(name, number) for name in self.left):
            return
        for name in self.left:
            beside = self.beside(name, best, until=number)
            if name != best and beside is not None and beside.interval is not None and beside.interval.high < 1:
                low, high = beside.interval.low, beside.interval.high
                self.ruled_out[name] = (
                    f"{beside.ratio:.2f} times as fast as {best} ({low:.2f} to {high:.2f}), after {number} rounds"
                )

    def beside(
        self, name: str, other: str, *, until: int | None = None, where: Callable[[Place], bool] = lambda _: True
    ) -> Beside | None:
        """One setting beside another, in waves that both have, at the places that `where` takes; None without any."""
        logs = []
        for number, speeds in self._speeds[name].items():
            others = self._speeds[other].get(number, {})
            both = [wave for wave in speeds if wave in others and where(wave[0])]
            if both and (until is None or number <= until):
                logs.append(fmean(speeds[wave] - others[wave] for wave in both))
        if not logs:
            return None
        interval = None if len(logs) < 2 else mean_interval(logs)
        within = None if interval is None else Interval(_exp(interval.low), _exp(interval.high))
        return Beside(math.exp(fmean(logs)), within)

    def standings(self) -> list[Standing]:
        """Each setting: those that are left by their speed, then the others."""
        every = [self._standing(name) for name in self._settings]
        return sorted(every, key=lambda each: (each.because is not None, -(each.tokens_per_second or 0)))

    def _standing(self, name: str) -> Standing:
        rounds = [speeds for speeds in self._speeds[name].values() if speeds]
        if not rounds:
            return Standing(name, 0, because=self.ruled_out.get(name))
        lengths = [cell.acceptance_length for cell in self._cells[name] if cell.acceptance_length is not None]
        at_places: dict[Place, list[float]] = {}
        for speeds in rounds:
            for (place, _), speed in speeds.items():
                at_places.setdefault(place, []).append(speed)
        return Standing(
            name,
            len(rounds),
            math.exp(fmean(map(_mean, rounds))),
            fmean(lengths) if lengths else None,
            self.beside(name, self._settings[0]),
            {place_name(place): math.exp(fmean(logs)) for place, logs in at_places.items()},
            self.ruled_out.get(name),
        )

    def by_place(self) -> list[AtPlace]:
        """Every place at which both the first and the best setting have figures."""
        standings = {each.setting: each.places for each in self.standings()}
        first, best = self._settings[0], self.best
        if best is None:
            return []
        return [
            AtPlace(
                place,
                standings[first][place],
                standings[best][place],
                self.beside(best, first, where=lambda at, place=place: place_name(at) == place),  # type: ignore[misc]
                max(self.left, key=lambda name, place=place: standings[name].get(place, 0.0)),  # type: ignore[misc]
            )
            for place in standings[best]
            if place in standings[first]
        ]

    def limits(self, name: str) -> dict[str, int]:
        """Where drafting with `name` is slower than none, beyond doubt: from a context on, above a concurrency."""
        places = sorted({place for speeds in self._speeds[name].values() for place, _ in speeds})
        slow_contexts = self._slow(name, sorted({context for context, _, _ in places}), 0)
        slow_batches = self._slow(name, sorted({batch for _, batch, _ in places}), 1)
        limits = {}
        if slow_contexts:
            limits["speculate_below_context"] = slow_contexts[0]
        if slow_batches and (faster := [batch for _, batch, _ in places if batch < slow_batches[0]]):
            limits["speculate_up_to_batch"] = max(faster)
        return limits

    def _slow(self, name: str, values: Sequence[int], field: int) -> list[int]:
        """The longest end of `values`, of contexts or of concurrencies, at each of which `name` is slower than none."""
        slow: list[int] = []
        for value in reversed(values):
            at = self.beside(name, self._settings[0], where=lambda place, value=value: place[field] == value)  # type: ignore[misc]
            if at is None or at.interval is None or at.interval.high >= 1:
                break
            slow.insert(0, value)
        return slow


def place_name(place: Place) -> str:
    context, concurrency, kind = place
    return f"{context} x {concurrency} {kind}"


def _speeds(cells: Sequence[Cell]) -> Speeds:
    """The waves that could be timed."""
    return {
        ((cell.context, cell.concurrency, cell.kind), number): math.log(wave)
        for cell in cells
        for number, wave in enumerate(cell.waves)
        if wave
    }


def _mean(speeds: Speeds) -> float:
    return fmean(speeds.values())


def _exp(value: float) -> float:
    """Two rounds that differ give intervals of any width."""
    return math.exp(min(value, 700.0))
