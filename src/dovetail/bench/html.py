"""The page of a result: every matrix as a heat map. matrix.html is its template."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from dovetail.bench.figures import Cell, Ratio
from dovetail.bench.report import median, number, problems
from dovetail.bench.result import Result
from dovetail.client.page import page
from dovetail.client.statistics import Interval

Item = TypeVar("Item")


class Square(NamedTuple):
    """`shade`: the arguments of CSS's `rgb`. `within`: the interval; None without one. `wrong`: a call is wrong."""

    context: int
    concurrency: int
    figure: str
    shade: str
    within: str | None = None
    wrong: bool = False


Maps = dict[str, list[Square]]  # heat maps beside each other, by title
Section = tuple[str, list[Maps], list[str]]  # a title, rows of heat maps, and notes


def html(result: Result) -> str:
    """The page of a result."""
    maps = {
        title: [_ratio(ratio, ratio.decode, ratio.interval) for ratio in ratios]
        for title, ratios in _grouped(result.ratios, lambda of: f"{of.kind}: {of.numerator} over {of.denominator}")
    }
    sections: list[Section] = [("Decode speed of one over the other, with 95 % intervals", [maps], [])] if maps else []
    for title, cells in _grouped(result.cells, lambda cell: f"{cell.endpoint}: {cell.kind}"):
        rows = [row for name, of in _FIGURES.items() if (row := _row(cells, name, of))]
        sections.append((title, rows, [text for text, _ in problems(cells)]))
    template = Path(__file__).with_name("matrix.html")
    return page(template, title="dovetail bench", sections=sections, result=result)


def _grouped(items: Iterable[Item], title: Callable[[Item], str]) -> Iterable[tuple[str, list[Item]]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(title(item), []).append(item)
    return groups.items()


_FIGURES: Mapping[str, Callable[[Cell], float | None]] = {
    "decode of a request, tokens/s": lambda cell: median(cell.decode_tokens_per_second),
    "decode of all requests, tokens/s": lambda cell: cell.decode_tokens_per_second_all,
    "time to the first token, ms": lambda cell: median(cell.ttft_ms),
    "tokens a step": lambda cell: cell.acceptance_length,
}


def _row(cells: list[Cell], name: str, figure: Callable[[Cell], float | None]) -> Maps:
    """A heat map for each way of drafting, all on one scale; nothing if no cell has the figure."""
    known = [(cell, value) for cell in cells if (value := figure(cell)) is not None]
    largest = max((value for _, value in known), default=0.0)
    return {
        title: [_speed(cell, value, largest, cell.calls.wrong > 0) for cell, value in of]
        for title, of in _grouped(known, lambda each: f"{name}, drafting {each[0].speculation}")
    }


def _speed(at: Cell, value: float, largest: float, wrong: bool = False) -> Square:
    shade = f"66 105 208 / {0.75 * value / (largest or 1.0):.2f}"
    return Square(at.context, at.concurrency, number(value), shade, wrong=wrong)


def _ratio(at: Ratio, value: float, interval: Interval | None) -> Square:
    """Green above 1 and red below, in full at twice and at half."""
    shade = f"{'60 169 81' if value >= 1 else '255 114 92'} / {0.75 * min(abs(math.log2(value)), 1.0):.2f}"
    within = "" if interval is None else f"{interval.low:.2f} to {interval.high:.2f}"
    return Square(at.context, at.concurrency, f"{value:.2f}", shade, within)
