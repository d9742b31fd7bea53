"""Two results beside each other: whether the later run decodes as fast as the earlier one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, median

import msgspec

from dovetail.bench.figures import Cell
from dovetail.bench.plan import Kind, Speculation
from dovetail.bench.result import Result
from dovetail.client.statistics import Interval, quantile
from dovetail.errors import InvalidRequest

_RESAMPLES = 2000
#: With fewer waves on one side, a cell has no interval.
_FEWEST_WAVES = 3


class CellComparison(msgspec.Struct, frozen=True):
    """One cell in both results. `before` and `after`: the median decode speed, in tokens/s. `ratio`: after by before.

    `interval`: of the ratio, for which the waves of each run are drawn; None with fewer than three waves. Its level is
    1 - 0.05 / cells, so that all intervals together miss once in twenty comparisons. `endpoint`: its place in the
    command line, from 0.
    """

    endpoint: int
    context: int
    concurrency: int
    kind: Kind
    speculation: Speculation
    before: float
    after: float
    ratio: float
    interval: Interval | None


class Comparison(msgspec.Struct, frozen=True):
    """`ratio`: the geometric mean of the cells' ratios, and its 95 % interval, for which waves of every cell are drawn.

    `missing`: cells that only one result has figures for. `wrong`: cells of the later result with wrong calls.
    """

    cells: tuple[CellComparison, ...]
    ratio: float
    interval: Interval
    missing: tuple[str, ...]
    wrong: tuple[str, ...]

    def slower(self, bound: float) -> list[str]:
        """What is slower than `bound` times the earlier run beyond doubt: a whole interval lies below it."""
        named = [(_name(_key(cell)), cell.interval) for cell in self.cells]
        every = [("all cells", self.interval), *named]
        return [name for name, interval in every if interval is not None and interval.high < bound]


_Key = tuple[int, int, int, Kind, Speculation]


def compare(before: Result, after: Result) -> Comparison:
    """Pairs the cells of two results. Raises `InvalidRequest` if no cell has figures in both."""
    first, second = _cells(before), _cells(after)
    both = [key for key in first if key in second and _speeds(first[key]) and _speeds(second[key])]
    if not both:
        raise InvalidRequest("no cell has figures in both results: they need a context, concurrency and kind in common")
    draw = random.Random(0)
    cells, drawn = [], []
    for key in both:
        old, new = _speeds(first[key]), _speeds(second[key])
        ratio = median(new) / median(old)
        resampled = [_drawn(draw, new) / _drawn(draw, old) for _ in range(_RESAMPLES)]
        enough = min(len(old), len(new)) >= _FEWEST_WAVES
        interval = _interval(resampled, 0.05 / len(both)) if enough else None
        cells.append(CellComparison(*key, median(old), median(new), ratio, interval))
        drawn.append(resampled)
    means = [_geometric(each) for each in zip(*drawn, strict=True)]
    return Comparison(
        tuple(cells),
        _geometric([cell.ratio for cell in cells]),
        _interval(means, 0.05),
        tuple(_name(key) for key in {**first, **second} if key not in both),
        tuple(_name(key) for key, cell in second.items() if cell.calls.wrong),
    )


def _cells(result: Result) -> dict[_Key, Cell]:
    """The cells, with each endpoint by its place: the same server may have another port in the later run."""
    places = {endpoint: place for place, endpoint in enumerate(result.models)}
    return {
        (places.get(cell.endpoint, 0), cell.context, cell.concurrency, cell.kind, cell.speculation): cell
        for cell in result.cells
    }


def _speeds(cell: Cell) -> list[float]:
    return [speed for speed in cell.waves if speed]


def _drawn(draw: random.Random, values: Sequence[float]) -> float:
    return median(draw.choices(values, k=len(values)))


def _geometric(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values)))


def _interval(values: Sequence[float], missed: float) -> Interval:
    ordered = sorted(values)
    return Interval(quantile(ordered, missed / 2), quantile(ordered, 1 - missed / 2))


def _key(cell: CellComparison) -> _Key:
    return cell.endpoint, cell.context, cell.concurrency, cell.kind, cell.speculation


def _name(key: _Key) -> str:
    endpoint, context, concurrency, kind, speculation = key
    where = "" if endpoint == 0 else ", the second endpoint"
    return f"{context} x {concurrency} {kind}, drafting {speculation}{where}"
