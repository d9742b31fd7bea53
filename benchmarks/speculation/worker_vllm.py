"""vLLM with Dovetail's scheduler, a worker of `inside_vllm`: one engine, on which all ways of drafting take turns."""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import jobs

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))


class Worker:
    """`gated` is the gate that vLLM starts with. A fixed number of drafts is a gate that allows so many."""

    def __init__(self, job: dict[str, Any]) -> None:
        from vllm import LLM

        drafting: dict[str, Any] = {}
        if job["drafter"] is not None:
            drafting = {
                "speculative_config": {
                    "method": "eagle3",
                    "model": job["drafter"],
                    "num_speculative_tokens": job["draft_tokens"],
                },
                "scheduler_cls": "dovetail.plugins.vllm.GatedScheduler",
                "additional_config": {"dovetail": {"gate": "measured"}},
            }
        self._engine = LLM(
            job["target"],
            dtype="float32",
            max_model_len=job["context"],
            max_num_seqs=job["max_batch"],
            enforce_eager=True,
            enable_prefix_caching=False,
            **drafting,
        ).llm_engine
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._gated = None
        if drafting:
            self._gated = self._scheduler.gate.gate
            self._scheduler._report.step = lambda last: None  # its counters cannot go back when gates take turns
        self._numbers = itertools.count()

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        """Tokens per second of decoding the prompts, all at once, and their ids."""
        from vllm import SamplingParams

        if self._gated is not None:
            from dovetail.gate import Gate, Limits

            drafts = job["drafts"]
            self._scheduler.gate.gate = self._gated if drafts is None else Gate(None, Limits(), drafts)
        sampling = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"], ignore_eos=True, detokenize=False)
        places: dict[str, int] = {}
        for place, prompt in enumerate(job["prompts"]):
            name = str(next(self._numbers))
            places[name] = place
            self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        ids: list[list[int]] = [[] for _ in places]
        first: float | None = None
        before = 0
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                ids[places[output.request_id.partition("-")[0]]] = list(output.outputs[0].token_ids)
            if first is None and all(ids):
                first, before = time.perf_counter(), sum(map(len, ids))
        assert first is not None
        return {"rate": (sum(map(len, ids)) - before) / (time.perf_counter() - first), "ids": ids}


def _load() -> tuple[dict[str, Any], Any]:
    import vllm

    worker = Worker(json.loads(sys.stdin.readline()))
    return {"versions": {"vllm": vllm.__version__}}, worker.answer


if __name__ == "__main__":
    jobs.serve(_load)
