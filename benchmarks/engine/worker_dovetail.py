"""The embedded engine as a worker; with the speed of the machine's memory for as many threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import dovetail
from benchmarks.engine.measure import Log, serve
from benchmarks.memory import bandwidth
from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings

_METHODS = {"eagle3": "EAGLE-3", "draft_model": "a smaller model"}


class Dovetail:
    def __init__(self, job: dict[str, Any]) -> None:
        drafter = None if job["drafter"] is None else Path(job["drafter"])
        int8 = job["dtype"] == "int8"
        self._core = LLMCore.load(
            Path(job["target"]),
            drafter,
            dovetail.tokenizer(job["target"]),
            EngineSettings(
                draft_tokens=job["draft_tokens"],
                max_batch=job["max_batch"],
                context=job["context"],
                dtype="float32" if int8 else job["dtype"],
                quantization="int8" if int8 else None,
                threads=job["threads"],
                gate="measured" if job["variant"] == "gated" else "off",
            ),
        )
        self.settings = "" if drafter is None else _METHODS[job["method"]]

    def run(self, prompts: list[list[int]], max_tokens: int, log: Log) -> list[list[int]]:
        ids: list[list[int]] = [[] for _ in prompts]
        for number, prompt in enumerate(prompts):
            self._core.add(str(number), Completion(tuple(prompt), max_tokens, sampling=Sampling(temperature=0.0)))
        while self._core.live:
            for number, outcome in self._core.step():
                if not isinstance(outcome, TokenBatch):
                    raise outcome
                ids[int(number)] += outcome.ids
            log.note([len(answer) for answer in ids])
        return ids

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        return {"bandwidth": bandwidth()}


def load(job: dict[str, Any]) -> tuple[dict[str, str], Dovetail]:
    """`serve` has the contract."""
    return {"dovetail": dovetail.__version__, "torch": torch.__version__}, Dovetail(job)


if __name__ == "__main__":
    serve(load)
