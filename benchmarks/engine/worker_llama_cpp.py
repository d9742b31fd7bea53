"""llama.cpp's own `llama-batched-bench` as a worker, with weights and cache in float32. It tells no ids, and how long
prompts and all further tokens took."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from benchmarks.engine.measure import Log, serve


class LlamaCpp:
    settings = "batched-bench"

    def __init__(self, job: dict[str, Any]) -> None:
        threads = str(job["threads"])
        options = "-fa off -ctk f32 -ctv f32 -ngl 0 --output-format jsonl".split()
        self._command = [job["program"], "-m", job["gguf"], "-t", threads, "-tb", threads, *options]

    def run(self, prompts: list[list[int]], max_tokens: int, log: Log) -> list[list[int]]:
        count, length = len(prompts), len(prompts[0])
        sizes = ["-npl", str(count), "-npp", str(length), "-ntg", str(max_tokens)]
        room = ["-c", str(count * (length + max_tokens)), "-b", "2048"]
        done = subprocess.run([*self._command, *sizes, *room], capture_output=True, text=True, check=False)
        line = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
        if line is None:
            raise ValueError(f"it ends with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:200]}")
        told = json.loads(line)
        # It makes every token in a step of its own, and tells how long all of them took.
        step = told["t_tg"] / max_tokens
        log.lines += [(told["t_pp"] + number * step, [number] * count) for number in range(max_tokens + 1)]
        return [[-1] * max_tokens for _ in prompts]

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("it tells nothing else")


def load(job: dict[str, Any]) -> tuple[dict[str, str], LlamaCpp]:
    """`serve` has the contract."""
    if job["gguf"] is None or job["dtype"] != "float32":
        raise ValueError("measured for a GGUF file in float32 alone")
    return {}, LlamaCpp(job)


if __name__ == "__main__":
    serve(load)
