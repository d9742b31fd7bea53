"""What `dovetail tune --speculation` found: on a terminal, and as a picture."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dovetail.bench.plan import Plan
from dovetail.bench.race import AtPlace, Beside, Standing
from dovetail.bench.report import number
from dovetail.client.statistics import Interval

_REST = 66  # characters beside the bars
_COLUMNS = 100  # of the picture


class Result(msgspec.Struct, frozen=True):
    """`best`: the setting of the recipe. `left`: those that could not be told apart from it, and itself. `limits`: what
    the recipe limits drafts to. `recipe`: its file."""

    machine: str
    date: str
    plan: Plan
    standings: list[Standing]
    places: list[AtPlace]
    best: str | None
    left: list[str]
    seconds: float
    limits: dict[str, int] = {}
    recipe: str | None = None


def show(result: Result, console: Console) -> None:
    """The settings from the fastest, with intervals as bars; the best one by place; and what was ruled out."""
    width = max(console.width - _REST, 10)
    ratios = [each.beside_first.ratio for each in result.standings if each.beside_first is not None]
    highest = 1.3 * max([1.0, *ratios])
    columns = ("setting", "rounds", "tokens/s", "a step", "ratio", "95 %", "")
    table = Table(*columns, box=None, padding=(0, 1, 0, 0))
    for each in result.standings:
        style = "bold green" if each.setting == result.best else "dim" if each.because is not None else ""
        beside, within = _ratio(each.beside_first)
        bar = "" if each.beside_first is None else _bar(each.beside_first, highest, width)
        figures = number(each.tokens_per_second), number(each.acceptance_length), beside, within
        table.add_row(escape(each.setting), str(each.rounds), *figures, bar, style=style)
    console.print(table)
    console.print("decode speed of one request; ratio: by no drafts in the same rounds, with ┊ at 1\n", style="dim")
    if result.places:
        table = Table(
            "place", "no drafts", escape(result.best or ""), "ratio", "95 %", "fastest", box=None, padding=(0, 1, 0, 0)
        )
        for at in result.places:
            table.add_row(at.place, number(at.first), number(at.best), *_ratio(at.beside), escape(at.fastest))
        console.print(table)
        console.print()
    for sentence in verdict(result):
        console.print(escape(sentence))


def verdict(result: Result) -> list[str]:
    """What is chosen, what is as good as it, and what is ruled out, each in a sentence."""
    if result.best is None:
        sentences = ["nothing can be said: no round is whole"]
    elif len(result.left) == 1:
        sentences = [f"{result.best} is the fastest beyond doubt"]
    else:
        others = ", ".join(name for name in result.left if name != result.best)
        sentences = [f"{result.best} was the fastest, not beyond doubt beside {others}: more --rounds may tell"]
    sentences += [f"{name} {value}: beyond it drafts were slower than none" for name, value in result.limits.items()]
    return sentences + [f"ruled out: {each.setting}, {each.because}" for each in result.standings if each.because]


def _ratio(beside: Beside | None) -> tuple[str, str]:
    if beside is None:
        return "", ""
    within = beside.interval
    return (
        f"{beside.ratio:.2f}",
        "" if within is None or within.low == within.high else f"{within.low:.2f}–{within.high:.2f}",
    )


def _bar(beside: Beside, highest: float, width: int) -> str:
    """The ratio and its interval on a scale from 0 to `highest`, with a mark at 1."""
    interval = beside.interval or Interval(beside.ratio, beside.ratio)
    low, high, ratio, one = (
        round(min(value / highest, 1.0) * (width - 1)) for value in (interval.low, interval.high, beside.ratio, 1.0)
    )
    scale = ["─" if low <= at <= high else " " for at in range(width)]
    scale[one], scale[ratio] = "┊", "●"
    return "".join(scale)


def draw(result: Result, file: Path) -> None:
    """The report as an SVG."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=_COLUMNS, file=nowhere, highlight=False, force_terminal=True)
        show(result, console)
        console.save_svg(str(file), title=f"dovetail tune --speculation, {result.date}")
