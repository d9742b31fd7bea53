"""`dovetail bench`: how fast an endpoint decodes and prefills, by context and concurrency, with and without drafts.

`dovetail bench compare`: whether a later result decodes as fast as an earlier one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dovetail import __version__
from dovetail.bench.comparison import Comparison, compare
from dovetail.bench.html import html
from dovetail.bench.plan import KINDS, Kind, Plan, new_seed, parse_matrix
from dovetail.bench.report import show
from dovetail.bench.result import Client, Header, Result, ResumeFile, commit, machine, versions
from dovetail.bench.runner import Run, ratios
from dovetail.bench.target import Target
from dovetail.cli.files import endpoint_key, print_json, read_text
from dovetail.cli.served import served
from dovetail.client.endpoint import Endpoint, Limits
from dovetail.client.statistics import Interval
from dovetail.client.transport import HttpTransport, base_of
from dovetail.errors import InvalidRequest

#: The environment variables with the keys of the first and the second URL. A key is never sent to the other one.
KEY_VARIABLES = ("OPENAI_API_KEY", "OPENAI_API_KEY_2")
MATRIX, _DEMO_MATRIX = "1k,8k x 1,4", "256,1k x 1,4"
_START_S = 300.0
_INTERRUPTED = 130  # the exit code after Ctrl-C


def run(arguments: argparse.Namespace) -> int:
    """Exit codes: 0 all is measured, but for calls that an endpoint does not take; 1 a call was wrong; 2 a cell is
    empty; 130 stopped.
    """
    if "before" in arguments:
        return _compare(arguments)
    plan = _plan(arguments)
    if arguments.url is not None:
        return _run(arguments, plan, [base_of(url) for url in (arguments.url, arguments.url2) if url is not None])
    print("starting the bundled demo model", file=sys.stderr)
    with served("the demo model", within=_START_S) as url:
        return _run(arguments, plan, [url])


def _run(arguments: argparse.Namespace, plan: Plan, urls: list[str]) -> int:
    if len(set(urls)) < len(urls):
        raise InvalidRequest("URL and URL2 are the same endpoint: name it once")
    header = Header(tuple(urls), (arguments.model_name,) * len(urls), plan)
    file = ResumeFile(None if arguments.resume is None else Path(arguments.resume), header)
    key_files = (arguments.api_key_file, arguments.api_key_file_2)
    transports = [
        HttpTransport(url, endpoint_key(key_files[i], KEY_VARIABLES[i]), arguments.timeout)
        for i, url in enumerate(urls)
    ]
    limits = Limits(arguments.max_requests, arguments.max_wait)
    targets = [
        Target(
            Endpoint(transport, url, model=arguments.model_name, limits=limits),
            transport,
            shared_prefix=plan.shared_prefix,
        )
        for url, transport in zip(urls, transports, strict=True)
    ]
    measuring = Run(plan, targets, file.cells)
    began, cpu = time.perf_counter(), time.process_time()
    stopped = False
    try:
        asyncio.run(_measure(measuring, transports, file))
    except KeyboardInterrupt:
        stopped = True
    seconds = time.perf_counter() - began
    client = Client((time.process_time() - cpu) / seconds, seconds)
    return _report(arguments, plan, targets, measuring, client, stopped=stopped)


def _plan(arguments: argparse.Namespace) -> Plan:
    contexts, concurrencies = parse_matrix(arguments.matrix or (_DEMO_MATRIX if arguments.url is None else MATRIX))
    kinds: list[Kind] = [kind for kind in KINDS if kind in arguments.kinds.split(",")]
    if not kinds or len(kinds) < len(set(arguments.kinds.split(","))):
        raise InvalidRequest(f"--kinds knows {' and '.join(KINDS)}, not {arguments.kinds!r:.80}")
    if arguments.tokens < 2:
        raise InvalidRequest("--tokens must be 2 or more: the speed is measured after the first token")
    seed = new_seed() if arguments.seed is None else arguments.seed
    counts = arguments.tokens, arguments.requests
    return Plan(contexts, concurrencies, tuple(kinds), *counts, seed, arguments.shared_prefix)


async def _measure(measuring: Run, transports: list[HttpTransport], file: ResumeFile) -> None:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    try:
        await measuring.prepare()
        print(f"{measuring.requests} requests, with the warm-up", file=sys.stderr)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("requests", total=measuring.requests)
            await measuring.run(
                lambda done, shown: bar.update(task, advance=done, description=shown),
                file.add,
            )
    finally:
        for transport in transports:
            await transport.close()


def _report(
    arguments: argparse.Namespace, plan: Plan, targets: list[Target], measuring: Run, client: Client, *, stopped: bool
) -> int:
    cells = measuring.everything()
    models = {target.name: target.model for target in targets}
    command = ("dovetail", *sys.argv[1:])
    result = Result(
        command, __version__, machine(), plan, models, tuple(cells), tuple(ratios(cells)), client, commit(), versions()
    )
    if arguments.html is not None:
        Path(arguments.html).write_text(html(result), encoding="utf-8", errors="replace")
    if arguments.json:
        print_json(result)
    else:
        show(result, Console(highlight=False))
    if stopped:
        return _INTERRUPTED
    reasons = [cell.because for cell in cells if cell.because is not None]
    if len(reasons) == len(cells) or any(reason not in measuring.lacking for reason in reasons):
        return 2
    return 1 if any(cell.calls.wrong for cell in cells) else 0


def _compare(arguments: argparse.Namespace) -> int:
    """Exit codes: 0 as fast; 1 slower than `--fail-below` beyond doubt, or a call was wrong; 2 a cell is missing."""
    before, after = _read(arguments.before), _read(arguments.after)
    comparison = compare(before, after)
    slower = [] if arguments.fail_below is None else comparison.slower(arguments.fail_below)
    if arguments.json:
        print(msgspec.json.encode({"comparison": comparison, "slower": slower}).decode())
    else:
        _show_comparison(comparison, slower, arguments.fail_below, Console(highlight=False, soft_wrap=True))
    return 1 if slower or comparison.wrong else 2 if comparison.missing else 0


def _read(path: str) -> Result:
    try:
        return msgspec.json.decode(read_text(path), type=Result)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{path} is no result of `dovetail bench --json`: {error}") from error


def _show_comparison(comparison: Comparison, slower: list[str], bound: float | None, console: Console) -> None:
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
