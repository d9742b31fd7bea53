"""`dovetail bench compare`: whether a later result decodes as fast as an earlier one."""

from __future__ import annotations

import argparse

import msgspec
from rich.console import Console
from rich.table import Table

from dovetail.bench.comparison import Comparison, compare
from dovetail.bench.result import Result
from dovetail.cli.files import read_text
from dovetail.client.statistics import Interval
from dovetail.errors import InvalidRequest


def run(arguments: argparse.Namespace) -> int:
    """Exit codes: 0 as fast; 1 slower than `--fail-below` beyond doubt, or a call was wrong; 2 a cell is missing."""
    before, after = _read(arguments.before), _read(arguments.after)
    comparison = compare(before, after)
    slower = [] if arguments.fail_below is None else comparison.slower(arguments.fail_below)
    if arguments.json:
        print(msgspec.json.encode({"comparison": comparison, "slower": slower}).decode())
    else:
        _show(comparison, slower, arguments.fail_below, Console(highlight=False, soft_wrap=True))
    return 1 if slower or comparison.wrong else 2 if comparison.missing else 0


def _read(path: str) -> Result:
    try:
        return msgspec.json.decode(read_text(path), type=Result)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{path} is no result of `dovetail bench --json`: {error}") from error


def _show(comparison: Comparison, slower: list[str], bound: float | None, console: Console) -> None:
    table = Table("context", "x", "kind", "drafts", "before", "after", "ratio", "interval", box=None)
    for cell in comparison.cells:
        place = str(cell.context), str(cell.concurrency), cell.kind, cell.speculation
        speeds = f"{cell.before:.4g}", f"{cell.after:.4g}", f"{cell.ratio:.3f}"
        table.add_row(*place, *speeds, "" if cell.interval is None else _range(cell.interval))
    console.print(table)
    console.print("before and after: median decode speed, in tokens/s", style="dim")
    console.print(f"all cells: {comparison.ratio:.3f} times as fast as before ({_range(comparison.interval)})")
    for name in comparison.missing:
        console.print(f"{name}: not compared, because only one result has figures", style="yellow")
    for name in comparison.wrong:
        console.print(f"{name}: calls are wrong in the later result", style="bold red")
    for name in slower:
        console.print(f"{name}: slower than {bound:g} times the earlier result", style="bold red")
    if bound is not None and not slower and comparison.interval.low < bound:
        console.print(
            f"not sure: the interval reaches below {bound:g}; more --requests make it narrower", style="yellow"
        )


def _range(interval: Interval) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f}"
