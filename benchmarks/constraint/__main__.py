"""What a constraint costs and enforces: Dovetail's two writers, xgrammar's own tags and vLLM, side by side.

Each peer is a process of its own with the same vocabulary of 163,840 tokens; the processes take turns. Compile times
and masks are CPU time, the event loop is wall time. first: the cache is empty; new: the cache has other tools; again:
it has the same tools. The first pass of masks is along an answer to new tools, later passes along the same answer.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

import dovetail
from benchmarks import tables
from benchmarks.constraint import coverage, decode, plot, report, tools
from benchmarks.constraint.keywords import KEYWORDS
from benchmarks.constraint.model_tags import MODEL_TAGS
from benchmarks.constraint.peers import ENGINES, PEERS, Peer, Worker
from benchmarks.constraint.vocabulary import ORDINARY, Vocabulary, described
from benchmarks.worker_process import WorkerError

PARTS = ("compile", "masks", "memory", "loop", "coverage", "decode")
Cells = list[dict[str, Any]]


def main() -> None:
    """Measure and print."""
    options = _options()
    errors = Console(stderr=True)
    results: dict[str, Any] = {
        "machine": tables.machine(),
        "options": tables.plain(options),
        "vocabulary": described(options.data),
        "versions": {},
    }
    with tables.progress(errors) as progress, tempfile.TemporaryDirectory() as folder:
        if not {"compile", "masks", "memory", "loop"}.isdisjoint(options.parts):
            Run(options, Path(folder), results, progress).measure()
        if "coverage" in options.parts:
            _coverage(options, results, progress)
        if "decode" in options.parts:
            bar = progress.add_task("decode", total=None)
            results["decode"] = decode.measure(
                batches=tuple(options.batches),
                answers=options.answers,
                note=lambda text: progress.update(bar, description=f"decode: {text}"),
            )
            results["forced"] = decode.forced(answers=options.answers)
    if options.plot is not None and "masks" in results:
        errors.print(f"drawn: {plot.draw(results, options.plot)}", highlight=False)
    if options.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
        return
    sheets = report.sheets(results)
    if "decode" in results:
        sheets += decode.sheets(results["decode"], results["forced"])
    tables.show(sheets, notes(results), as_markdown=options.markdown, words=report.WORDS, width=200)


def notes(results: dict[str, Any]) -> list[str]:
    """The versions that were measured, and what could not be measured."""
    used = ", ".join(
        f"{engine}: {', '.join(f'{name} {version}' for name, version in result.items() if name != 'python')}"
        for engine, result in results["versions"].items()
    )
    lines = [
        f"{results['machine']}; {used or 'no workers'}.",
        f"The vocabulary: {results['vocabulary']}, 163,840 in all.",
    ]
    if "loop" in results:
        lines.append(
            "served: Dovetail's whole gateway, in front of an engine that says nothing; xgrammar in a thread, as a "
            "gateway would have it; of vLLM what its server does of a grammar in its loop: the compile is its engine's."
        )
    if "decode" in results:
        lines.append(decode.NOTE)
    missing = results.get("missing", {})
    return [*lines, *(f"{who}: {why}" for who, why in missing.items())]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constraint", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--families", nargs="+", default=["kimi_k25"], metavar="NAME", help='"all": with own tags')
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=ENGINES, help="whose rows to measure")
    parser.add_argument("--tools", type=int, nargs="+", default=[1, 20, 200])
    parser.add_argument("--rounds", type=int, default=5, help="requests to compile for each figure")
    parser.add_argument("--passes", type=int, default=5, help="times along an answer, mask by mask")
    parser.add_argument("--grammars", type=int, default=100, help="to fill the caches with, of 20 tools each")
    parser.add_argument("--requests", type=int, default=20, help="at once, for the event loop")
    parser.add_argument(
        "--values", type=int, default=12, help="valid ones, and invalid ones, for each of walle's schemas"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16], help="sequences at once, when decoding")
    parser.add_argument("--answers", type=int, default=32, help="to decode")
    parser.add_argument("--tokens", type=int, default=ORDINARY, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="other people's data, where it is")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="folder with the engines' environments")
    parser.add_argument("--vllm", type=Path, help="vLLM's environment, if it is not PEERS/vllm-cpu")
    parser.add_argument("--plot", type=Path, help="draw the masks into this folder")
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    options = parser.parse_args()
    options.vllm = options.vllm or options.peers / "vllm-cpu"
    if options.families == ["all"]:
        options.families = list(MODEL_TAGS)
    return options


class Run:
    """The parts that workers measure. A failure becomes the `error` of its cell, so that no row is missing."""

    def __init__(self, options: argparse.Namespace, folder: Path, results: dict[str, Any], progress: Progress) -> None:
        self._options = options
        self._folder = folder
        self._results = results
        self._progress = progress
        self._opened: dict[str, dict[str, Any]] = {}

    def measure(self) -> None:
        """Fill `results` with cells for every part."""
        parts = [part for part in PARTS[:4] if part in self._options.parts]
        for part in parts:
            self._results[part] = []
        missing = self._results["missing"] = {}
        for family in self._options.families:
            vocabulary = Vocabulary(family, self._options.data, self._folder, self._options.tokens)
            workers: dict[Peer, Worker] = {}
            try:
                for peer in PEERS:
                    if peer.engine in self._options.only and peer.can(family):
                        self._say(f"{family}: {peer.title}")
                        try:
                            workers[peer] = self._worker(peer, family, vocabulary)
                        except WorkerError as error:
                            missing[f"{family}, {peer.title}"] = str(error)
                for part in parts:
                    if part in ("compile", "masks") or family == self._options.families[0]:
                        getattr(self, f"_{part}")(family, vocabulary, workers)
            finally:
                for worker in workers.values():
                    worker.close()

    def _worker(self, peer: Peer, family: str, vocabulary: Vocabulary) -> Worker:
        worker = Worker(peer, self._options.vllm)
        try:
            self._opened[peer.title] = worker.ask(
                "open", family=family, model_tag=MODEL_TAGS.get(family), **vocabulary.job()
            )
        except WorkerError:
            worker.close()
            raise
        self._results["versions"][peer.engine] = worker.versions
        return worker

    def _compile(self, family: str, vocabulary: Vocabulary, workers: dict[Peer, Worker]) -> None:
        for schemas, count, made in self._tool_sets():
            asked = [made(seed) for seed in range(self._options.rounds + 1)]
            about = {"schemas": schemas, "tools": count}
            self._ask("compile", family, workers, about, lambda requested: {"requests": requested}, vocabulary, asked)

    def _tool_sets(self) -> Iterator[tuple[str, int, Callable[[int], Cells]]]:
        for count in self._options.tools:
            yield "made up", count, functools.partial(tools.tools, count)
        # A library refuses the whole request if it refuses one tool.
        result = [tool for tool in tools.walle(self._options.data) if coverage.accepted(tool["function"]["parameters"])]
        if result := result[: max(self._options.tools)]:
            yield "walle", len(result), functools.partial(tools.renamed, result)

    def _masks(self, family: str, vocabulary: Vocabulary, workers: dict[Peer, Worker]) -> None:
        asked = tools.tools(20, seed=1)
        answer = tools.answer(family, vocabulary.tokenizer, asked)
        about = {"kinds": answer.kinds, "tokens": len(answer.ids)}

        def job(requested: Cells) -> dict[str, Any]:
            return {"request": requested[0], "ids": answer.ids, "passes": self._options.passes}

        self._ask("masks", family, workers, about, job, vocabulary, [asked])

    def _memory(self, family: str, vocabulary: Vocabulary, workers: dict[Peer, Worker]) -> None:
        asked = [tools.tools(20, seed) for seed in range(1000, 1001 + self._options.grammars)]
        ids = [tools.answer(family, vocabulary.tokenizer, one, calls=1).ids for one in asked]

        def job(requested: Cells) -> dict[str, Any]:
            return {"requests": requested, "ids": ids, "sequences": 16}

        self._ask("memory", family, workers, {}, job, vocabulary, asked)
        for cell in self._results["memory"]:
            cell["vocabulary"] = self._opened[cell["who"]]

    def _loop(self, family: str, vocabulary: Vocabulary, workers: dict[Peer, Worker]) -> None:
        most, count = max(self._options.tools), self._options.requests
        sets = {
            "other tools": [tools.tools(most, seed) for seed in range(100, 100 + count)],
            "the same": [tools.tools(most, 99)] * count,
        }
        # Only Dovetail is measured without threads.
        here = {peer: worker for peer, worker in workers.items() if peer.engine == "dovetail"}
        for way, asking in (("served", workers), ("in the loop", here)):
            for which, asked in sets.items():

                def job(requested: Cells, way: str = way) -> dict[str, Any]:
                    return {"requests": requested, "way": way}

                self._ask("loop", family, asking, {"way": f"{way}, {which}"}, job, vocabulary, asked)

    def _ask(
        self,
        part: str,
        family: str,
        workers: dict[Peer, Worker],
        about: dict[str, Any],
        job: Callable[[Cells], dict[str, Any]],
        vocabulary: Vocabulary,
        asked: list[Cells],
    ) -> None:
        """A cell from each peer: its answer to `job`, with one request for each set of tools in `requested`."""
        for peer, worker in workers.items():
            self._say(f"{family}: {part}, {peer.title}")
            cell: dict[str, Any] = {"family": family, "who": peer.title, **about}
            try:
                cell |= worker.ask(part, **job([_request(family, vocabulary, peer, one) for one in asked]))
            except WorkerError as error:
                cell["error"] = str(error)
            self._results[part].append(cell)

    def _say(self, what: str) -> None:
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
        self._progress.add_task(what, total=None)


def _request(family: str, vocabulary: Vocabulary, peer: Peer, asked: Cells) -> dict[str, Any]:
    """A request: the tools, with Dovetail's grammar for a peer that uses it."""
    request: dict[str, Any] = {"tools": asked}
    if peer.engine == "vllm" and peer.variant != "own":
        grammar = dovetail.format(family).grammar(asked, thinking=False)
        assert grammar is not None
        control = vocabulary.tokenizer.control
        request |= {"tag": json.dumps(grammar.structural_tag(control)), "lark": grammar.lark(control)}
    return request


def _coverage(options: argparse.Namespace, results: dict[str, Any], progress: Progress) -> None:
    bar = progress.add_task("what is kept of a schema", total=len(KEYWORDS))
    results["keywords"] = []
    for case in KEYWORDS:
        results["keywords"].append({"keyword": case.title, **coverage.keyword(case)})
        progress.advance(bar)
    if (options.data / "schemas" / "walle").is_dir():
        bar = progress.add_task("walle's schemas", total=None)
        results["collection"] = coverage.collection(options.data, options.values, lambda: progress.advance(bar))


if __name__ == "__main__":
    main()
