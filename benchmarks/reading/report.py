"""The figures as two tables: what reading costs, and how often it goes wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.tables import Sheet

#: Headings of columns that hold words.
WORDS = ("format", "text", "reader", "read", "what was wrong")


def speed_sheet(cells: Sequence[dict[str, Any]], sizes: Sequence[int]) -> Sheet:
    """CPU per delta, per token and for making a reader, growth, and the longest silence: a row for each reader."""
    headings = ["format", "text", "reader", *(f"µs/delta at {size / 1000:g} KB" for size in sizes)]
    headings += ["growth", "µs/token", "µs to make", "silence", "at", "read"]
    groups: dict[tuple[str, str, str], dict[tuple[str, int], dict[str, Any]]] = {}
    for cell in cells:
        key = (cell["family"], cell["variant"], cell["reader"])
        groups.setdefault(key, {})[cell["cut"], cell["size"]] = cell
    rows = []
    for key, group in groups.items():
        fours = [group.get(("characters", size)) for size in sizes]
        done = [cell for cell in fours if cell is not None and "seconds" in cell]
        row = [*key, *map(_per_delta, fours)]
        row.append(f"{_rate(done[-1]) / _rate(done[0]):.2f}x" if len(done) == len(sizes) > 1 else "–")
        row.append(_per_delta(next((cell for (cut, _), cell in group.items() if cut != "characters"), None)))
        row.append(f"{done[0]['making'] * 1e6:,.1f}" if done else "–")
        row += [f"{done[-1]['silence']:,}", f"{done[-1]['size'] / 1000:g} KB"] if done else ["–", "–"]
        faults = sorted({cell["fault"] for cell in done if cell["fault"]})
        row.append(("wrong " + ", ".join(faults)) if faults else "right" if done else "–")
        rows.append(row)
    return "CPU time of reading one call with one long string argument, in deltas of 4 characters", headings, rows


def splits_sheet(cells: Sequence[dict[str, Any]], means: Sequence[int | None]) -> Sheet:
    """Wrong results by delta size. One row for each reader of a family."""
    headings = ["format", "reader", *("one delta" if mean is None else f"{mean} per delta" for mean in means)]
    headings += ["what was wrong"]
    groups: dict[tuple[str, str], dict[int | None, dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["family"], cell["reader"]), {})[cell["mean"]] = cell
    rows = []
    for key, group in groups.items():
        faults: dict[str, int] = {}
        for cell in group.values():
            for fault, count in cell.get("faults", {}).items():
                faults[fault] = faults.get(fault, 0) + count
        found = [_wrong(group.get(mean)) for mean in means]
        rows.append([*key, *found, ", ".join(f"{fault} {count}" for fault, count in sorted(faults.items()))])
    return "Wrong results by mean tokens in a delta, sizes drawn at random", headings, rows


def lines(cells: Sequence[dict[str, Any]], family: str) -> Iterator[str]:
    """The speed of one family in a line for each reader and text, to be printed while others are still measured."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        if cell["family"] == family:
            groups.setdefault(f"{family}, {cell['variant']}, {cell['reader']}", []).append(cell)
    for title, group in groups.items():
        shown = (f"{_per_delta(cell)} at {cell['size'] / 1000:g} KB of {cell['cut']}" for cell in group)
        made = "".join(f"; {cell['making'] * 1e6:,.1f} to make" for cell in group[:1] if "making" in cell)
        yield f"{title}: µs a delta {', '.join(shown)}{made}"


def _rate(cell: dict[str, Any]) -> float:
    return float(cell["seconds"]) / int(cell["characters"])


def _per_delta(cell: dict[str, Any] | None) -> str:
    if cell is None or "seconds" not in cell:
        return _missing(cell)
    whole = f" ({cell['seconds']:.1f} s in all)" if cell["seconds"] >= 1 else ""
    return f"{cell['seconds'] / cell['deltas'] * 1e6:,.2f}{whole}"


def _missing(cell: dict[str, Any] | None) -> str:
    if cell is not None and "over" in cell:
        return f"> {cell['limit']:g} s"
    return "–"


def _wrong(cell: dict[str, Any] | None) -> str:
    if cell is None or "of" not in cell:
        return _missing(cell)
    cut = f", then > {cell['limit']:g} s" if cell["of"] < cell["asked"] else ""
    return f"{cell['wrong']} of {cell['of']}{cut}"
