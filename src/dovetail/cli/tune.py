"""`dovetail tune`: compiles every candidate of the GPU kernel ahead of time, and shows what fits and what is chosen.

With --measure it times the rows of the table on this machine's GPU, whose times then choose. `--speculation` is
another command, in `tune_speculation.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table as Shown

from dovetail.cli.files import print_json
from dovetail.engine.tuning.model import Work, choose, floor
from dovetail.engine.tuning.table import ARCHITECTURES, KINDS, Kind, Row, Table, table, updated
from dovetail.errors import EngineError

#: For which the choice is shown: batch and context, with heads and queries of Kimi-K2.5 on 8 GPUs at 3 drafts.
_WORKS = [Work(batch, context, 8, 4) for context in (1024, 8192, 65536) for batch in (1, 16, 64)]
#: For which a GPU is measured: without drafts too, and with all heads.
_MEASURED = [work._replace(heads=heads, queries=queries) for work in _WORKS for heads in (8, 64) for queries in (1, 4)]

_PREDICTED = "predicted by a model (engine/tuning/model.py), never measured."


def run(arguments: argparse.Namespace) -> int | None:
    if "speculation" in arguments:
        from dovetail.cli import tune_speculation

        return tune_speculation.run(arguments)
    archs: list[str] = arguments.arch or list(ARCHITECTURES)
    kinds: list[Kind] = arguments.cache or list(KINDS)
    console = Console(highlight=False, stderr=arguments.json)
    if arguments.measure:
        selected = _measured(arguments.arch, kinds, console)
        archs = sorted({row.arch for row in selected.rows})
    else:
        selected = _select(table(), archs, kinds) if arguments.no_compile else _compiled(archs, kinds, console)
    fits = msgspec.structs.replace(selected, rows=tuple(row for row in selected.rows if row.why_not() is None))
    if arguments.write:
        Path(arguments.write).write_bytes(updated(table(), selected))
    if arguments.json:
        print_json(selected)
    else:
        _show(selected.rows, console)
        _show_choices(fits, archs, kinds, console)
    return None


def _select(whole: Table, archs: list[str], kinds: list[Kind]) -> Table:
    rows = tuple(row for row in whole.rows if row.arch in archs and row.kind in kinds)
    return Table(
        whole.triton, rows, tuple(each for each in whole.measured if each.arch in archs and each.kind in kinds)
    )


def _measured(archs: list[str] | None, kinds: list[Kind], console: Console) -> Table:
    """The table's rows for this machine's GPU, and their times. Raises `EngineError` without a GPU that it is for."""
    if find_spec("torch") is None:
        raise EngineError("tune --measure needs torch and Triton: `pip install dovetail[engine,gpu]`")
    from dovetail.engine.tuning import device

    arch, name = device.gpu()
    if archs and archs != [arch]:
        raise EngineError(f"tune --measure times this machine's GPU, {name} ({arch}), and not {', '.join(archs)}")
    rows = tuple(row for kind in kinds for row in table().of(arch, kind))
    from dovetail.engine.tuning import measuring

    with console.status(f"measuring on {name}"):
        times = measuring.measure(table(), arch, name, kinds, _MEASURED, measuring.on_gpu, "cuda")
        return Table(table().triton, rows, tuple(measuring.fastest(times)))


def _compiled(archs: list[str], kinds: list[Kind], console: Console) -> Table:
    """Every candidate, compiled. Raises `EngineError` without Triton."""
    if find_spec("triton") is None:
        raise EngineError(
            "tune compiles with Triton, which is not installed: `pip install dovetail[engine,gpu]`, or --no-compile to "
            "show the table that comes with Dovetail"
        )
    from dovetail.engine.tuning.compiling import VERSION, candidates, compile_row

    rows = []
    for arch in archs:
        for kind in kinds:
            with console.status(f"compiling for {arch}, {kind}"):
                rows += [compile_row(arch, kind, candidate) for candidate in candidates(kind)]
    return Table(VERSION, tuple(rows))


def _show(rows: Iterable[Row], console: Console) -> None:
    shown = Shown("arch", "cache", "block, tile, stages, warps", "shared", "registers", "instruction", "result")
    for row in rows:
        candidate = ", ".join(map(str, msgspec.structs.astuple(row.candidate)))
        facts = (f"{row.shared:,}", str(row.registers), row.instruction or "none", row.why_not() or "fits")
        shown.add_row(row.arch, row.kind, candidate, *facts)
    console.print(shown)


def _show_choices(fits: Table, archs: list[str], kinds: list[Kind], console: Console) -> None:
    """What is chosen, its time by the model or as it was measured, and the time that memory alone takes."""
    shown = Shown("arch", "cache", "batch", "context", "block, tile, stages, warps", "splits", "takes", "memory alone")
    for arch in archs:
        for kind in kinds:
            if not any(row.arch == arch and row.kind == kind for row in fits.rows):
                continue
            for work in _WORKS:
                chosen = choose(fits, arch, kind, work)
                candidate = ", ".join(map(str, msgspec.structs.astuple(chosen.row.candidate)))
                times = (f"{chosen.seconds * 1e6:,.0f} us", f"{floor(kind, arch, work) * 1e6:,.0f} us")
                shown.add_row(arch, kind, str(work.batch), f"{work.context:,}", candidate, str(chosen.splits), *times)
    console.print(shown)
    measured = {each.arch: each.gpu for each in fits.measured}
    named = [f"{arch} measured on {gpu}" for arch, gpu in measured.items()]
    source = "; ".join(named) + ("." if set(archs) <= measured.keys() else f"; others: {_PREDICTED}")
    source = source if named else _PREDICTED
    console.print(f"8 heads, 4 queries, one layer. {source}")
