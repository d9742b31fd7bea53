"""A plan as `trtllm-serve` and its file of options, for TensorRT-LLM 1.x with the PyTorch backend.

Names from its documentation and tensorrt_llm/commands/serve.py; its own parser cannot be asked without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.plan.emit.command import Account, Command, shown, variables
from dovetail.plan.layers import Setting
from dovetail.plan.options import OPTIONS

_DECODING = {"eagle3": "Eagle3", "mtp": "MTP", "draft_model": "DraftTarget", "dflash": "DFlash", "ngram": "NGram"}
_FILE = "trtllm.yaml"


def command(plan: Mapping[str, Setting[Any]]) -> Command:
    """`trtllm-serve` for the plan, with a YAML file for what has no flag."""
    account = Account(plan, "TensorRT-LLM")
    start = ("trtllm-serve", account.take("target"))
    file: dict[str, Any] = {}
    _speculation(account, file)
    _own_way(account, file)
    arguments: list[tuple[str, ...]] = []
    for option in OPTIONS:
        word = option.engine_names.get("trtllm", "")
        if option.name == "format":
            arguments += _language(account)
        elif word.startswith("--"):
            value = account.take(option.name)
            if value is True:
                arguments.append((word,))
            elif value is not None and value is not False:
                arguments.append((word, shown(value)))
    settings = variables(account, {}, "VLLM_")
    account.leave(
        "gpu_memory_utilization", "its --free_gpu_memory_fraction counts what weights leave, for the KV cache alone"
    )
    account.leave("data_parallel_size", "its enable_attention_dp divides the GPUs of tensor parallelism instead")
    files = {_FILE: msgspec.yaml.encode(file).decode()} if file else {}
    if file:
        arguments.append(("--config", _FILE))
    return Command(start=start, arguments=tuple(arguments), variables=settings, files=files, notes=account.close())


def _own_way(account: Account, file: dict[str, Any]) -> None:
    """What is a key of the file."""
    dtype = account.take("dtype")
    if dtype is not None and dtype != "auto":
        file["dtype"] = dtype
    cache: dict[str, Any] = {}
    if account.peek("kv_cache_dtype") in ("auto", "fp8", "fp8_e4m3", "nvfp4"):
        cache["dtype"] = account.take("kv_cache_dtype").removesuffix("_e4m3")
    account.leave("kv_cache_dtype", "TensorRT-LLM knows auto, fp8 and nvfp4")
    if account.peek("prefix_caching") is not None:
        cache["enable_block_reuse"] = account.take("prefix_caching")
    if cache:
        file["kv_cache_config"] = cache
    if account.peek("async_scheduling") is not None:
        file["disable_overlap_scheduler"] = not account.take("async_scheduling")


def _speculation(account: Account, file: dict[str, Any]) -> None:
    if not account.drafts(_DECODING, ("drafter", "method", "draft_tokens")):
        return
    config = {
        "decoding_type": _DECODING[account.take("method")],
        "max_draft_len": account.take("draft_tokens"),
        "speculative_model": account.take("drafter"),
    }
    file["speculative_config"] = {name: value for name, value in config.items() if value is not None}


def _language(account: Account) -> list[tuple[str, ...]]:
    parsers = account.take_parsers("trtllm_parsers")
    if parsers is None:
        return []
    flags = (
        ("--custom_tokenizer", parsers.tokenizer),
        ("--tool_parser", parsers.calls),
        ("--reasoning_parser", parsers.reasoning),
    )
    return [(flag, word) for flag, word in flags if word is not None]
