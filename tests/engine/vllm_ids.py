"""Run by vLLM's Python: jobs as JSON on standard input, the greedy ids of each on standard output."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def answer(job: dict[str, Any]) -> list[list[int]]:
    """The ids that continue each prompt."""
    from vllm import LLM, SamplingParams

    speculation = None
    if job["drafter"] is not None:
        speculation = {"method": "eagle3", "model": job["drafter"], "num_speculative_tokens": job["draft_tokens"]}
    llm = LLM(
        job["target"],
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        enforce_eager=True,
        skip_tokenizer_init=True,
        speculative_config=speculation,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"], detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in job["prompts"]], sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints
    json.dump([answer(job) for job in json.load(sys.stdin)], answers)
    answers.flush()
    os._exit(0)  # whatever its threads still wait for, nobody waits for them


if __name__ == "__main__":
    main()
