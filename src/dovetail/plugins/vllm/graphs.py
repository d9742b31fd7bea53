"""Which numbers of drafts have CUDA graphs inside vLLM, and a list that makes vLLM capture the graphs of more.

vLLM captures a decode step by tokens per sequence: one token and `num_speculative_tokens` drafts, and each number in
`num_speculative_tokens_per_batch_size`. A step with another number, or with sequences that differ, has no graph, which
takes several times as long. The gated scheduler overrules which number belongs to which batch, so the list only says
what is captured. Nothing here imports vLLM.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dovetail.plugins.vllm import gate_settings

_log = logging.getLogger("vllm.dovetail")

#: The scheduler, as --scheduler-cls names it.
SCHEDULER = "dovetail.plugins.vllm.GatedScheduler"


def chosen_numbers(most: int, batch: int, *, measured: bool) -> list[int]:
    """The numbers of drafts that get graphs, for a gate of up to `most` drafts and `batch` sequences.

    None and `most`, which limits need. A measured gate gets those between that make a power of two with the sampled
    token: their graphs are padded to the same sizes, and vLLM looks only at graphs of the next size for a batch.
    """
    between = [k for k in (1, 3, 7, 15) if k < most] if measured else []
    numbers = [0, *between, most]
    return numbers if batch >= len(numbers) else [0, most] if batch > 1 else [most]


def as_list(numbers: Sequence[int], batch: int) -> list[list[int]]:
    """`num_speculative_tokens_per_batch_size` for these numbers, from the fewest.

    vLLM captures a number for all batches up to the largest that it belongs to. So each shorter one gets one batch
    size, at the end.
    """
    *shorter, most = numbers
    whole = batch - len(shorter)
    return [[1, whole, most], *([size, size, k] for size, k in enumerate(reversed(shorter), whole + 1))]


def add_list(config: Any) -> None:
    """Give vLLM's `config` the list, if it has the gated scheduler, can use a list and has none."""
    speculation = config.speculative_config
    if speculation is None or speculation.num_speculative_tokens_per_batch_size is not None or not _is_gated(config):
        return
    parallel, settings = config.parallel_config, gate_settings.read(config.additional_config)
    # The older model runner gives up whole graphs if it gets a list, and data-parallel ranks may not have one.
    if not _has_graphs(config) or not config.use_v2_model_runner or parallel.data_parallel_size > 1:
        return
    batch = config.scheduler_config.max_num_seqs
    measured = settings.gate == "measured" and parallel.pipeline_parallel_size == 1
    numbers = chosen_numbers(speculation.num_speculative_tokens, batch, measured=measured)
    if len(numbers) > 1 and (measured or settings.limits != gate_settings.NO_LIMITS):
        speculation.num_speculative_tokens_per_batch_size = as_list(numbers, batch)
        _log.info("gate: vLLM captures CUDA graphs for %s drafts", ", ".join(map(str, numbers)))


def available(config: Any, most: int, lookup: Sequence[int] | None) -> Callable[[int], Collection[int]] | None:
    """For a number of sequences, the numbers of drafts that have a graph. None: every step is as good without one.

    `lookup`: the number of drafts for each batch size from 0 (unused) to max_num_seqs, by vLLM's list; None without a
    list. Where vLLM has graphs of parts of a step too, a step without a whole one uses those.
    """
    if not _has_graphs(config) or config.compilation_config.cudagraph_mode.has_piecewise_cudagraphs():
        return None
    batch, compilation = config.scheduler_config.max_num_seqs, config.compilation_config
    numbers = sorted({*lookup[1:]}) if lookup is not None else [most]
    sizes, largest = compilation.cudagraph_capture_sizes or (), compilation.max_cudagraph_capture_size or 0
    # Tokens of a graph -> its numbers of drafts. As vLLM does, each size is rounded up to whole sequences.
    graphs: dict[int, set[int]] = {}
    for size in sizes:
        for k in numbers:
            tokens = -(-size // (k + 1)) * (k + 1)
            if tokens <= min(largest, batch * (most + 1)) and tokens // (k + 1) <= batch:
                graphs.setdefault(tokens, set()).add(k)
    ends = sorted(graphs)

    def numbers_for(sequences: int) -> Collection[int]:
        found = []
        for k in numbers:
            place = bisect_left(ends, sequences * (k + 1))
            if place < len(ends) and k in graphs[ends[place]]:
                found.append(k)
        return found or numbers  # beyond the largest graph all are equal

    return numbers_for


def makes_all_drafts(config: Any) -> bool:
    """Whether the drafter has to make the full number in every step: `ngram_gpu` fails on the older model runner if it
    is asked for fewer (vLLM 0.32 and 0.33, v1/spec_decode/ngram_proposer_gpu.py).
    """
    speculation = config.speculative_config
    return speculation is not None and speculation.method == "ngram_gpu" and not config.use_v2_model_runner


def _has_graphs(config: Any) -> bool:
    return bool(config.compilation_config.cudagraph_mode.has_full_cudagraphs())


def _is_gated(config: Any) -> bool:
    scheduler = config.scheduler_config.scheduler_cls
    if isinstance(scheduler, type):
        scheduler = f"{scheduler.__module__.removesuffix('.scheduler')}.{scheduler.__qualname__}"
    return bool(scheduler == SCHEDULER)
