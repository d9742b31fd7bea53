"""`dovetail bench --workload`: an endpoint under jobs that arrive."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from dovetail import __version__
from dovetail.bench.figures import Times
from dovetail.bench.knee import Knee, find_knee
from dovetail.bench.load import Load, LoadFigures, LoadRun
from dovetail.bench.plan import ServiceLevel, new_seed, parse_service_level
from dovetail.bench.result import Client, LoadResult, commit, machine, versions
from dovetail.bench.target import Target
from dovetail.bench.workload import WORKLOADS, Job, from_trace, jobs, scaled
from dovetail.cli.demo_endpoint import demo_endpoint
from dovetail.cli.endpoint_key import endpoint_key
from dovetail.cli.recorded_jobs import recorded_jobs
from dovetail.client.endpoint import Endpoint, Limits
from dovetail.client.not_tested import NotTested
from dovetail.client.transport import HttpTransport, base_of
from dovetail.errors import InvalidRequest

#: Jobs a second with which `--find-knee` begins.
_FIRST_RATE = 1.0
#: The exit code after Ctrl-C.
INTERRUPTED = 130
#: Requests by which a load finds out how many tokens a word has.
_COUNTING = 2
_TIMES = (
    ("time to the first token, ms", "ttft_ms"),
    ("to content or a call, ms", "answer_ms"),
    ("a token after the first, ms", "tpot_ms"),
    ("a request, ms", "end_to_end_ms"),
    ("a job without pauses, ms", "job_ms"),
    ("sent late, ms", "late_ms"),
)


def run(arguments: argparse.Namespace) -> int:
    """Exit codes: 0 measured, and every call right; 1 a call was wrong; 2 a request failed; 130 stopped."""
    if arguments.resume is not None:
        raise InvalidRequest(
            "--resume goes on with a matrix: a load that was stopped cannot go on as if it had not been"
        )
    if arguments.url2 is not None:
        raise InvalidRequest("--workload measures one endpoint: leave URL2 out")
    level = None if arguments.goodput is None else parse_service_level(arguments.goodput)
    if arguments.find_knee and level is None:
        raise InvalidRequest('--find-knee needs the limits to keep: --goodput "ttft:500,tpot:50"')
    seed = new_seed() if arguments.seed is None else arguments.seed
    work = _jobs(arguments, seed)
    if arguments.url is not None:
        return _run(arguments, base_of(arguments.url), work, seed, level)
    print("starting the bundled demo model", file=sys.stderr)
    with demo_endpoint() as url:
        return _run(arguments, url, work, seed, level)


def _jobs(arguments: argparse.Namespace, seed: int) -> list[Job]:
    name = arguments.workload
    if name in WORKLOADS:
        if arguments.replay is not None:
            raise InvalidRequest("--replay needs a trace file, which has times")
        found = jobs(name, arguments.jobs, seed)
    else:
        try:
            if Path(name).is_dir():
                found = recorded_jobs(Path(name), arguments.jobs)
            else:
                with Path(name).open(encoding="utf-8") as lines:
                    found = from_trace(lines, arguments.jobs)
        except (OSError, UnicodeDecodeError) as error:
            known = ", ".join(WORKLOADS)
            raise InvalidRequest(f"--workload {name!r:.80} is none of {known}, and no trace file: {error}") from error
    return [scaled(job, arguments.scale, arguments.pauses) for job in found]


def _load(arguments: argparse.Namespace) -> Load:
    if arguments.replay is not None:
        return Load("trace", arguments.replay)
    if arguments.rate is not None:
        return Load("rate", arguments.rate)
    return Load("concurrency", arguments.concurrency or 4)


def _run(arguments: argparse.Namespace, url: str, work: list[Job], seed: int, level: ServiceLevel | None) -> int:
    transport = HttpTransport(url, endpoint_key(arguments.api_key_file, "OPENAI_API_KEY"), arguments.timeout)
    limits = Limits(arguments.max_requests, arguments.max_wait)
    endpoint = Endpoint(transport, url, model=arguments.model_name, limits=limits)
    target = Target(endpoint, transport)
    began, cpu = time.perf_counter(), time.process_time()
    loads: list[LoadFigures] = []
    knee, stopped = None, False
    try:
        knee = asyncio.run(_measure(arguments, endpoint, target, transport, work, seed, level, loads))
    except KeyboardInterrupt:
        stopped = True
    seconds = time.perf_counter() - began
    client = Client((time.process_time() - cpu) / seconds, seconds)
    command = ("dovetail", *sys.argv[1:])
    result = LoadResult(
        command,
        __version__,
        machine(),
        arguments.workload,
        seed,
        target.model,
        tuple(loads),
        knee,
        client,
        commit(),
        versions(),
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    else:
        _show(result, Console(highlight=False, soft_wrap=True))
    if stopped:
        return INTERRUPTED
    complete = all(load.because is None and not load.failed for load in loads)
    if not (complete if knee is None else knee.rate is not None):
        return 2
    return 1 if any(load.calls.wrong for load in loads) else 0


async def _measure(
    arguments: argparse.Namespace,
    endpoint: Endpoint,
    target: Target,
    transport: HttpTransport,
    work: list[Job],
    seed: int,
    level: ServiceLevel | None,
    loads: list[LoadFigures],
) -> Knee | None:
    """Adds the figures of each load to `loads`."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    try:
        await target.prepare()
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

            async def figures(load: Load) -> LoadFigures:
                requests = sum(len(job.turns) for job in work)
                if requests + _COUNTING > endpoint.limits.max_requests - endpoint.sent:
                    raise NotTested(
                        f"--max-requests {endpoint.limits.max_requests} leaves no room for {requests} requests more"
                    )
                task = bar.add_task(f"{load.arrival} {load.value:.3g}", total=requests)
                run = LoadRun(target, work, load, seed, lambda: bar.advance(task))
                try:
                    loads.append(await run.run(level))
                except asyncio.CancelledError:  # Ctrl-C
                    loads.append(run.figures(level))
                    raise
                return loads[-1]

            if arguments.find_knee:
                return await find_knee(arguments.rate or _FIRST_RATE, lambda rate: figures(Load("rate", rate)))
            await figures(_load(arguments))
    except NotTested as reason:
        if not loads or loads[-1].because != reason.because:
            loads.append(LoadFigures(target.name, _load(arguments), because=reason.because))
    finally:
        await transport.close()
    return None


