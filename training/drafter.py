"""`python -m training.drafter CHECKPOINT --data FILE`: an EAGLE-3 drafter for any checkpoint of the embedded engine.

The target answers the requests of FILE (a chat request on each line, or a folder of recordings), a drafter learns from
its hidden states, and requests that it did not learn from show what it is worth. The same command goes on with a run
that was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dovetail.checkpoints.gguf.folder import gguf_folder
from dovetail.checkpoints.gguf.header import is_gguf
from dovetail.cli.own_prompts import own_prompts
from dovetail.completion import Sampling
from dovetail.engine.settings import EngineSettings
from dovetail.engine.weights import TargetCheckpoint, inspect_target, load_tensors
from dovetail.errors import ContextExceeded, DovetailError, InvalidRequest
from training import answers, export, features
from training.answers import Answered, Chat
from training.model import Drafter, DrafterShape
from training.train_drafter import fit, most_frequent, state_of
from training.train_target import Schedule

#: The most requests that are read, and one of how many is held out.
_MOST, _HELD_OUT = 100_000, 20
#: The most held-out requests that are measured with, and the most new tokens of each.
_MEASURED, _MEASURED_TOKENS = 24, 128
#: Draft tokens in a step without the gate, and at most with it.
_DRAFT_TOKENS, _MOST_DRAFTS = 3, 7
#: Steps between two writes of what was learned.
_KEPT_EVERY = 50


def main() -> int:
    """Run the stages that are not done yet."""
    parser = argparse.ArgumentParser(prog="python -m training.drafter", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="the target: a folder or a GGUF file")
    parser.add_argument("--data", type=Path, required=True, help="chat requests: JSONL, or a folder of recordings")
    parser.add_argument("--out", type=Path, default=Path("drafter"), help="the folder of the run (default: drafter)")
    parser.add_argument("--minutes", type=float, default=30, help="time for learning (default 30)")
    parser.add_argument("--longest", type=int, default=1024, help="tokens of prompt and answer (default 1024)")
    parser.add_argument("--vocabulary", type=int, default=8192, help="tokens that it drafts from (default 8192)")
    parser.add_argument("--temperature", type=float, default=0.7, help="of the target's answers (default 0.7)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="torch's threads (default: all cores)")
    options = parser.parse_args()
    try:
        _run(options)
    except DovetailError as error:
        print(f"python -m training.drafter: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _run(options: argparse.Namespace) -> None:
    path: Path = options.checkpoint
    checkpoint = inspect_target(Path(gguf_folder(path)) if is_gguf(path) else path)
    requests = own_prompts(options.data, _MOST)
    if len(requests) < 2 * _HELD_OUT:
        raise InvalidRequest(f"{options.data} has {len(requests)} requests; a drafter needs at least {2 * _HELD_OUT}")
    random.Random(0).shuffle(requests)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    _same_run(out, options)
    held_out, learned = requests[::_HELD_OUT], [r for i, r in enumerate(requests) if i % _HELD_OUT]
    with _bar(f"{len(learned)} requests are answered", len(learned)) as progress:
        answered = answers.answer(
            checkpoint.path,
            learned,
            out / "answers.jsonl",
            longest=options.longest,
            temperature=options.temperature,
            progress=progress,
        )
    if too_long := sum(not each.prompt for each in answered):
        print(f"{too_long} prompts are left out, which have {options.longest} tokens or more (--longest)")
    answered = [each for each in answered if each.answer]
    if not answered:
        raise InvalidRequest(f"{options.data}: the target answers none of its requests")
    torch.set_num_threads(options.threads)
    if not (out / "drafter" / "model.safetensors").exists():
        _learn(checkpoint, answered, options)
    figures = _measure(checkpoint, out / "drafter", held_out, options.longest)
    (out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(_verdict(figures))
    print(f"dovetail serve {path} --drafter {out / 'drafter'}")


def _same_run(out: Path, options: argparse.Namespace) -> None:
    """Raises `InvalidRequest` if the folder has a run with other options, whose parts would not fit."""
    wanted = {name: str(value) for name, value in vars(options).items() if name not in ("out", "minutes", "threads")}
    file = out / "run.json"
    if file.exists() and (found := json.loads(file.read_text())) != wanted:
        differing = ", ".join(name for name in wanted if found.get(name) != wanted[name])
        raise InvalidRequest(f"{out} has a run with another {differing}: choose another --out, or delete it")
    file.write_text(json.dumps(wanted, indent=2) + "\n")


def shape_of(checkpoint: TargetCheckpoint, vocabulary: int) -> DrafterShape:
    """A drafter of one layer as wide as the target's, which reads a layer near its start, its middle and its end."""
    target, config = checkpoint.target, checkpoint.config
    return DrafterShape(
        target_hidden_size=target.hidden,
        hidden_size=target.hidden,
        intermediate_size=target.dense_width or 3 * target.hidden,
        num_attention_heads=max(target.hidden // 64, 1),
        num_key_value_heads=max(target.hidden // 64, 1),
        head_dim=64,
        draft_vocab_size=min(vocabulary, config.vocab_size),
        aux_layers=tuple(sorted({min(2, target.layers - 1), target.layers // 2, max(target.layers - 3, 0)})),
        rms_norm_eps=config.rms_norm_eps,
    )


def _learn(checkpoint: TargetCheckpoint, answered: Sequence[Answered], options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    out, config = options.out, checkpoint.config
    shape = shape_of(checkpoint, options.vocabulary)
    states = features.TargetStates(checkpoint, shape.aux_layers, options.longest)
    with _bar("hidden states of the target", len(answered)) as progress:
        features.compute(states, answered, out / "features", progress)
    drafter = Drafter(shape).train()
    vocabulary = most_frequent((each.answer for each in answered), shape.draft_vocab_size, config.vocab_size)
    head_of = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    head = load_tensors(checkpoint.tensors, [head_of])[head_of].float()[vocabulary]
    drafter.lm_head.weight.data.copy_(head)
    schedule = Schedule(drafter, options.minutes * 60, matrix_lr=0.01, vector_lr=1e-3)
    kept = out / "learning.pt"
    if kept.exists():
        state = torch.load(kept)
        drafter.load_state_dict(state["drafter"])
        schedule.load_state(state["schedule"])
    with _bar("the drafter learns", 1.0) as progress:

        def after_step(agreement: list[float]) -> None:
            progress(schedule.progress, " ".join(f"{share:.2f}" for share in agreement))
            if schedule.steps % _KEPT_EVERY == 0:
                torch.save({"drafter": drafter.state_dict(), "schedule": schedule.state()}, kept.with_suffix(".new"))
                os.replace(kept.with_suffix(".new"), kept)

        batches = features.batches(states.embeddings, answered, out / "features", 2048, schedule.steps)
        fit(drafter, head, batches, schedule, after_step)
    name = str(options.checkpoint)
    written = export.drafter_config(
        shape, config.vocab_size, config.max_position_embeddings, name, checkpoint.target.architecture
    )
    export.write(out / "drafter", written, state_of(drafter, vocabulary, config.vocab_size))
    shutil.rmtree(out / "features")
    kept.unlink(missing_ok=True)


def _measure(
    checkpoint: TargetCheckpoint, drafter: Path, requests: Sequence[dict[str, Any]], longest: int
) -> dict[str, Any]:
    """Greedy answers, one at a time, to requests that the drafter did not learn from: in turns without drafts, with a
    fixed number of them, and gated."""
    settings = EngineSettings(
        draft_tokens=_DRAFT_TOKENS, max_draft_tokens=_MOST_DRAFTS, gate="measured", context=longest
    )
    chat = Chat(checkpoint.path, drafter, settings)
    ways: dict[str, dict[str, Any]] = {
        "no drafts": {"draft_tokens": 0},
        f"{_DRAFT_TOKENS} drafts": {"draft_tokens": _DRAFT_TOKENS, "gated": False},
        "gated": {},
    }
    figures = {name: {"tokens": 0, "seconds": 0.0, "steps": 0, "drafted": 0, "accepted": 0} for name in ways}
    try:
        usable = [request for request in requests if _fits(chat, request)][:_MEASURED]
        with _bar("what it is worth", len(usable)) as progress:
            for number, request in enumerate(usable):
                for name, changes in ways.items():
                    each = chat.completion(request, Sampling(temperature=0.0))
                    most = min(each.max_tokens, _MEASURED_TOKENS)
                    started = time.perf_counter()
                    (steps,) = chat.run([msgspec.structs.replace(each, max_tokens=most, **changes)])
                    row = figures[name]
                    row["seconds"] += time.perf_counter() - started
                    row["tokens"] += sum(len(step.ids) for step in steps)
                    row["steps"] += len(steps)
                    row["drafted"] += sum((step.drafted or 0) - step.forced for step in steps)
                    row["accepted"] += sum(step.accepted for step in steps)
                progress(number + 1)
    finally:
        chat.close()
    return {"requests": len(usable), **figures}


def _fits(chat: Chat, request: dict[str, Any]) -> bool:
    try:
        chat.completion(request, Sampling(temperature=0.0))
    except ContextExceeded:
        return False
    return True


def _verdict(figures: dict[str, Any]) -> str:
    """What was measured, in a line for each way, and what the gate made of it."""
    speed = {name: row["tokens"] / row["seconds"] for name, row in figures.items() if name != "requests"}
    lines = []
    for name, rate in speed.items():
        row = figures[name]
        lines.append(
            f"{name:10}  {rate:6.1f} tokens/s, {rate / speed['no drafts']:.2f} times no drafts; "
            f"{row['tokens'] / max(row['steps'], 1):.2f} tokens a step, "
            f"{row['drafted'] / max(row['steps'], 1):.1f} of them drafted, "
            f"{row['accepted'] / max(row['drafted'], 1):.0%} of the drafts accepted"
        )
    drafts = figures["gated"]["drafted"] / max(figures["gated"]["steps"], 1)
    verdict = f"drafts {drafts:.1f} tokens a step" if drafts > 0.1 else "hardly drafts: this drafter does not pay here"
    return "\n".join([*lines, f"The gate {verdict} ({figures['requests']} requests that it did not learn from)."])


@contextmanager
def _bar(what: str, total: float) -> Iterator[Callable[..., None]]:
    """A progress bar; without a terminal, one line at the start."""
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    if not console.is_terminal:
        print(what, flush=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)


if __name__ == "__main__":
    sys.exit(main())
