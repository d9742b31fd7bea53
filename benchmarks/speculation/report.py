"""The figures as matrices: one table for each drafter, one row for each context and batch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.speculation.measure import GOAL, NOISY_GOAL
from benchmarks.tables import Sheet

#: Headings of columns that hold words.
WORDS = ("goal", "interval")
#: Gated is to be at least so many times as fast as off, on the demo model at batch 1.
DEMO_GOAL = 1.5
#: What the gate may take of a step, in microseconds.
GATE_US = 20.0

Row = Mapping[str, Any]


def sheets(results: Mapping[str, Any]) -> list[Sheet]:
    """For each drafter of each model."""
    turns = results["options"]["turns"]
    sheets = []
    for (model, drafter), rows in groups(results).items():
        numbers = list(rows[0]["fixed"])
        headings = ["context", "batch", "off", *(f"K={k}" for k in numbers), "gated", "K gated", "best", "best/off"]
        headings += ["gated/off", "gated/best", "interval", "goal", "accepted", "gate us"]
        title = f"{model}, {drafter}: tokens/s, greedy, medians of {turns}"
        sheets.append((title, headings, [_row(row, numbers) for row in rows]))
    return sheets


def notes(results: Mapping[str, Any]) -> list[str]:
    """What the tables were measured with, and what of the goals holds."""
    rows = [row for row in results["cells"] if "gated" in row]
    lines = [
        f"{results['machine']}; "
        + ", ".join(f"{name} {version}" for name, version in results["versions"].items())
        + f"; {results['threads']} thread{'s' * (results['threads'] > 1)}.",
        "best: of off and every fixed K; accepted: of single drafts (K=1); ratios are medians of what each turn says, "
        "of gated to best those of further turns of these two alone.",
        f"In each cell a gate ran for {results['options']['warm']:g} s before it counted, up to ten times as long "
        "where steps are long.",
    ]
    if rows:
        goal = NOISY_GOAL if results["options"].get("noisy") else GOAL
        worst = min(rows, key=lambda row: row["gated_to_best"])
        met = sum(row["holds"] for row in rows)
        lines.append(
            f"Gated is at least {goal:g}x the best in {met} of {len(rows)} cells; worst {worst['gated_to_best']:.3f}x, "
            f"{worst['model']}, {worst['drafter']}, context {worst['context']}, batch {worst['batch']}."
        )
        again = sorted(row["best_again"] for row in rows)
        low, high = again[len(again) // 10], again[-1 - len(again) // 10]
        lines.append(
            f"In those further turns the best was {statistics.median(again):.3f}x as fast as when it was found to be "
            f"the best; in eight of ten cells {low:.2f}x to {high:.2f}x: so far two runs of the same thing are apart."
        )
        if single := [row for row in rows if row["model"] == "demo" and row["batch"] == 1]:
            ratios = (f"{row['gated_to_off']:.2f}x ({row['drafter']}, context {row['context']:,})" for row in single)
            lines.append(f"On the demo, gated at batch 1 is {', '.join(ratios)} off; the goal is {DEMO_GOAL:g}x.")
        by_batch = {batch: [row["gate_us"] for row in rows if row["batch"] == batch] for batch in _batches(rows)}
        times = (f"{_middle(us, 'median')} ({_middle(us, 'mean')}) at batch {n}" for n, us in by_batch.items())
        lines.append(f"The gate takes of a step, in us, median (mean): {', '.join(times)}; the goal is {GATE_US:g}.")
    return lines


def line(row: Row) -> str:
    """A row in short, for when its cell ends."""
    fixed = ", ".join(f"K={k} {rate:,.0f}" for k, rate in row["fixed"].items())
    text = f"{row['model']}, {row['drafter']}, context {row['context']:,}, batch {row['batch']}: off {row['off']:,.0f}"
    if "gated" not in row:
        return f"{text}, {fixed} tokens/s"
    low, high = row["interval"]
    ratios = f"{row['gated_to_off']:.2f}x off, {row['gated_to_best']:.3f} ({low:.2f} to {high:.2f}) of the best"
    return f"{text}, {fixed}, gated {row['gated']:,.0f} tokens/s, {ratios}"


def groups(results: Mapping[str, Any]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each drafter of each model."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in results["cells"]:
        groups.setdefault((row["model"], row["drafter"]), []).append(row)
    return groups


def _middle(times: Sequence[Mapping[str, float]], name: str) -> str:
    return f"{statistics.median(time[name] for time in times):.1f}"


def _batches(rows: Sequence[Row]) -> list[int]:
    return sorted({row["batch"] for row in rows})


def _row(row: Row, numbers: Sequence[str]) -> list[str]:
    cells = [f"{row['context']:,}", str(row["batch"]), f"{row['off']:,.1f}"]
    cells += [f"{row['fixed'][k]:,.1f}" for k in numbers]
    gated = "gated" in row
    cells += [f"{row['gated']:,.1f}", f"{row['gated_drafts']:.1f}"] if gated else ["–", "–"]
    cells += ["off" if row["best"] == 0 else f"K={row['best']}", f"{row['best_to_off']:.2f}x"]
    if gated:
        cells += [
            f"{row['gated_to_off']:.2f}x",
            f"{row['gated_to_best']:.3f}x",
            "{:.2f} to {:.2f}".format(*row["interval"]),
            "yes" if row["holds"] else "no",
        ]
    else:
        cells += ["–", "–", "–", "–"]
    cells.append(f"{row['accepted'][numbers[0]]:.0%}")
    return [*cells, f"{row['gate_us']['median']:.1f}" if gated else "–"]