def _show(result: LoadResult, console: Console) -> None:
    for load in result.loads:
        _show_load(result.workload, load, console)
    if result.knee is not None:
        kept, missed = (None if rate is None else f"{rate:.3g}" for rate in (result.knee.rate, result.knee.missed))
        if kept is None:
            console.print(f"the limits are missed at every rate, down to {missed} jobs/s", style="yellow")
        else:
            above = "" if missed is None else f", and misses them at {missed}"
            console.print(f"knee: it keeps the limits at {kept} jobs/s{above}", style="bold")
    console.print(f"client: {result.client.cpu_share:.0%} of a core")


def _show_load(workload: str, load: LoadFigures, console: Console) -> None:
    console.print(
        f"{escape(load.endpoint)}: {escape(workload)}, {load.load.arrival} {load.load.value:.3g}", style="bold"
    )
    for reason, count in load.failed.items():
        console.print(f"{count} requests have no answer, because {escape(reason)}", style="yellow")
    if load.because is not None:
        console.print(f"not measured, because {escape(load.because)}", style="yellow")
        return
    table = Table("", "p50", "p90", "p99", box=None)
    for title, name in _TIMES:
        each: Times | None = getattr(load, name)
        if each is not None:
            table.add_row(title, f"{each.p50:.4g}", f"{each.p90:.4g}", f"{each.p99:.4g}")
    console.print(table)
    console.print(
        f"{load.requests} requests of {load.jobs} jobs in {load.seconds:.3g} s, at most {load.most_at_once} at once; "
        f"{load.answer_tokens_per_second:.4g} tokens/s; {load.cached_share:.0%} of the prompts' tokens from a cache"
    )
    if load.goodput is not None:
        share, rate = load.goodput.share, load.goodput.requests_per_second
        console.print(f"within the limits: {share:.0%} of requests, {rate:.3g} a second")
    if load.calls.wrong:
        wrong = f"{load.calls.wrong} of {load.calls.checked} answers with calls are wrong"
        console.print(f"{wrong}: {escape(str(load.calls.because))}", style="bold red")
