"""The first requests of a fresh server: `python -m benchmarks.speculation.newcomer [--noisy]`.

Four ways take turns on the demo pair, each time with a new engine over the same weights: no drafts, K = 3 in every step
(`--gate off`), gated without a cost file, and gated with one from an hour with two busy neighbours. Each serves ten
requests, one after the other, prompts included. Figures are tokens per second in relation to no drafts in the same
turn: the median of all turns and its interval.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import dovetail
from benchmarks import tables
from benchmarks.engine.cases import DEMO, Case, demo_target
from benchmarks.speculation.neighbour import interval, neighbours
from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.engine.loading import Models, load_models
from dovetail.engine.settings import EngineSettings
from dovetail.tokens import Tokenizer

#: The goal of both gated ways.
GOAL = 1.5
_WAYS = ("no drafts", "K = 3", "gated", "gated, a busy hour's file")
_REQUESTS, _TOKENS = 10, 60


class Newcomer:
    """Fresh engines on one pair of models, and the requests that each of them serves."""

    def __init__(self, folder: Path) -> None:
        target = demo_target(folder)
        self._tokenizer: Tokenizer = dovetail.tokenizer(target)
        self._models: Models = load_models(target, DEMO / "drafter", self._tokenizer, _settings("K = 3", None))
        self._prompts = Case("", target, None, 0, None).prompts(_REQUESTS, 0, _TOKENS)

    def serve(self, way: str, costs: Path | None = None) -> float:
        """Tokens per second of the first requests."""
        core = LLMCore(self._models, self._tokenizer, _settings(way, costs))
        made, started = 0, time.perf_counter()
        for number, prompt in enumerate(self._prompts):
            drafts = 0 if way == "no drafts" else None
            sampling = Sampling(temperature=0.0)
            core.add(str(number), Completion(tuple(prompt), _TOKENS, sampling=sampling, draft_tokens=drafts))
            while core.live:
                for _, outcome in core.step():
                    assert isinstance(outcome, TokenBatch)
                    made += len(outcome.ids)
        rate = made / (time.perf_counter() - started)
        if way == "gated, a file" and costs is not None:
            core.close()
        return rate

    def busy_hour(self, costs: Path) -> None:
        """Write a cost file as a server leaves it that ran beside two busy neighbours."""
        with neighbours(2):
            self.serve("gated, a file", costs)


def _settings(way: str, costs: Path | None) -> EngineSettings:
    return EngineSettings(
        draft_tokens=3,
        max_draft_tokens=8,
        gate="measured" if way.startswith("gated") else "off",
        cost_folder=costs,
        prefix_caching=False,
        threads=1,
    )


def measured(newcomer: Newcomer, turns: int) -> dict[str, list[float]]:
    """Tokens per second of each way in each turn."""
    rates: dict[str, list[float]] = {way: [] for way in _WAYS}
    with tempfile.TemporaryDirectory() as folder:
        newcomer.busy_hour(Path(folder))
        for turn in range(turns):
            for way in (*_WAYS[turn % len(_WAYS) :], *_WAYS[: turn % len(_WAYS)]):
                rates[way].append(newcomer.serve(way, Path(folder) if way.endswith("file") else None))
    return rates


def sheet(rates: dict[str, list[float]]) -> tables.Sheet:
    """One row for each way."""
    rows = []
    for way, own in rates.items():
        ratios = [rate / none for rate, none in zip(own, rates["no drafts"], strict=True)]
        low, high = interval(ratios)
        goal = "" if not way.startswith("gated") else "yes" if statistics.median(ratios) >= GOAL else "no"
        row = [way, f"{statistics.median(own):,.0f}", f"{statistics.median(ratios):.2f}x", f"{low:.2f} to {high:.2f}"]
        rows.append([*row, goal])
    return "the first ten requests", ["way", "tokens/s", "to none", "interval", "1.5x"], rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation.newcomer", description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--noisy", action="store_true", help="beside one busy neighbour")
    parser.add_argument("--checkpoints", type=Path, default=Path(".peers/engine"), help="folder for what is made here")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    options = parser.parse_args()
    torch.set_num_threads(1)
    newcomer = Newcomer(options.checkpoints)
    newcomer.serve("K = 3")
    with neighbours(int(options.noisy)):
        rates = measured(newcomer, options.turns)
    beside = "beside one busy neighbour" if options.noisy else "no neighbour of ours"
    tables.show([sheet(rates)], [f"{tables.machine()}; {beside}."], as_markdown=options.markdown, words=("interval",))


if __name__ == "__main__":
    main()
