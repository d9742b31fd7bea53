"""Writes a plan as `python -m sglang.launch_server` for SGLang 0.5, checked against the parser of 0.5.23."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.plan.emit.command import Command, Remaining, ShellText, variables
from dovetail.plan.layers import Setting
from dovetail.plan.options import GATE, OPTIONS

_ALGORITHMS = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "EAGLE",  # with the target's own layers; SGLang also calls that NEXTN
    "draft_model": "STANDALONE",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
    "domino": "DFLASH",  # detects a Domino projector by its config (speculative/dflash_utils.py)
    "ngram": "NGRAM",
}
#: Algorithms whose number of drafts SGLang can adapt, with one branch.
_ADAPTIVE = ("EAGLE", "EAGLE3")
#: vLLM's names of attention kernels -> SGLang's.
_ATTENTION = {
    "TRITON_MLA": "triton",
    "TRITON_ATTN": "triton",
    "FLASH_ATTN_MLA": "fa3",
    "FLASHINFER": "flashinfer",
    "FLASHINFER_MLA": "trtllm_mla",
    "FLASHMLA": "flashmla",
    "TOKENSPEED_MLA": "cutedsl_mla",
}
#: Kernels that a drafter can use.
_DRAFT_ATTENTION = ("flashinfer", "fa3", "fa4", "triton")
_CACHE = {"fp8": "fp8_e4m3"}
_PARSERS = {"--tool-call-parser": "calls", "--reasoning-parser": "reasoning"}
_DRAFTING = (
    "drafter",
    "method",
    "draft_tokens",
    "draft_sampling",
    "draft_top_k",
    "draft_attention_backend",
    "draft_kv_cache_dtype",
    "draft_tensor_parallel_size",
    "local_argmax",
    *GATE,
)


def command(plan: Mapping[str, Setting[Any]]) -> Command:
    """The command `python -m sglang.launch_server` for the plan."""
    remaining = Remaining(plan, "SGLang")
    start = ("python", "-m", "sglang.launch_server")
    arguments: list[tuple[str, ...]] = [("--model-path", remaining.take("target"))]
    arguments += _speculation(remaining)
    for option in OPTIONS:
        writer = _WRITERS.get(option.name)
        flag = option.engine_names.get("sglang", "")
        if writer is not None:
            if remaining.peek(option.name) is not None:
                arguments += writer(remaining)
        elif flag.startswith("--") and option.name not in _DRAFTING:
            arguments += remaining.take_flag(option.name, flag)
    settings = variables(remaining, {}, "VLLM_")
    remaining.leave_out("grammar_backend", "Dovetail sends SGLang structural tags, which its xgrammar enforces")
    remaining.leave_out("gpu_memory_utilization", "SGLang's --mem-fraction-static covers only weights and KV cache")
    return Command(start=start, arguments=tuple(arguments), variables=settings, notes=remaining.finish())


def _speculation(remaining: Remaining) -> list[tuple[str, ...]]:
    if not remaining.can_draft(_ALGORITHMS, _DRAFTING):
        return []
    arguments: list[tuple[str, ...]] = [("--speculative-algorithm", _ALGORITHMS[remaining.take("method")])]
    arguments += _adaptive(remaining, arguments[0][1])
    drafter = remaining.take("drafter")
    if drafter is not None:
        arguments.append(("--speculative-draft-model-path", drafter))
    tokens = remaining.take("draft_tokens")
    if tokens is not None:
        # A chain of K drafts, or several branches of K drafts; SGLang counts the target's own token too.
        branches = remaining.take("draft_top_k") or 1
        arguments += [
            ("--speculative-num-steps", str(tokens)),
            ("--speculative-eagle-topk", str(branches)),
            ("--speculative-num-draft-tokens", str(tokens * branches + 1)),
        ]
    if remaining.take("draft_sampling") == "probabilistic":
        arguments.append(("--speculative-use-rejection-sampling",))
    arguments += _attention(remaining, "draft_attention_backend", "--speculative-draft-attention-backend")
    arguments += _cache_type(
        remaining, "draft_kv_cache_dtype", "--speculative-draft-kv-cache-dtype", ("float16", "fp8_ds_mla", "nvfp4")
    )
    remaining.leave_out("draft_tensor_parallel_size", "SGLang divides the drafter as it divides the target")
    for name, without in GATE.items():
        remaining.leave_out(name, f"SGLang {without}")
    return arguments


def _adaptive(remaining: Remaining, algorithm: str) -> list[tuple[str, ...]]:
    """SGLang's own choice of draft_tokens, in place of Dovetail's gate."""
    if remaining.peek("gate") == "off" or algorithm not in _ADAPTIVE or (remaining.peek("draft_top_k") or 1) > 1:
        return []
    remaining.take("gate")
    remaining.notes.append(
        "--speculative-adaptive: SGLang chooses the number of drafts by acceptance and batch. Dovetail's gate, in "
        "vLLM and the embedded engine, also measures what steps take and drafts nothing where that is faster, so it is "
        "better where drafts are seldom accepted; --gate off drafts draft_tokens at every step"
    )
    return [("--speculative-adaptive",)]


def _attention(remaining: Remaining, name: str, flag: str) -> list[tuple[str, ...]]:
    backend = _ATTENTION.get(remaining.peek(name))
    if backend is not None and (name == "attention_backend" or backend in _DRAFT_ATTENTION):
        remaining.take(name)
        return [(flag, backend)]
    remaining.leave_out(name, "SGLang has no kernels of that name (FLASH_ATTN is fa3 on Hopper, fa4 on Blackwell)")
    return []


def _cache_type(remaining: Remaining, name: str, flag: str, unknown: tuple[str, ...]) -> list[tuple[str, ...]]:
    cache = remaining.peek(name)
    if cache is None or cache in unknown:
        remaining.leave_out(name, f"SGLang's {flag} does not have it")
        return []
    remaining.take(name)
    return [(flag, _CACHE.get(cache, cache))]


def _prefill(remaining: Remaining) -> list[tuple[str, ...]]:
    chunked, most = remaining.take("chunked_prefill"), remaining.take("max_batched_tokens")
    if chunked is False:
        return [("--chunked-prefill-size", "-1"), *([] if most is None else [("--max-prefill-tokens", str(most))])]
    return [] if most is None else [("--chunked-prefill-size", str(most))]


def _switched_off(name: str, flag: str) -> Callable[[Remaining], list[tuple[str, ...]]]:
    """Writes a feature that SGLang has switched on by default."""
    return lambda remaining: [] if remaining.take(name) else [(flag,)]


def _images(remaining: Remaining) -> list[tuple[str, ...]]:
    return [("--mm-preprocess-cache-size-mb", str(round(remaining.take("mm_processor_cache_gb") * 1024)))]


def _encoder(remaining: Remaining) -> list[tuple[str, ...]]:
    return [("--mm-enable-dp-encoder",)] if remaining.take("mm_encoder_tp_mode") == "data" else []


def _key(remaining: Remaining) -> list[tuple[str, ...]]:
    remaining.notes.append("SGLang takes its key as a word of the command, which every user of the machine can read")
    return [("--api-key", ShellText(f'"$(cat {shlex.quote(remaining.take("api_key_file"))})"'))]


_WRITERS: Mapping[str, Callable[[Remaining], list[tuple[str, ...]]]] = {
    "format": lambda remaining: remaining.take_parsers("sglang_parsers", _PARSERS),
    "kv_cache_dtype": lambda remaining: _cache_type(
        remaining, "kv_cache_dtype", "--kv-cache-dtype", ("float16", "fp8_ds_mla")
    ),
    "attention_backend": lambda remaining: _attention(remaining, "attention_backend", "--attention-backend"),
    "max_batched_tokens": _prefill,
    "chunked_prefill": _prefill,
    "async_scheduling": _switched_off("async_scheduling", "--disable-overlap-schedule"),
    "prefix_caching": _switched_off("prefix_caching", "--disable-radix-cache"),
    "mm_processor_cache_gb": _images,
    "mm_encoder_tp_mode": _encoder,
    "api_key_file": _key,
}
