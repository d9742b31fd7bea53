"""The result on a terminal: a table of suites, then the failures by step, then what was not tested."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dovetail.verify.outcome import STEPS, Failure
from dovetail.verify.report.result import Result, UntestedResult
from dovetail.verify.suites.base import Figure

_SHOWN = 5  # failures of one step
_CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) != "\n"} | {0x7F: 0x2421}


def clean(text: str) -> str:
    """`text` without control characters, which could control a terminal: endpoints choose what they answer."""
    return text.translate(_CONTROL)


def show(result: Result, urls: tuple[str, ...], console: Console) -> None:
    for url, each in zip(urls, (result, result.beside), strict=False):
        if each is not None:
            _show_one(each, url, console)


def _show_one(result: Result, url: str, console: Console) -> None:
    console.print(f"[bold]{escape(url)}[/]")
    table = Table("suite", box=None, pad_edge=False, header_style="bold")
    for heading in ("passed", "of", "95 % interval"):
        table.add_column(heading, justify="right")
    for name, suite in result.suites.items():
        figure = suite.figures["passed"]
        style = "green" if suite.passed == suite.n else "red"
        table.add_row(name, f"[{style}]{suite.passed}[/]", str(suite.n), interval(figure))
        for title, other in suite.figures.items():
            if title != "passed":
                table.add_row(f"  {title}", number(other.value), str(other.n), interval(other), style="dim")
    if table.row_count:
        console.print(table)
    _show_failures(result.failures, console)
    _show_untested(result.not_tested, console)


def _show_untested(untested: tuple[UntestedResult, ...], console: Console) -> None:
    """One table, with a row for each reason."""
    suites: dict[str, list[str]] = {}
    for each in untested:
        suites.setdefault(each.because, []).append(each.suite)
    if not suites:
        return
    table = Table("not tested", "because", box=None, pad_edge=False, header_style="bold yellow")
    for because, names in suites.items():
        table.add_row(", ".join(dict.fromkeys(names)), escape(clean(because)), style="yellow")
    console.print()
    console.print(table)


def _show_failures(failures: tuple[Failure, ...], console: Console) -> None:
    ordered = sorted(failures, key=lambda failure: STEPS.index(failure.step))
    for step, group in groupby(ordered, key=lambda failure: failure.step):
        of_step = [*group]
        console.print(f"\n[bold red]{step}[/]: {len(of_step)} failures")
        for failure in of_step[:_SHOWN]:
            console.print(f"  [bold]{failure.suite} {escape(failure.case)}[/]", soft_wrap=True)
            for line in clean(failure.evidence).splitlines():
                console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)
        if len(of_step) > _SHOWN:
            console.print(f"  and {len(of_step) - _SHOWN} more (--json, --html)")


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}"


def interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{figure.low:.3f} to {figure.high:.3f}"
