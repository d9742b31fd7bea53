"""Writes a plan as `trtllm-serve` and its options file, for TensorRT-LLM 1.x with the PyTorch backend.

The names are from its documentation and tensorrt_llm/commands/serve.py. Its own parser runs only on a machine with a
GPU, so that no test asks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.plan.emit.command import Command, Remaining, variables
from dovetail.plan.layers import Setting
from dovetail.plan.options import OPTIONS

_DECODING = {"eagle3": "Eagle3", "mtp": "MTP", "draft_model": "DraftTarget", "dflash": "DFlash", "ngram": "NGram"}
_FILE = "trtllm.yaml"
# In place of Dovetail's gate: steps, and the share of accepted drafts below which drafting hardly ever pays.
_WINDOW, _THRESHOLD = 1000, 0.1
_PARSERS = {"--custom_tokenizer": "tokenizer", "--tool_parser": "calls", "--reasoning_parser": "reasoning"}


def command(plan: Mapping[str, Setting[Any]]) -> Command:
    """The command `trtllm-serve` for the plan, with a YAML file for settings that have no flag."""
    remaining = Remaining(plan, "TensorRT-LLM")
    start = ("trtllm-serve", remaining.take("target"))
    file: dict[str, Any] = {}
    _speculation(remaining, file)
    _file_settings(remaining, file)
    arguments: list[tuple[str, ...]] = []
    for option in OPTIONS:
        flag = option.engine_names.get("trtllm", "")
        if option.name == "format":
            arguments += remaining.take_parsers("trtllm_parsers", _PARSERS)
        elif flag.startswith("--"):
            arguments += remaining.take_flag(option.name, flag)
    settings = variables(remaining, {}, "VLLM_")
    remaining.leave_out(
        "gpu_memory_utilization", "--free_gpu_memory_fraction is the KV cache's share of what the weights leave"
    )
    remaining.leave_out("data_parallel_size", "enable_attention_dp divides the tensor-parallel GPUs instead")
    files = {_FILE: msgspec.yaml.encode(file).decode()} if file else {}
    if file:
        arguments.append(("--config", _FILE))
    return Command(start=start, arguments=tuple(arguments), variables=settings, files=files, notes=remaining.finish())


def _file_settings(remaining: Remaining, file: dict[str, Any]) -> None:
    """Add the settings that are keys of the file."""
    dtype = remaining.take("dtype")
    if dtype is not None and dtype != "auto":
        file["dtype"] = dtype
    cache: dict[str, Any] = {}
    if remaining.peek("kv_cache_dtype") in ("auto", "fp8", "fp8_e4m3", "nvfp4"):
        cache["dtype"] = remaining.take("kv_cache_dtype").removesuffix("_e4m3")
    remaining.leave_out("kv_cache_dtype", "TensorRT-LLM has auto, fp8 and nvfp4")
    if remaining.peek("prefix_caching") is not None:
        cache["enable_block_reuse"] = remaining.take("prefix_caching")
    if cache:
        file["kv_cache_config"] = cache
    if remaining.peek("async_scheduling") is not None:
        file["disable_overlap_scheduler"] = not remaining.take("async_scheduling")


def _speculation(remaining: Remaining, file: dict[str, Any]) -> None:
    if not remaining.can_draft(_DECODING, ("drafter", "method", "draft_tokens")):
        return
    config = {
        "decoding_type": _DECODING[remaining.take("method")],
        "max_draft_len": remaining.take("draft_tokens"),
        "speculative_model": remaining.take("drafter"),
    }
    if remaining.take("gate") == "measured":
        config |= {"acceptance_rate_window_size": _WINDOW, "acceptance_rate_threshold": _THRESHOLD}
        remaining.notes.append(
            f"acceptance_rate_threshold: TensorRT-LLM stops drafting for good if less than {_THRESHOLD:g} of the "
            f"drafts of {_WINDOW} steps are accepted. Dovetail's gate, in vLLM and the embedded engine, is better "
            "where traffic changes: it drafts again when drafts are accepted again"
        )
    config["max_concurrency"] = remaining.take("speculate_up_to_batch")
    file["speculative_config"] = {name: value for name, value in config.items() if value is not None}
