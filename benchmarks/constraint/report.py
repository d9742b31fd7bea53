"""The figures as tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.constraint.tools import KINDS
from benchmarks.tables import Sheet
from dovetail.client.statistics import quantile

Row = Mapping[str, Any]
#: Headings of columns that hold words.
WORDS = ("format", "who", "schemas", "keyword", "way", "drafting", "drafter")


def sheets(results: Mapping[str, Any]) -> list[Sheet]:
    """A table for each part that was measured."""
    made: list[Sheet] = []
    if cells := results.get("compile"):
        made.append(_compile(cells))
    if cells := results.get("masks"):
        made.append(_masks(cells))
    if cells := results.get("memory"):
        made.append(_memory(cells))
    if cells := results.get("loop"):
        made.append(_loop(cells))
    if cells := results.get("keywords"):
        made.append(_keywords(cells))
    if collected := results.get("collection"):
        made.append(_collection(collected))
    return made


def _compile(cells: Sequence[Row]) -> Sheet:
    headings = ["format", "schemas", "tools", "who", "first ms", "new ms", "again ms", "of it writing ms"]
    rows = []
    for cell in cells:
        row = [cell["family"], cell["schemas"], str(cell["tools"]), cell["who"]]
        rows.append([*row, *(_median_ms(cell, kind) for kind in ("first", "new", "again", "writing"))])
    return "From tools to a constraint: CPU time, medians", headings, rows


def _median_ms(cell: Row, kind: str) -> str:
    if "error" in cell:
        return cell["error"] if kind == "first" else ""
    return f"{1e3 * statistics.median(cell[kind]):,.2f}" if cell[kind] else "–"


def _masks(cells: Sequence[Row]) -> Sheet:
    headings = ["format", "who", "first pass: p50", "p99", "max", "later: p50", "p99", "max", "advance p50", *KINDS]
    rows = []
    for cell in cells:
        row = [cell["family"], cell["who"]]
        if "error" in cell or "refused" in cell:
            outcome = cell.get("error") or f"refused token {cell['refused']} of {cell['tokens']}"
            rows.append([*row, outcome, *[""] * (len(headings) - 3)])
            continue
        first, later = cell["fill"][0], [value for one in cell["fill"][1:] or cell["fill"] for value in one]
        row += [_us(share) for share in _three(first)] + [_us(share) for share in _three(later)]
        row.append(_us(statistics.median(value for one in cell["advance"] for value in one)))
        for kind in KINDS:
            of_kind = [one[i] for one in cell["fill"][1:] for i, it in enumerate(cell["kinds"]) if it == kind]
            row.append(_us(statistics.median(of_kind)) if of_kind else "–")
        rows.append(row)
    return "A mask of 163,840 tokens: CPU time in µs", headings, rows


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return quantile(ordered, 0.5), quantile(ordered, 0.99), ordered[-1]


def _us(seconds: float) -> str:
    micro = 1e6 * seconds
    return f"{micro:,.0f}" if micro >= 100 else f"{micro:.1f}"


def _memory(cells: Sequence[Row]) -> Sheet:
    headings = ["format", "who", "vocabulary s", "MB", "a grammar of 20 tools KB", "the last ones KB", "cache says KB"]
    headings.append("a sequence KB")
    rows = []
    for cell in cells:
        row = [cell["family"], cell["who"], f"{cell['vocabulary']['seconds']:.2f}", _mb(cell["vocabulary"]["bytes"])]
        if "error" in cell:
            rows.append([*row, cell["error"], *[""] * (len(headings) - 5)])
            continue
        grown = cell["grown"]
        half = len(grown) // 2
        row.append(_kb(grown[half] / (half + 1)))
        row.append(_kb((grown[-1] - grown[half]) / max(1, len(grown) - 1 - half)))
        row.append("–" if cell["kept"] is None else _kb(cell["kept"]))
        rows.append([*row, _kb(cell["sequence"])])
    return "Memory", headings, rows


def _mb(count: float) -> str:
    return f"{count / 1e6:,.0f}"


def _kb(count: float) -> str:
    return f"{max(0.0, count) / 1e3:,.0f}"


def _loop(cells: Sequence[Row]) -> Sheet:
    headings = ["who", "way", "ticks late by: p50 ms", "p99", "max", "all requests s"]
    rows = []
    for cell in cells:
        row = [cell["who"], cell["way"]]
        if "error" in cell:
            rows.append([*row, cell["error"], "", "", ""])
            continue
        rows.append([*row, *(f"{1e3 * it:,.1f}" for it in _three(cell["lags"])), f"{cell['seconds']:.2f}"])
    return "An event loop while requests of 200 tools come at once: wall time", headings, rows


def _keywords(cells: Sequence[Row]) -> Sheet:
    headings = ["keyword", *(key for key in cells[0] if key != "keyword")]
    return "What is kept of a schema", headings, [[cell[key] for key in headings] for cell in cells]


def _collection(collected: Row) -> Sheet:
    kinds = sorted({kind for counts in collected["verdicts"].values() for kind in counts})
    rows = [[title, *(str(counts.get(kind, 0)) for kind in kinds)] for title, counts in collected["verdicts"].items()]
    return f"{collected['schemas']} schemas of walle", ["who", *kinds], rows
