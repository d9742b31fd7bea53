"""The gate inside vLLM on CPU: `python -m benchmarks.speculation.inside_vllm --vllm FOLDER/bin/python`.

vLLM with the demo pair and `GatedScheduler`, with the demo's own drafter and with one that is always wrong (its head is
upside down), and vLLM without a drafter, each in a process of its own. Fixed numbers of drafts and the gate take turns
in one engine; vLLM without a drafter answers the same prompts in the same turn. Figures are tokens per second of
decoding in relation to K = 3: the median of all turns and its interval. The first turn warms up and teaches the gate,
and is not counted. All answers of a turn must be the same.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from benchmarks import tables
from benchmarks.engine.cases import DEMO, Case, demo_target
from benchmarks.engine.workers import vllm_variables
from benchmarks.speculation.neighbour import interval
from benchmarks.worker_process import WorkerProcess

_DRAFTS, _CONTEXT = 3, 1024
_WAYS: dict[str, int | None] = {"K = 0": 0, "K = 1": 1, "K = 3": _DRAFTS, "gated": None}
_NONE = "no drafter"
_BASE = "K = 3"

Rates = dict[str, list[float]]


def wrong_drafter(folder: Path) -> Path:
    """The demo's drafter with its head upside down, so that its drafts are accepted by chance alone."""
    made = folder / "wrong-drafter"
    shutil.copytree(DEMO / "drafter", made)
    weights = load_file(made / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"].flip(0).contiguous()
    save_file(weights, made / "model.safetensors", {"format": "pt"})
    return made


class Engines:
    """vLLM without a drafter and with each of `drafters`, by name, all on one target."""

    def __init__(self, python: Path, folder: Path, drafters: dict[str, Path], batch: int, context: int) -> None:
        self.target = demo_target(folder)
        own: dict[str, Path | None] = {_NONE: None, **drafters}
        variables = vllm_variables(python, 1, folder, eager=True)
        self._workers = {name: WorkerProcess(python, "benchmarks.speculation.worker_vllm", variables) for name in own}
        for name, worker in self._workers.items():
            sizes = {"context": context, "max_batch": batch, "draft_tokens": _DRAFTS}
            job = {"target": str(self.target), "drafter": None if own[name] is None else str(own[name])}
            print(f"loading vLLM: {name}", file=sys.stderr, flush=True)
            worker.send(job | sizes)

    def ask(self, name: str, job: dict[str, Any]) -> dict[str, Any]:
        return self._workers[name].send(job)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()


def measured(engines: Engines, drafter: str, batch: int, turns: int, tokens: int) -> Rates:
    """Tokens per second of each way in each turn but the first."""
    case, rates = Case("", engines.target, None, 0, None), {way: list[float]() for way in (_NONE, *_WAYS)}
    for turn in range(turns + 1):
        job: dict[str, Any] = {"prompts": case.prompts(batch, turn, tokens), "max_tokens": tokens}
        answers = {_NONE: engines.ask(_NONE, job)}
        for way in [*_WAYS][turn % len(_WAYS) :] + [*_WAYS][: turn % len(_WAYS)]:
            answers[way] = engines.ask(drafter, job | {"drafts": _WAYS[way]})
        assert all(answer["ids"] == answers[_NONE]["ids"] for answer in answers.values())
        for way, answer in answers.items():
            rates[way] += [answer["rate"]] * (turn > 0)
        print(f"{drafter}, batch {batch}: turn {turn} of {turns}", file=sys.stderr, flush=True)
    return rates


def rows(title: str, batch: int, rates: Rates) -> list[tables.Row]:
    """One row for each way."""
    found = []
    for way, own in rates.items():
        ratios = [rate / base for rate, base in zip(own, rates[_BASE], strict=True)]
        low, high = interval(ratios)
        share = [f"{statistics.median(ratios):.2f}x", f"{low:.2f} to {high:.2f}"]
        found.append([title, str(batch), way, f"{statistics.median(own):,.0f}", *share])
    return found


def main() -> None:
    """Measure and print, each batch when it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation.inside_vllm", description=__doc__)
    parser.add_argument("--vllm", type=Path, required=True, metavar="PYTHON", help="of an environment with vLLM on CPU")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="sequences at once")
    parser.add_argument("--tokens", type=int, default=60, help="new ones of a sequence in a turn")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    options = parser.parse_args()
    headings = ["drafter", "batch", "way", "tokens/s", "to K = 3", "interval"]
    with tempfile.TemporaryDirectory() as made:
        drafters = {"the demo's": DEMO / "drafter", "always wrong": wrong_drafter(Path(made))}
        engines = Engines(options.vllm, Path(made), drafters, max(options.batches), _CONTEXT + options.tokens)
        try:
            for name, batch in itertools.product(drafters, options.batches):
                rates = measured(engines, name, batch, options.turns, options.tokens)
                sheet = ("the gate inside vLLM", headings, rows(name, batch, rates))
                tables.show([sheet], [], as_markdown=options.markdown, words=("drafter", "way", "interval"))
        finally:
            engines.close()
    print(f"{tables.machine()}; vLLM on CPU, float32, eager, one thread.")


if __name__ == "__main__":
    main()
