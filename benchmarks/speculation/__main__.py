"""Where drafting pays, and whether the gate finds it: tokens/s over context and batch, without drafts, with a fixed
number of them and gated, on the demo pair and on a Llama of random weights whose drafter is right as often as it is
told to be.

All ways of drafting go on from the same moment with the same sequences and take turns in one process. Shown are medians
over turns of new tokens per second over all sequences, decoding only. Each gate begins with what its engine measured at
its start, and is warmed up in each cell before it counts. With --peers the same checkpoints are also given to
transformers and vLLM, in processes of their own.

A row is printed as soon as its cell ends. The default cells are the corners: one sequence and sixteen, short and long
contexts, good and bad drafts; what lies between has behaved like its corners. They take about seven minutes with seven
turns. --whole measures all cells, for hours; with --resume FILE it can be stopped and goes on after the last cell.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import dovetail
from benchmarks import tables
from benchmarks.speculation import beside, models, report
from benchmarks.speculation.cells import Cells
from benchmarks.speculation.measure import GOAL, NOISY_GOAL, Measurement, Plan, Way, ways
from benchmarks.speculation.neighbour import neighbours

#: Keys and values of so many tokens take steps that leave time for one acceptance only, the middle one.
_LARGE = 200_000
_WHOLE: dict[str, Any] = {
    "drafters": ["eagle3", "lookup"],
    "contexts": [0, 1024, 4096, 16384],
    "batches": [1, 4, 16, 64],
    "acceptances": [0.3, 0.6, 0.9],
    "fixed": [1, 2, 3, 5, 8],
    "seconds": 0.4,
}
_QUICK: dict[str, Any] = {
    "contexts": [0, 2048],
    "batches": [1, 16],
    "acceptances": [0.3, 0.9],
    "fixed": [1, 3, 8],
    "turns": 2,
    "seconds": 0.3,
    "warm": 0.5,
}


def main() -> None:
    """Measure, print, draw."""
    options = _options()
    errors = Console(stderr=True)
    with neighbours(int(options.noisy)):
        measured = _measured(options, errors)
    results = {"machine": tables.machine(), "options": tables.plain(options), **measured}
    if options.peers:
        results["beside"] = beside.measured(options.peers, quick=options.quick, errors=errors)
    if options.plot:
        from benchmarks.speculation import plot  # only drawing needs matplotlib

        for file in plot.draw(results, options.plot):
            errors.print(f"drawn: {file}")
    if options.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
        return
    tables.show(report.sheets(results), report.notes(results), as_markdown=options.markdown, words=report.WORDS)
    if options.peers:
        comparison = results["beside"]
        tables.show(
            beside.sheets(comparison), beside.notes(comparison), as_markdown=options.markdown, words=beside.WORDS
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=["demo", "middle"], default=["demo", "middle"])
    drafters = ["eagle3", "lookup"]
    parser.add_argument("--drafters", nargs="+", choices=drafters, default=["eagle3"], help="of the demo model")
    parser.add_argument("--contexts", type=int, nargs="+", default=[0, 4096], help="demo: 3,840 at most")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16], help="sequences at once")
    parser.add_argument("--fixed", type=int, nargs="+", default=[1, 3, 8], help="numbers of drafts")
    parser.add_argument("--acceptances", type=float, nargs="+", default=[0.3, 0.9], help="of synthetic drafts")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.25, help="of a run without drafts")
    parser.add_argument("--warm", type=float, default=1.5, help="seconds for the gate to learn in each cell")
    parser.add_argument("--sequences", type=int, default=8, help="of the demo in a run: small batches are several")
    parser.add_argument("--noisy", action="store_true", help="beside one busy neighbour, a process of one thread")
    parser.add_argument("--quick", action="store_true", help="a few cells, in three minutes")
    parser.add_argument("--whole", action="store_true", help="all cells, for hours")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep each cell there, and measure none again")
    parser.add_argument("--checkpoints", type=Path, default=Path(".peers/engine"), help="folder for what is made here")
    parser.add_argument("--peers", type=Path, help="folder with other engines' environments: side by side as well")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw matrix.png and matrix.svg there")
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    options = parser.parse_args()
    parser.set_defaults(**(_QUICK if options.quick else _WHOLE if options.whole else {}))
    return parser.parse_args()


def _measured(options: argparse.Namespace, errors: Console) -> dict[str, Any]:
    goal = NOISY_GOAL if options.noisy else GOAL
    plan = Plan(tuple(options.fixed), options.turns, options.seconds, options.warm, options.sequences, goal)
    cells = Cells(options.resume, _settings(options))
    with tables.progress(errors) as progress:
        for name in options.models:
            bar = progress.add_task(f"{name}: loading")

            def note(progress_text: str, bar: Any = bar, name: str = name) -> None:
                progress.update(bar, description=f"{name}: {progress_text}")

            model = _makers(options)[name]()
            places = [(context, batch) for batch in options.batches for context in model.contexts]
            progress.update(bar, total=len(places))
            measurement = Measurement(model, plan)
            gc.freeze()  # runs begin by collecting what those before left
            for context, batch in places:
                at, started = f"context {context:,}, batch {batch}", time.perf_counter()
                wanted = list(_wanted(ways(model, plan, options.acceptances), context * batch, options.acceptances))
                rows = cells.kept(model.title, context, batch)
                if rows is None:
                    rows = measurement.cell(
                        context, batch, wanted, lambda progress_text, at=at: note(f"{at}: {progress_text}")
                    )
                    cells.keep(rows)
                    errors.print(f"{name}: {at}: {time.perf_counter() - started:.0f} s", highlight=False)
                for row in rows:
                    print(report.line(row), file=sys.stderr if options.json else sys.stdout, flush=True)
                cells.rows += rows
                progress.advance(bar)
            del model, measurement
            gc.unfreeze()
            gc.collect()
    versions = {"dovetail": dovetail.__version__, "torch": torch.__version__}
    return {"versions": versions, "threads": torch.get_num_threads(), "cells": cells.rows}


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """All that a cell's figures depend on beside its place."""
    names = ("drafters", "fixed", "acceptances", "turns", "seconds", "warm", "sequences", "noisy")
    return {name: getattr(options, name) for name in names} | {"machine": tables.machine()}


def _makers(options: argparse.Namespace) -> dict[str, Callable[[], models.Model]]:
    """What loads each model."""
    folder, drafts, batch = options.checkpoints, max(options.fixed), max(*options.batches, options.sequences)
    return {
        "demo": lambda: models.demo(folder, drafts, batch, options.contexts, options.drafters),
        "middle": lambda: models.middle(folder, drafts, batch, options.contexts),
    }


def _wanted(candidates: list[Way], tokens: int, acceptances: list[float]) -> Iterator[Way]:
    """Of all ways those that there is time for."""
    middle = sorted(acceptances)[len(acceptances) // 2]
    for way in candidates:
        if tokens < _LARGE or way.acceptance in (None, middle):
            yield way


if __name__ == "__main__":
    main()
