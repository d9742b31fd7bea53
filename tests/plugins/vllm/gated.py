"""Run by vLLM's Python: jobs as JSON on standard input; the ids and steps of each on standard output."""

from __future__ import annotations

import json
import os
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from vllm import LLM, SamplingParams

from dovetail.gate import Decision


class Watched:
    """A scheduler's steps: of each request that decoded, its name, its tokens before, its drafts, how many stood."""

    def __init__(self, scheduler: Any, forced: dict[str, Any] | None) -> None:
        self.steps: list[list[tuple[int, int, list[int], int]]] = []
        self._update, self._requests = scheduler.update_from_output, scheduler.requests
        scheduler.update_from_output = self.update_from_output
        if forced is not None:
            self._forced, self._number, self._decide = forced, 0, scheduler.gate.gate.decide
            scheduler.gate.gate.decide = self.decide

    def update_from_output(self, output: Any, done: Any) -> Any:
        step = []
        for name in output.num_scheduled_tokens:
            sampled = done.sampled_token_ids[done.req_id_to_index[name]]
            if len(sampled) and name in self._requests:
                drafts = list(output.scheduled_spec_decode_tokens.get(name, ()))
                step.append((_place(name), self._requests[name].num_tokens, drafts, len(sampled) - 1))
        self.steps.append(step)
        return self._update(output, done)

    def decide(self, tracks: Any, contexts: Any, caps: Any) -> Decision:
        """Closed in the steps that a job names, whatever the gate says."""
        self._number += 1
        first, last = self._forced["closed"]
        most = 0 if first <= self._number < last else max(caps, default=0)
        decision = self._decide(tracks, contexts, [min(cap, most) for cap in caps])
        return decision._replace(allowed=tuple(min(cap, most) for cap in caps))


def _place(name: str) -> int:
    return int(name.partition("-")[0])  # vLLM puts something random behind


def run(job: dict[str, Any]) -> dict[str, Any]:
    more = {}
    if "gate" in job:
        more = {
            "scheduler_cls": "dovetail.plugins.vllm.GatedScheduler",
            "additional_config": {"dovetail": job["gate"]},
        }
    engine = LLM(
        job["target"],
        dtype="float32",
        max_model_len=job.get("context", 256),
        max_num_seqs=job.get("max_batch", 4),
        enforce_eager=True,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        speculative_config=job.get("speculation"),
        **more,
    ).llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    watched = Watched(scheduler, job.get("forced"))
    for place, prompt in enumerate(job["prompts"]):
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=job["max_tokens"][place],
            ignore_eos=job.get("ignore_eos", False),
            detokenize=False,
            extra_args=job.get("extra"),
        )
        engine.add_request(str(place), {"prompt_token_ids": prompt}, sampling)
    ids: dict[int, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                ids[_place(output.request_id)] = list(output.outputs[0].token_ids)
    gate = getattr(scheduler, "gate", None)
    counts = {} if gate is None else gate.gate.counts().decisions
    kind = type(scheduler).__mro__[0].__name__
    engine.engine_core.shutdown()
    return {"ids": [ids[i] for i in sorted(ids)], "steps": watched.steps, "counts": counts, "scheduler": kind}


def apart(job: dict[str, Any]) -> Any:
    """`run` in a process of its own: where numba was loaded (for n-grams), vLLM on CPU cannot make another engine."""
    processes = get_context("fork")
    ours, its = processes.Pipe(duplex=False)
    process = processes.Process(target=_answer, args=(job, its), daemon=True)
    process.start()
    its.close()
    try:
        return ours.recv()
    finally:
        process.kill()  # whatever its threads still wait for, nobody waits for them
        process.join()


def _answer(job: dict[str, Any], answers: Connection) -> None:
    try:
        answers.send(run(job))
    except Exception as error:
        if "refused" not in job:
            raise
        answers.send({"refused": f"{type(error).__name__}: {error}"})


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints
    json.dump([apart(job) for job in json.load(sys.stdin)], answers)


if __name__ == "__main__":
    main()
