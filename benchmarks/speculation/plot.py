"""The matrix as a picture: where the gate is as fast as the best that could have been set, and what could be set.

Above, for each drafter, a map of contexts and batches: how fast gated is in relation to the best of off and every fixed
number of drafts. Below, for each batch, how many times as fast as off it is to draft 1, 2, … tokens a step; the dots at
the right are gated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.speculation.measure import GOAL
from benchmarks.speculation.report import Row, groups

_INK, _FAINT, _MISSED = "#222222", "#888888", "#b30000"
_MAP = LinearSegmentedColormap.from_list("slower or faster", ["#fdae6b", "#ffffff", "#9ecae1"])
# From light to dark with the context, the same in all maps: up to 0, 2k, 8k, and more.
_CONTEXTS = ("#9ecae1", "#4292c6", "#2171b5", "#08306b")
_STEPS = (0, 2048, 8192)
_STYLE = {
    "font.size": 8,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "svg.hashsalt": "dovetail",
}


def draw(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write matrix.png and matrix.svg into `folder`; returns where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(_STYLE):
        figure = _figure(results)
        files = [folder / f"matrix.{kind}" for kind in ("png", "svg")]
        for file in files:
            figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
        plt.close(figure)
    return files


def _figure(results: Mapping[str, Any]) -> Figure:
    found = groups(results)
    batches = sorted({row["batch"] for row in results["cells"]})
    figure, axes = plt.subplots(
        1 + len(batches),
        len(found),
        figsize=(2.4 * len(found) + 0.8, 2.2 + 1.75 * len(batches)),
        squeeze=False,
        layout="constrained",
        height_ratios=[1.25] + [1.0] * len(batches),
    )
    for column, ((model, drafter), rows) in enumerate(found.items()):
        _map(axes[0][column], rows, f"{model}\n{drafter}", first=column == 0)
        for axis, batch in zip(axes[1:, column], batches, strict=True):
            _curves(axis, [row for row in rows if row["batch"] == batch], first=column == 0, batch=batch)
        axes[-1][column].set_xlabel("drafts a step")
    figure.suptitle(
        f"Above: gated to the best of off and every fixed number of drafts (red: below {GOAL:g}).\n"
        "Below: tokens/s to off, by drafts a step; dots: gated.",
        fontsize=8,
        x=0.01,
        ha="left",
    )
    contexts = {_colour(row["context"]): row["context"] for row in results["cells"]}
    handles = [
        Line2D([], [], color=colour, label=_short(context))
        for colour, context in sorted(contexts.items(), key=lambda item: item[1])
    ]
    figure.legend(
        handles=handles,
        title="context",
        loc="upper right",
        ncols=len(handles),
        fontsize=7,
        title_fontsize=7,
        frameon=False,
    )
    return figure


def _map(axis: Axes, rows: Sequence[Row], title: str, *, first: bool) -> None:
    contexts, batches = (sorted({row[name] for row in rows}) for name in ("context", "batch"))
    axis.set_title(title)
    axis.set_xticks(range(len(contexts)), [_short(context) for context in contexts])
    axis.set_yticks(range(len(batches)), [str(batch) for batch in batches])
    axis.set_xlabel("context")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    if first:
        axis.set_ylabel("batch")
    ratios = [[float("nan")] * len(contexts) for _ in batches]
    for row in rows:
        x, y = contexts.index(row["context"]), batches.index(row["batch"])
        if "gated_to_best" not in row:
            continue
        ratio = row["gated_to_best"]
        ratios[y][x] = ratio
        axis.text(x, y, f"{ratio:.2f}", ha="center", va="center", color=_INK if row["holds"] else _MISSED)
    # White is as fast as the best, and blue and orange are distinct for everybody.
    axis.imshow(ratios, cmap=_MAP, norm=TwoSlopeNorm(1.0, 0.85, 1.15), aspect="auto")


def _curves(axis: Axes, rows: Sequence[Row], *, first: bool, batch: int) -> None:
    axis.axhline(1.0, color=_FAINT, linewidth=0.8, linestyle=":")
    for row in rows:
        colour = _colour(row["context"])
        numbers = [0, *map(int, row["fixed"])]
        speeds = [1.0, *(speed / row["off"] for speed in row["fixed"].values())]
        axis.plot(numbers, speeds, marker=".", markersize=3, linewidth=1, color=colour)
        if "gated" in row:
            axis.plot([max(numbers) + 2], [row["gated"] / row["off"]], "o", markersize=4, color=colour)
    fixed = [*map(int, rows[0]["fixed"])] if rows else []
    axis.set_xticks([0, *fixed, max(fixed, default=0) + 2], ["off", *map(str, fixed), "gated"])
    axis.set_ylim(bottom=0)
    axis.margins(y=0.1)
    if first:
        axis.set_ylabel(f"batch {batch}")


def _colour(context: int) -> str:
    return _CONTEXTS[bisect_left(_STEPS, context)]


def _short(context: int) -> str:
    return f"{context / 1024:.3g}k" if context >= 1024 else str(context)
