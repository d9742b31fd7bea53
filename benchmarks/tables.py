"""How the measurements beside others say what they found: tables for a terminal or as Markdown, options as JSON."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

Row = list[str]
#: Title, headings, rows.
Sheet = tuple[str, Row, list[Row]]


def show(
    sheets: Iterable[Sheet], notes: Sequence[str], *, as_markdown: bool, words: Container[str], width: int = 160
) -> None:
    """Print sheets, then notes. `words` are the headings of columns that hold no figures; `width` is that of a file."""
    if as_markdown:
        print("\n\n".join([*map(markdown, sheets), *notes]))
        return
    console = Console(width=None if sys.stdout.isatty() else width)
    for title, headings, rows in sheets:
        table = Table(title=title, box=box.SIMPLE)
        for heading in headings:
            table.add_column(heading, justify="left" if heading in words else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)


def markdown(sheet: Sheet) -> str:
    """A sheet as a Markdown table under its title."""
    title, headings, rows = sheet
    lines = [f"**{title}**", "", "| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def machine() -> str:
    """The processor, its cores, and this Python."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"


def plain(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, as JSON can hold it."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def progress(console: Console) -> Progress:
    """A bar for long work, with room for what is going on."""
    columns = (TextColumn("{task.description:56}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)
