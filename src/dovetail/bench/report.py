"""The table of a run, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dovetail.bench.figures import Cell, Times
from dovetail.bench.result import Result

_COLUMNS = ("context", "x", "kind", "drafts", "decode", "95 %", "all", "prefill", "TTFT", "TPOT", "a step")


def show(result: Result, console: Console) -> None:
    """A table for each endpoint, then what stayed empty, the ratios, and what the client took."""
    by_endpoint = sorted(result.cells, key=lambda cell: cell.endpoint)  # stable: the order of the plan stays
    for endpoint, cells in groupby(by_endpoint, key=lambda cell: cell.endpoint):
        _endpoint(endpoint, [*cells], console)
    for ratio in result.ratios:
        low, high = ratio.interval.low, ratio.interval.high
        console.print(
            f"{ratio.context} x {ratio.concurrency} {ratio.kind}: {escape(ratio.numerator)} decodes {ratio.decode:.2f} "
            f"times as fast as {escape(ratio.denominator)} ({low:.2f} to {high:.2f})",
            soft_wrap=True,
        )
    console.print(f"client: {result.client.cpu_share:.0%} of a core", style="yellow" if _busy(result) else "")
    if _busy(result):
        console.print("The client used more than half a core: its own work may be in the times.", style="yellow")


def _busy(result: Result) -> bool:
    return result.client.cpu_share > 0.5


def _endpoint(endpoint: str, cells: list[Cell], console: Console) -> None:
    table = Table(*_COLUMNS, title=escape(endpoint), title_justify="left", box=None, padding=(0, 1, 0, 0))
    for cell in cells:
        if cell.because is None:
            table.add_row(*_row(cell))
    if table.row_count:
        console.print(table)
        console.print(
            "medians; decode (each, its interval, all at once) and prefill in tokens/s, TTFT and TPOT (a token) in ms",
            style="dim",
        )
        if all(cell.acceptance is None for cell in cells):
            console.print("tokens a step are unknown: the endpoint reports no drafting", style="dim")
    for text, style in problems(cells):
        console.print(escape(text), style=style, soft_wrap=True)


def problems(cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """What is wrong with one endpoint's cells or figures: sentences, and the style of each on a terminal."""
    reasons: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.because is not None:
            reasons.setdefault(cell.because, []).append(cell)
    for because, empty in reasons.items():
        yield f"{_places(empty, cells)}: not measured, because {because}", "yellow"
    for cell in cells:
        if cell.calls.wrong:
            share = f"{cell.calls.wrong} of {cell.calls.checked} answers with calls are wrong"
            yield f"{_place(cell)}: {share}: {cell.calls.because}", "bold red"
        if cell.late_answers is not None:
            yield f"{_place(cell)}: {cell.late_answers}", "yellow"
        if cell.cached_share is not None and cell.cached_share > 0.1:
            yield f"{_place(cell)}: {cell.cached_share:.0%} of the prompts' tokens came from a cache", "yellow"


def _places(some: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """Which cells `some` are: all of some kinds, or each by its place."""
    kinds = dict.fromkeys(cell.kind for cell in some)
    if len(some) > 1 and len(some) == sum(cell.kind in kinds for cell in cells):
        return " and ".join(kinds)
    return "; ".join(map(_place, some))


def _place(cell: Cell) -> str:
    return f"{cell.context} x {cell.concurrency} {cell.kind}, drafting {cell.speculation}"


def _row(cell: Cell) -> tuple[str, ...]:
    decode = cell.decode_tokens_per_second
    interval = "" if decode is None else f"{decode.p50_interval.low:.0f}–{decode.p50_interval.high:.0f}"
    return (
        str(cell.context),
        str(cell.concurrency),
        cell.kind,
        cell.speculation,
        number(median(decode)),
        interval,
        number(cell.decode_tokens_per_second_all),
        number(median(cell.prefill_tokens_per_second)),
        number(median(cell.ttft_ms)),
        number(median(cell.tpot_ms)),
        number(cell.acceptance_length),
    )


def median(times: Times | None) -> float | None:
    return None if times is None else times.p50


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"
