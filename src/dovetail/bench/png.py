"""The matrices of a run as one picture."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from dovetail.bench.result import Result

_INCHES = 3.4, 2.6


def png(result: Result, file: Path) -> None:
    """Write a picture: for each kind a row, with decode speed by endpoint and way of drafting, and all ratios."""
    rows = _rows(result)
    width = max(map(len, rows), default=1)
    figure, axes = plt.subplots(
        max(len(rows), 1), width, figsize=(_INCHES[0] * width, _INCHES[1] * max(len(rows), 1)), squeeze=False
    )
    for line, maps in zip(axes, rows, strict=False):
        largest = max(value for _, values, are_ratios in maps if not are_ratios for value in values.values())
        for place, axis in enumerate(line):
            if place < len(maps):
                _draw(axis, *maps[place], largest)
            else:
                axis.set_axis_off()
    figure.tight_layout()
    about = {"Title": " ".join(result.command), "Description": result.conditions}
    figure.savefig(file, dpi=150, metadata=about)
    plt.close(figure)


_Places = dict[tuple[int, int], float]
_Map = tuple[str, _Places, bool]


def _rows(result: Result) -> list[list[_Map]]:
    """For each kind: the title of a map, its values by context and concurrency, and whether they are ratios."""
    rows = []
    for kind in dict.fromkeys(cell.kind for cell in result.cells):
        speeds: dict[str, _Places] = {}
        for cell in result.cells:
            if cell.kind == kind and cell.decode_tokens_per_second is not None:
                title = f"{kind}, {_name(result, cell.endpoint, cell.speculation)}\ndecode, tokens/s"
                speeds.setdefault(title, {})[cell.context, cell.concurrency] = cell.decode_tokens_per_second.p50
        ratios: dict[str, _Places] = {}
        for ratio in result.ratios:
            if ratio.kind == kind:
                names = " over ".join(_variant(result, name) for name in (ratio.numerator, ratio.denominator))
                ratios.setdefault(f"{kind}\n{names}", {})[ratio.context, ratio.concurrency] = ratio.decode
        if speeds:
            drawn: list[_Map] = [(title, places, False) for title, places in speeds.items()]
            rows.append(drawn + [(title, places, True) for title, places in ratios.items()])
    return rows


def _variant(result: Result, name: str) -> str:
    endpoint, _, speculation = name.rpartition(" ")
    return _name(result, endpoint, speculation)


def _name(result: Result, endpoint: str, speculation: str) -> str:
    """Of two endpoints A or B, with the way of drafting where it is known."""
    places = list(result.models)
    if len(places) < 2:
        return speculation
    which = "AB"[places.index(endpoint)]
    return which if speculation == "unknown" else f"{which} {speculation}"


def _draw(axis: Axes, title: str, values: _Places, are_ratios: bool, largest: float) -> None:
    """`largest`: the speed with the darkest colour. Ratios are green from 2 and red from 1/2."""
    contexts, concurrencies = (sorted({place[i] for place in values}) for i in range(2))
    table = [[values.get((context, each), math.nan) for each in concurrencies] for context in contexts]
    shades = [[math.log2(value) for value in row] for row in table] if are_ratios else table
    low, high, colours = (-1.0, 1.0, "RdYlGn") if are_ratios else (0.0, largest, "Blues")
    axis.imshow(shades, aspect="auto", alpha=0.6, cmap=colours, vmin=low, vmax=high)
    for y, row in enumerate(table):
        for x, value in enumerate(row):
            if not math.isnan(value):
                axis.text(x, y, f"{value:.2f}" if are_ratios else f"{value:.3g}", ha="center", va="center", fontsize=9)
    axis.set_title(title, fontsize=9)
    axis.set_xticks(range(len(concurrencies)), [f"{each} at once" for each in concurrencies], fontsize=8)
    axis.set_yticks(range(len(contexts)), [str(each) for each in contexts], fontsize=8)
