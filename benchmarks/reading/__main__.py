"""Dovetail's readers and other engines' own streaming parsers, side by side, on the same outputs in the same deltas.

CPU time is measured in each reader's own environment: medians over rounds, between which the others have their turn,
of medians over runs, after one that warms up. Making a reader has a column of its own; ending it is counted.
vLLM and "Dovetail, ids" get the ids of every delta, "Dovetail, text" and SGLang text alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from benchmarks import tables
from benchmarks.reading import report, worker_jobs
from benchmarks.reading.deltas import Cutter, split
from benchmarks.reading.families import FAMILIES, Family, as_written
from benchmarks.reading.texts import TOOLS, VARIANTS, Message, long_call, sample, value
from benchmarks.reading.workers import READERS, Reader, Worker, WorkerError
from dovetail.formats import registry

MEANS = (1, 4, 16, None)  # tokens in a delta; None: the whole output in one
USUAL = 10_000  # characters: of the sizes, the nearest is also cut into tokens
#: What `--quick` measures.
_QUICK: dict[str, Any] = {
    **{"only": ["dovetail"], "ids": False, "sizes": [1_000, 100_000], "variants": ["code"]},
    **{"splits": 0, "budget": 0.05, "rounds": 2, "fastest": True},
}


def main() -> None:
    """Measure and print."""
    options = _options()
    errors = Console(stderr=True)
    readers = [reader for reader in READERS if reader.engine in options.only and (options.ids or not reader.ids)]
    workers: dict[str, Worker] = {}
    try:
        for engine in dict.fromkeys(reader.engine for reader in readers):
            workers[engine] = Worker(engine, options.peers)
        versions = {engine: worker.versions for engine, worker in workers.items()}
        speeds, wrongs = _measure(options, readers, workers, errors)
    except WorkerError as error:
        errors.print(f"[red]{error}[/]", highlight=False)
        sys.exit(2)
    finally:
        for worker in workers.values():
            worker.close()
    if options.json:
        head = {"machine": tables.machine(), "versions": versions, "options": tables.plain(options)}
        print(json.dumps({**head, "speed": speeds, "splits": wrongs}, indent=2, ensure_ascii=False))
        return
    used = ", ".join(f"{engine} {found.get(engine)} (Python {found['python']})" for engine, found in versions.items())
    sheets = [report.speed_sheet(speeds, options.sizes)]
    sheets += [report.splits_sheet(wrongs, MEANS)] if wrongs else []
    tokens = "those of real tokenizers" if options.tokenizers else "words and short runs of signs"
    notes = [
        f"{tables.machine()}; {used}.",
        f"µs/token is at {_usual(options) / 1000:g} KB; tokens are {tokens}. 1 KB is 1,000 characters.",
        "silence: the most characters of the argument that went in while nothing of it came out.",
    ]
    notes += [f"{cell['family']}, {cell['reader']}: {cell['error']}" for cell in _first_errors([*speeds, *wrongs])]
    tables.show(sheets, notes, as_markdown=options.markdown, words=report.WORDS, width=200)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("--families", nargs="+", default=[], metavar="NAME", help='formats; "all" for every one known')
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="of the argument")
    parser.add_argument("--splits", type=int, default=200, help="outputs to cut at random, for each mean delta size")
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), default=["code", "markup"], help="kinds of text"
    )
    engines = list(dict.fromkeys(reader.engine for reader in READERS))
    parser.add_argument("--only", nargs="+", choices=engines, default=engines, help="engines to run")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="folder with the engines' environments")
    parser.add_argument("--tokenizers", type=Path, help="folder with real tokenizers, to cut outputs into tokens")
    parser.add_argument("--limit", type=float, default=100, help="CPU seconds for one output, or one set of splits")
    parser.add_argument("--budget", type=float, default=0.2, help="CPU seconds to spend on one figure in one round")
    parser.add_argument("--rounds", type=int, default=5, help="how often to come back to a figure that is soon had")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="Dovetail alone, code as text at 1 and 100 KB: the goals, in a minute, by the fastest run of each, which "
        "other work disturbs least",
    )
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    parser.set_defaults(ids=True, fastest=False)
    options = parser.parse_args()
    if options.quick:
        vars(options).update(_QUICK)
    names = list(FAMILIES) if "all" in options.families else options.families
    known = registry.FAMILIES if options.only == ["dovetail"] else FAMILIES
    options.families = names or list(known if options.quick else FAMILIES)
    if unknown := [name for name in options.families if name not in known]:
        parser.error(f"no texts for {', '.join(unknown)}; there are {', '.join(known)}")
    return options


def _measure(
    options: argparse.Namespace, readers: Sequence[Reader], workers: dict[str, Worker], errors: Console
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    cells: dict[str, list[dict[str, Any]]] = {"speed": [], "splits": []}
    columns = (TextColumn("{task.description:48}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors) as progress:
        bar = progress.add_task("", total=len(options.families))
        for family in (FAMILIES.get(name) or as_written(name) for name in options.families):
            jobs = [(reader, *job) for job in _speed_jobs(family, options) for reader in readers]
            jobs += [(reader, *job) for job in _splits_jobs(family, options) for reader in readers]
            answers: list[list[dict[str, Any]]] = [[] for _ in jobs]
            for turn in range(options.rounds):
                for (reader, label, job), given in zip(jobs, answers, strict=True):
                    if turn == 0 or _again(job, given[0], options.budget):
                        progress.update(bar, description=f"{reader.title}: {', '.join(map(str, label.values()))}")
                        given.append(workers[reader.engine].ask(worker_jobs.for_reader(reader, job)))
                    progress.advance(bar, 1 / len(jobs) / options.rounds)
            for (reader, label, job), given in zip(jobs, answers, strict=True):
                cell = {"reader": reader.title, **label, "limit": options.limit, **given[0]}
                if "seconds" in cell:
                    typical = min if options.fastest else statistics.median
                    cell |= {"deltas": len(job["deltas"]), "characters": job["characters"]}
                    cell["seconds"] = typical([answer["seconds"] for answer in given])
                    if options.fastest:
                        cell["making"] = min(answer["making"] for answer in given)
                cells[job["task"]].append(cell)
            for line in report.lines(cells["speed"], family.name):
                progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
    return cells["speed"], cells["splits"]


def _again(job: dict[str, Any], answer: dict[str, Any], budget: float) -> bool:
    """Whether a figure is worth another round: a quick one is, because what else the machine does can hide it."""
    return job["task"] == "speed" and bool(answer.get("seconds", budget) < budget)


def _speed_jobs(family: Family, options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for variant in options.variants if family.tags else options.variants[:1]:
        cuts = [*(("characters", size) for size in options.sizes), ("tokens", _usual(options))]
        for cut, size in cuts[: len(options.sizes)] if options.quick else cuts:
            cutter = Cutter(family, cut if cut == "characters" else _tokens(family, options))
            text = value(variant, size)
            message = long_call(text, reasoning=family.thinks)
            output = family.write(message)
            spelled = family.escape(text)
            start = output.index(spelled)
            label = {"family": family.name, "variant": variant, "cut": cut, "size": size}
            job = {
                "task": "speed",
                "deltas": cutter.tokens(output),
                "span": (start, start + len(spelled)),
                "expected": _expected(message),
                "characters": len(output),
                "budget": options.budget,
            }
            yield label, job | worker_jobs.common(family, cutter, TOOLS, limit=options.limit, fastest=options.fastest)


def _splits_jobs(family: Family, options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    cutter = Cutter(family, _tokens(family, options))
    allowed = {"reasoning": family.thinks, "content": family.mixes, "parallel": family.parallel}
    messages = [sample(seed, **allowed) for seed in range(options.splits)]
    cut = [cutter.tokens(family.write(message)) for message in messages]
    for mean in MEANS if options.splits else ():
        outputs = [
            (split(tokens, mean, seed), _expected(message))
            for seed, (tokens, message) in enumerate(zip(cut, messages, strict=True))
        ]
        label = {"family": family.name, "mean": mean}
        job = {"task": "splits", "outputs": outputs}
        yield label, job | worker_jobs.common(family, cutter, TOOLS, limit=options.limit, fastest=options.fastest)


def _usual(options: argparse.Namespace) -> int:
    sizes: list[int] = options.sizes
    return min(sizes, key=lambda size: abs(size - USUAL))


def _tokens(family: Family, options: argparse.Namespace) -> str | Path:
    if options.tokenizers is None:
        return "words"
    path: Path = options.tokenizers / family.tokenizer
    return path


def _expected(message: Message) -> dict[str, Any]:
    calls = [{"name": name, "arguments": arguments} for name, arguments in message.calls]
    return {"calls": calls, "content": message.content, "reasoning": message.reasoning}


def _first_errors(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One cell for each reader and family that could not run at all."""
    return list({(cell["family"], cell["reader"]): cell for cell in cells if "error" in cell}.values())


if __name__ == "__main__":
    main()
