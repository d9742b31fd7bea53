"""Masks as a picture: the share of tokens whose mask takes no longer, for each peer, in the first pass and later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

_COLOURS = ("#08306b", "#4292c6", "#9ecae1", "#b30000", "#fdae6b", "#e6550d")


def draw(results: Mapping[str, Any], folder: Path) -> Path:
    """Write masks.svg into `folder`; returns where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    families = list(dict.fromkeys(cell["family"] for cell in results["masks"]))
    with plt.rc_context({"font.size": 8, "svg.hashsalt": "dovetail"}):
        figure, axes = plt.subplots(
            len(families), 1, figsize=(7, 3 * len(families)), squeeze=False, layout="constrained"
        )
        for axis, family in zip(axes[:, 0], families, strict=True):
            cells = [cell for cell in results["masks"] if cell["family"] == family and "fill" in cell]
            for colour, cell in zip(_COLOURS, cells, strict=False):
                later = [value for one in cell["fill"][1:] for value in one]
                for values, style in ((cell["fill"][0], ":"), (later, "-")):
                    ordered = sorted(1e6 * value for value in values)
                    shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
                    label = cell["who"] if style == "-" else None
                    axis.plot(ordered, shares, style, color=colour, label=label)
            axis.set(xscale="log", xlabel="µs a mask (dotted: the first pass)", ylabel="share of tokens", title=family)
            axis.legend(loc="lower right")
        path = folder / "masks.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
    return path
