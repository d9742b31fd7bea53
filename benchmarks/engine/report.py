"""The figures as tables: one for each model, one row for each engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tables import Sheet

#: Headings of columns that hold words.
WORDS = ("type", "engine", "set to", "ids")


def sheets(results: Mapping[str, Any]) -> list[Sheet]:
    """A row says how fast an engine is, and how many times as fast as it Dovetail decodes."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in results["cells"]:
        groups.setdefault(cell["case"], []).append(cell)
    options = results["options"]
    found = []
    for title, cells in groups.items():
        speeds = {_place(cell): cell["decode"] for cell in cells if cell["engine"] == "Dovetail" and "decode" in cell}
        rows = [_row(cell, speeds.get(_place(cell))) for cell in cells]
        heading = f"{title}: tokens/s, greedy, {options['tokens']} new tokens, medians of {options['turns']}"
        headings = ["type", "threads", "batch", "engine", "set to", "decode", "whole", "to Dovetail"]
        found.append((heading, [*headings, "tokens at once", "GB/s", "share", "ids"], rows))
    return found


def notes(results: Mapping[str, Any]) -> list[str]:
    """What the tables were measured with."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    rates = ", ".join(f"{rate / 1e9:.1f} GB/s with {threads}" for threads, rate in results["bandwidth"].items())
    return [
        f"{results['machine']}; {versions}.",
        f"Memory, read by torch's threads: {rates or 'not measured'}. Weights that stay in caches can beat it.",
    ]


def _place(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return cell["dtype"], cell["threads"], cell["batch"]


def _row(cell: Mapping[str, Any], ours: float | None) -> list[str]:
    row = [cell["dtype"], str(cell["threads"]), str(cell["batch"]), cell["engine"], cell["settings"]]
    if "error" in cell:
        return [*row, "–", "–", "–", "–", "–", "–", cell["error"]]
    row += [f"{cell['decode']:,.1f}", f"{cell['whole']:,.1f}"]
    row.append("–" if ours is None else f"{cell['decode'] / ours:.2f}x")
    row += [f"{cell['length']:.2f}", f"{cell['bytes_per_second'] / 1e9:.1f}"]
    row.append("–" if cell.get("share") is None else f"{cell['share']:.0%}")
    return [*row, cell.get("same", "")]
