"""Tokens per second of a pair without drafts, with always as many, and gated; and the machine's own limit beside it.

One run, one process: the three take turns on the same prompts, and medians are printed. Decode speed counts the steps
in which no prompt was computed; the time to a whole answer counts all of them. The prompts are held-out conversations
as they come; the answers are unconstrained and greedy.

The limit is what memory allows: a step reads the weights it uses once, at the speed at which the engine's threads read
a large array. Cached keys and values are not counted, they are small here. Weights that stay in the processor's caches
can beat it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from benchmarks.memory import bandwidth
from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings
from dovetail.tokens import tokenizer as load_tokenizer
from training.corpus import sample
from training.data import FORMAT, HELD_OUT

#: The most that the gate chooses from.
MOST = 8


@dataclass(frozen=True)
class Row:
    """One batch size; by way of drafting, "off" first. Speeds are new tokens per second over all sequences, with the
    ratios to off as medians of what turns say; lengths are tokens per step and sequence of a fixed number of drafts."""

    batch: int
    decode: dict[str, float]
    decode_ratio: dict[str, float]
    whole: dict[str, float]
    whole_ratio: dict[str, float]
    acceptance_length: float
    limit_off: float | None
    limit_on: float | None


@dataclass(frozen=True)
class _Run:
    tokens: int
    seconds: float
    decode_tokens: int
    decode_seconds: float
    acceptance_length: float


def measure(
    checkpoints: Path, *, batches: Sequence[int], draft_tokens: int, answers: int, repeats: int, max_tokens: int = 192
) -> tuple[list[Row], dict[str, Any]]:
    """Rows by batch size, and what the limits were computed from."""
    tokenizer = load_tokenizer(checkpoints / "target")
    prompts = [
        tuple(FORMAT.render(s.messages[: s.turn], s.tools, thinking=s.thinking).ids(tokenizer))
        for s in map(sample, range(HELD_OUT, HELD_OUT + answers))
    ]
    pair = (checkpoints / "target", checkpoints / "drafter", tokenizer)
    # Without prefix caching, since the same prompts come again and again.
    sizes: Any = {"draft_tokens": draft_tokens, "max_batch": max(batches), "prefix_caching": False}
    core = LLMCore.load(*pair, EngineSettings(**sizes))
    gated = LLMCore.load(*pair, EngineSettings(**sizes, max_draft_tokens=MOST, gate="measured"))
    fixed = f"K={draft_tokens}"
    ways = {"off": (core, 0), fixed: (core, None), "gated": (gated, None)}
    rate = bandwidth()
    config = json.loads((checkpoints / "target" / "config.json").read_text())
    share = config["num_experts_per_tok"] / config["n_routed_experts"]
    one = _weight_bytes(checkpoints / "target", share)
    window = _weight_bytes(checkpoints / "target", min(1.0, share * (draft_tokens + 1)))
    drafter = _weight_bytes(checkpoints / "drafter", 1.0)
    rows = []
    for batch in batches:
        runs: dict[str, list[_Run]] = {name: [] for name in ways}
        for engine in (core, gated):
            _run(engine, prompts, batch, None, max_tokens)  # warm-up, in which the gate learns
        for _ in range(repeats):
            for name, (engine, drafts) in ways.items():
                runs[name].append(_run(engine, prompts, batch, drafts, max_tokens))
        rows.append(_row(batch, runs, fixed, rate, one, window + draft_tokens * drafter))
    machine = {"bandwidth_gb_s": rate / 1e9, "threads": torch.get_num_threads()}
    return rows, machine | {"one_mb": one / 1e6, "window_mb": window / 1e6, "drafter_mb": drafter / 1e6}


def _row(batch: int, runs: dict[str, list[_Run]], fixed: str, rate: float, bytes_off: float, bytes_on: float) -> Row:
    def speeds(speed: Callable[[_Run], float]) -> tuple[dict[str, float], dict[str, float]]:
        medians = {name: statistics.median(map(speed, own)) for name, own in runs.items()}
        ratios = {
            name: statistics.median(speed(run) / speed(off) for run, off in zip(own, runs["off"], strict=True))
            for name, own in runs.items()
        }
        return medians, ratios

    length = statistics.median(run.acceptance_length for run in runs[fixed])
    return Row(
        batch,
        *speeds(lambda run: run.decode_tokens / run.decode_seconds),
        *speeds(lambda run: run.tokens / run.seconds),
        acceptance_length=length,
        # With more than one sequence other things than bytes decide.
        limit_off=rate / bytes_off if batch == 1 else None,
        limit_on=length * rate / bytes_on if batch == 1 else None,
    )


def _run(
    core: LLMCore, prompts: Sequence[tuple[int, ...]], batch: int, draft_tokens: int | None, max_tokens: int
) -> _Run:
    """Answer every prompt, `batch` at a time, the next one starting when one ends."""
    waiting = list(enumerate(prompts))
    running: set[str] = set()
    tokens = decode_tokens = drafting = accepted = 0
    decode_seconds = 0.0
    started = time.perf_counter()
    while waiting or running:
        prefill = False
        while waiting and len(running) < batch:
            number, prompt = waiting.pop(0)
            core.add(
                str(number),
                Completion(prompt, max_tokens, sampling=Sampling(temperature=0.0), draft_tokens=draft_tokens),
            )
            running.add(str(number))
            prefill = True
        before = time.perf_counter()
        outcomes = core.step()
        elapsed = time.perf_counter() - before
        new = 0
        for request_id, outcome in outcomes:
            if not isinstance(outcome, TokenBatch):
                raise outcome
            new += len(outcome.ids)
            drafting += outcome.drafted > 0
            accepted += outcome.accepted
            if outcome.finish is not None:
                running.discard(request_id)
        tokens += new
        if not prefill:
            decode_tokens += new
            decode_seconds += elapsed
    return _Run(tokens, time.perf_counter() - started, decode_tokens, decode_seconds, 1 + accepted / max(drafting, 1))


def _weight_bytes(folder: Path, expert_share: float) -> float:
    """Bytes of a checkpoint's floating-point weights as the engine holds them (float32), minus the embedding table."""
    total = 0.0
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            if "embed_tokens" not in name and name not in ("d2t", "t2d"):
                shape = tensors.get_slice(name).get_shape()
                total += 4 * torch.Size(shape).numel() * (expert_share if ".experts." in name else 1)
    return total


def as_json(rows: Sequence[Row], machine: dict[str, Any]) -> dict[str, Any]:
    return {"rows": [asdict(row) for row in rows], **machine}
