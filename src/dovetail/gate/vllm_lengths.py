"""The list by which vLLM captures CUDA graphs for every number of drafts that a gate can choose."""

from __future__ import annotations

from typing import Any


def captured_lengths(tokens: int, batch: int, *, measured: bool) -> dict[str, Any]:
    """The member of --speculative-config with the list. `batch`: vLLM's --max-num-seqs, at least the list's length.

    `measured`: whether the gate chooses every number up to `tokens`, or only none and `tokens`.

    The list maps ranges of batch sizes to lengths. The gated scheduler overrules that choice, but vLLM captures a
    length's graphs for all batches up to the largest of its range. So each shorter length gets one batch size, at the
    end.
    """
    shorter = list(range(tokens - 1, -1, -1)) if measured else [0]
    whole = batch - len(shorter)
    singles = [[size, size, length] for size, length in enumerate(shorter, whole + 1)]
    return {"num_speculative_tokens_per_batch_size": [[1, whole, tokens], *singles]}
