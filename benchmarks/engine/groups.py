"""The engines that are measured beside each other: loaded, asked in turns, compared, one row for each."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import tables
from benchmarks.engine import figures
from benchmarks.engine.cases import Case, Reads, cases
from benchmarks.engine.workers import PEERS, Peer, Worker, pythons
from benchmarks.worker_process import NotInstalled, WorkerError

_SETTLE = 0.5  # seconds that the threads of the engine before may go on spinning


def measured(options: argparse.Namespace, errors: Console) -> dict[str, Any]:
    """Rows for all that `options` ask for (see `python -m benchmarks.engine --help`); progress goes to `errors`."""
    folder = options.peers / "engine"
    peers = [peer for peer in PEERS if peer.title in options.only]
    groups = [
        (case, dtype, threads)
        for case in cases(options.cases, folder, options.draft_tokens, options.prompt, options.gguf)
        for dtype in options.dtypes
        for threads in options.threads
    ]
    cells: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    rates: dict[int, float] = {}
    with tables.progress(errors) as progress:
        bar = progress.add_task("", total=len(groups))
        for case, dtype, threads in groups:
            able = [
                peer
                for peer in peers
                if (dtype != "int8" or peer.engine == "dovetail")
                and (peer.variant != "gated" or case.drafter is not None)
                and (peer.engine != "llama_cpp" or (case.gguf is not None and dtype == "float32"))
            ]
            group = _Group(case, dtype, threads, options)
            label = f"{case.title}, {dtype}, {threads} thread{'s' * (threads > 1)}: "
            try:
                for peer in able:
                    progress.update(bar, description=f"{label}loading {peer.title}")
                    group.start(peer, folder)
                for peer, batch, turn in group.jobs():
                    progress.update(bar, description=f"{label}{peer.title}, batch {batch}, turn {turn + 1}")
                    group.run(peer, batch, turn)
                cells += group.cells()
                versions |= group.versions
                rates[threads] = max(rates.get(threads, 0.0), group.rate)
            finally:
                group.close()
            progress.advance(bar)
    for cell in cells:
        if "bytes_per_second" in cell:
            cell["share"] = cell["bytes_per_second"] / rates[cell["threads"]] if rates[cell["threads"]] else None
    return {"versions": versions, "bandwidth": rates, "cells": cells}


class _Group:
    """The engines that take turns: one model, one type, one number of threads."""

    def __init__(self, case: Case, dtype: str, threads: int, options: argparse.Namespace) -> None:
        self._case, self._dtype, self._threads = case, dtype, threads
        self._options = options
        self._reads = Reads(case, dtype)
        self._workers: dict[Peer, Worker] = {}
        self._peers: list[Peer] = []
        self._runs: dict[tuple[Peer, int], list[figures.Run]] = {}
        self._answers: dict[tuple[int, int], dict[Peer, list[list[int]]]] = {}
        self._failed: dict[tuple[Peer, int], str] = {}
        self.versions: dict[str, str] = {}
        self.rate = 0.0

    def start(self, peer: Peer, folder: Path) -> None:
        """Load the model, or remember why that cannot be."""
        case, options = self._case, self._options
        job = {
            "target": str(case.target.resolve()),
            "drafter": None if case.drafter is None else str(case.drafter.resolve()),
            "method": case.method,
            "draft_tokens": case.draft_tokens,
            "dtype": self._dtype,
            "threads": self._threads,
            "max_batch": max(options.batches),
            "context": 1024,
            "gguf": None if case.gguf is None else str(case.gguf.resolve()),
            "program": str(options.llama_cpp.resolve()),
        }
        self._peers.append(peer)
        try:
            worker = Worker(peer, job, pythons(options.vllm, options.llama_cpp), folder.resolve())
        except WorkerError as error:
            reason = str(error) if isinstance(error, NotInstalled) else f"does not load: {error}"
            self._failed |= {(peer, batch): reason for batch in options.batches}
            return
        self._workers[peer] = worker
        self.versions |= {name: version for name, version in worker.versions.items() if name != "python"}

    def jobs(self) -> Iterator[tuple[Peer, int, int]]:
        """Engine, batch and turn, in the order of the run. Turn -1 warms up and is not counted."""
        for turn, batch in itertools.product(range(-1, self._options.turns), self._options.batches):
            for peer in self._workers:
                if (peer, batch) not in self._failed:
                    yield peer, batch, turn

    def run(self, peer: Peer, batch: int, turn: int) -> None:
        """Have one engine answer one set of prompts."""
        tokens = self._options.tokens
        prompts = self._case.prompts(batch, turn + 1, tokens)
        time.sleep(_SETTLE)
        try:
            answer = self._workers[peer].ask({"task": "run", "prompts": prompts, "max_tokens": tokens})
            if short := [len(ids) for ids in answer["ids"] if len(ids) != tokens]:
                raise WorkerError(f"an answer of {short[0]} tokens instead of {tokens}")
            if turn < 0:
                if peer.engine == "dovetail":
                    self.rate = max(self.rate, self._workers[peer].ask({"task": "bandwidth"})["bandwidth"])
                return
        except WorkerError as error:
            self._failed[peer, batch] = str(error)
            return
        self._runs.setdefault((peer, batch), []).append(figures.run(answer["log"], prompts, tokens, self._reads))
        self._answers.setdefault((batch, turn), {})[peer] = answer["ids"]

    def cells(self) -> list[dict[str, Any]]:
        """The group's rows."""
        cells = []
        for batch, peer in itertools.product(self._options.batches, self._peers):
            worker = self._workers.get(peer)
            cell: dict[str, Any] = {
                "case": self._case.title,
                "dtype": self._dtype,
                "threads": self._threads,
                "batch": batch,
                "engine": peer.title,
                "settings": "" if worker is None else worker.settings,
            }
            if (peer, batch) in self._failed:
                cells.append(cell | {"error": self._failed[peer, batch]})
                continue
            cell |= asdict(figures.median(self._runs[peer, batch]))
            if self._dtype == "float32" and peer.engine not in ("dovetail", "llama_cpp"):
                cell["same"] = self._compared(peer, batch)
            cells.append(cell)
        return cells

    def _compared(self, peer: Peer, batch: int) -> str:
        """Whether the ids are ours, in every turn; if not, where they first differ and by how much in logits."""
        equal = of = 0
        difference = ""
        for turn in range(self._options.turns):
            answers = self._answers[batch, turn]
            ours = next((ids for one, ids in answers.items() if one.engine == "dovetail"), None)
            if ours is None:
                return "–"
            theirs = answers[peer]
            equal += sum(one == other for one, other in zip(ours, theirs, strict=True))
            of += batch
            first = figures.first_difference(ours, theirs)
            if first is not None and not difference:
                number, place = first
                prompt = [*self._case.prompts(batch, turn + 1, self._options.tokens)[number], *ours[number][:place]]
                difference = f"; first at {place}: {self._gap(prompt, ours[number][place], theirs[number][place])}"
        return "equal" if equal == of else f"{equal} of {of}{difference}"

    def _gap(self, prompt: list[int], ours: int, theirs: int) -> str:
        judge = next((worker for peer, worker in self._workers.items() if peer.engine == "transformers"), None)
        if judge is None:
            return f"{ours} here, {theirs} there"
        answer = judge.ask({"task": "logits", "prompt": prompt, "tokens": [ours, theirs]})
        one, other = answer["logits"]
        ranks = " and ".join(str(rank + 1) for rank in answer["ranks"])
        return f"logits {abs(one - other):.1e} apart, ranks {ranks}"

    def close(self) -> None:
        """End every worker."""
        for worker in self._workers.values():
            worker.close()
