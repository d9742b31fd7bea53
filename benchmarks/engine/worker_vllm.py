"""vLLM in one process as a worker: its engine's own steps, without its server, its tokenizer and its detokenizer."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.engine.measure import Log, serve


class Vllm:
    def __init__(self, job: dict[str, Any]) -> None:
        from vllm import LLM

        speculation = None
        if job["drafter"] is not None:
            speculation = {
                "method": job["method"],
                "model": job["drafter"],
                "num_speculative_tokens": job["draft_tokens"],
            }
        compiled = job["variant"] == "compiled"
        self._engine = LLM(
            job["target"],
            dtype=job["dtype"],
            max_model_len=job["context"],
            max_num_seqs=job["max_batch"],
            enforce_eager=not compiled,
            speculative_config=speculation,
        ).llm_engine
        self._numbers = itertools.count()
        self.settings = job["variant"] + (f", {job['method']}" if speculation else "")

    def run(self, prompts: list[list[int]], max_tokens: int, log: Log) -> list[list[int]]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        places: dict[str, int] = {}
        for place, prompt in enumerate(prompts):
            name = str(next(self._numbers))
            places[name] = place
            self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        ids: list[list[int]] = [[] for _ in prompts]
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                ids[places[output.request_id]] += output.outputs[0].token_ids
            log.note([len(answer) for answer in ids])
        return ids

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError(job["task"])


def load(job: dict[str, Any]) -> tuple[dict[str, str], Vllm]:
    """`serve` has the contract."""
    import torch
    import vllm

    return {"vllm": vllm.__version__, "torch": torch.__version__}, Vllm(job)


if __name__ == "__main__":
    serve(load)
