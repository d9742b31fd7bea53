"""Where the time of a decode step goes: `python -m benchmarks.engine.profile --case middle --context 16384`.

Torch's profiler records steps of the embedded engine, without a drafter. Each row is an operator with the shapes of its
inputs (n: a context of more than 8,192), its calls in a step, its own time and its share of the step. What no operator
accounts for is Python's. The step is timed without the profiler too, because the profiler takes time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

import dovetail
from benchmarks import tables
from benchmarks.engine.cases import Case, cases
from benchmarks.memory import bandwidth
from dovetail.completion import Completion, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings

_WARM = 4
_LONG = 8192


def main() -> None:
    """Profile and print."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        (case,) = cases([options.case], options.checkpoints or Path(folder), 0, options.context)
        core = _decoding(case, options)
        step = statistics.median(_timed(core) for _ in range(options.steps))
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            for _ in range(options.steps):
                core.step()
    seconds, calls = _by_shape(profiler.key_averages(group_by_input_shape=True), options.context)
    measured = sum(seconds.values()) / options.steps
    rows = [
        [
            operator,
            shapes,
            f"{calls[operator, shapes] / options.steps:.0f}",
            f"{spent / options.steps * 1e3:.2f}",
            f"{spent / options.steps / measured:.0%}",
        ]
        for (operator, shapes), spent in seconds.most_common(options.rows)
    ]
    title = f"{case.title}, {options.dtype}, batch {options.batch}, context {options.context}"
    notes = [
        f"A step takes {step * 1e3:.2f} ms (median of {options.steps}); its operators take {measured * 1e3:.2f} ms"
        " under the profiler.",
        f"Memory reads {bandwidth() / 1e9:.1f} GB/s by {options.threads} thread(s). {tables.machine()}",
    ]
    words = ("operator", "shapes")
    tables.show([(title, [*words, "calls", "ms", "share"], rows)], notes, as_markdown=options.markdown, words=words)


def _by_shape(averages: Iterable[Any], context: int) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Seconds and calls by operator and shapes. The size of a long context, another in each step, is n."""
    seconds, calls = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    sizes = range(context, context + 100) if context > _LONG else ()
    for each in averages:
        shapes = (["n" if size in sizes else str(size) for size in shape] for shape in each.input_shapes)
        key = each.key, " ".join("x".join(shape) for shape in shapes if shape)
        seconds[key] += each.self_cpu_time_total / 1e6
        calls[key] += each.count
    return seconds, calls


def _decoding(case: Case, options: argparse.Namespace) -> LLMCore:
    """An engine that has computed its prompts and decodes."""
    int8 = options.dtype == "int8"
    tokens = _WARM + 2 * options.steps + 8
    prompts = case.prompts(options.batch, 0, 64)
    settings = EngineSettings(
        draft_tokens=0,
        max_batch=options.batch,
        context=max(map(len, prompts)) + tokens,
        dtype="float32" if int8 else options.dtype,
        quantization="int8" if int8 else None,
        threads=options.threads,
        gate="off",
    )
    core = LLMCore.load(case.target, None, dovetail.tokenizer(case.target), settings)
    for number, prompt in enumerate(prompts):
        core.add(str(number), Completion(tuple(prompt), tokens, sampling=Sampling(temperature=0.0)))
    started: set[str] = set()
    while len(started) < options.batch:
        started.update(number for number, _ in core.step())
    for _ in range(_WARM):
        core.step()
    return core


def _timed(core: LLMCore) -> float:
    """Seconds of one step."""
    before = time.perf_counter()
    core.step()
    return time.perf_counter() - before


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.profile", description=__doc__)
    parser.add_argument("--case", choices=("demo", "llama", "middle"), default="llama")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "int8"), default="float32")
    parser.add_argument("--batch", type=int, default=1, help="sequences at once")
    parser.add_argument("--context", type=int, default=64, help="tokens of a prompt, except to demo")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed, and as many that are profiled")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--checkpoints", type=Path, help="folder that keeps the model for the next run")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
