"""Where the time of a decode step goes: `python -m benchmarks.engine.profile --case middle --context 16384`.

Torch's profiler records steps of the embedded engine, without a drafter. Each row is an operator with the shapes of its
inputs, its calls in a step, its own time and its share of the step. What no operator accounts for is Python's. The step
is timed without the profiler too, because the profiler takes time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

import dovetail
from benchmarks import tables
from benchmarks.engine.cases import Case, cases
from benchmarks.memory import bandwidth
from dovetail.completion import Completion, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings

_WARM = 4


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
    averages = sorted(profiler.key_averages(group_by_input_shape=True), key=lambda each: -each.self_cpu_time_total)
    measured = sum(each.self_cpu_time_total for each in averages) / options.steps / 1e6
    rows = [
        [
            each.key,
            " ".join("x".join(map(str, shape)) for shape in each.input_shapes if shape),
            f"{each.count / options.steps:.0f}",
            f"{each.self_cpu_time_total / options.steps / 1e3:.2f}",
            f"{each.self_cpu_time_total / options.steps / 1e6 / measured:.0%}",
        ]
        for each in averages[: options.rows]
    ]
    title = f"{case.title}, {options.dtype}, batch {options.batch}, context {options.context}"
    notes = [
        f"A step takes {step * 1e3:.2f} ms (median of {options.steps}); its operators take {measured * 1e3:.2f} ms"
        " under the profiler.",
        f"Memory reads {bandwidth() / 1e9:.1f} GB/s by {options.threads} thread(s). {tables.machine()}",
    ]
    words = ("operator", "shapes")
    tables.show([(title, [*words, "calls", "ms", "share"], rows)], notes, as_markdown=options.markdown, words=words)


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
