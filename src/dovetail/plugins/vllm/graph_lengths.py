"""Checks that vLLM captures CUDA graphs for each number of drafts that the gate can choose.

vLLM captures the graphs of a decode step by tokens per request: one token and `num_speculative_tokens` drafts, and each
number in `num_speculative_tokens_per_batch_size`. A step with another number runs without a graph. Nothing here imports
vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dovetail.gate import Limits
from dovetail.gate.vllm_lengths import captured_lengths
from dovetail.plugins.vllm.gate_settings import GateSettings


def advice(vllm_config: Any, settings: GateSettings, most: int, captured: Sequence[int] | None) -> str | None:
    """What to add to vLLM's command, so that each number of drafts has graphs; None if there is nothing to add.

    `most`: vLLM's num_speculative_tokens. `captured`: the number of drafts for each batch size from 0 (unused) to
    max_num_seqs, by vLLM's list; None without a list.
    """
    batch, parallel = vllm_config.scheduler_config.max_num_seqs, vllm_config.parallel_config
    measured = settings.gate == "measured" and parallel.pipeline_parallel_size == 1
    needed = {*range(most + 1)} if measured else {0, most} if settings.limits != Limits() else set()
    missing = sorted(needed - {*(captured[1:] if captured else (most,))})
    if (
        not missing
        or not vllm_config.compilation_config.cudagraph_mode.has_full_cudagraphs()
        # The older model runner gives up whole graphs if it gets a list. Data-parallel ranks get none from vLLM.
        or not vllm_config.use_v2_model_runner
        or parallel.data_parallel_size > 1
    ):
        return None
    enough = max(batch, len(needed))
    more = "" if enough == batch else f", and --max-num-seqs {enough}"
    member = json.dumps(captured_lengths(most, enough, measured=measured))[1:-1]
    return (
        f"gate: steps with {', '.join(map(str, missing))} drafts have no CUDA graph and take several times as long: "
        f"add {member} to --speculative-config{more}"
    )
