"""A plan as `python -m sglang.launch_server`, for SGLang 0.5 (checked against 0.5.23's own argument parser)."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.plan.emit.command import Account, Command, Shell, shown, variables
from dovetail.plan.layers import Setting
from dovetail.plan.options import GATE, OPTIONS

_ALGORITHMS = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "EAGLE",  # the target's own layers; NEXTN is another name for it
    "draft_model": "STANDALONE",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
    "domino": "DFLASH",  # which knows a Domino projector by its config (speculative/dflash_utils.py)
    "ngram": "NGRAM",
}
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
#: Those of them that a drafter can have.
_DRAFT_ATTENTION = ("flashinfer", "fa3", "fa4", "triton")
_CACHE = {"fp8": "fp8_e4m3"}
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
    """`python -m sglang.launch_server` for the plan."""
    account = Account(plan, "SGLang")
    start = ("python", "-m", "sglang.launch_server")
    arguments: list[tuple[str, ...]] = [("--model-path", account.take("target"))]
    arguments += _speculation(account)
    for option in OPTIONS:
        special = _SPECIAL.get(option.name)
        word = option.engine_names.get("sglang", "")
        if special is not None:
            if account.peek(option.name) is not None:
                arguments += special(account)
        elif word.startswith("--") and option.name not in _DRAFTING:
            value = account.take(option.name)
            if value is True:
                arguments.append((word,))
            elif value is not None and value is not False:  # its switches are off unless named
                arguments.append((word, shown(value)))
    settings = variables(account, {}, "VLLM_")
    account.leave("grammar_backend", "Dovetail's grammars go to SGLang as structural tags, for its xgrammar")
    account.leave("gpu_memory_utilization", "SGLang's --mem-fraction-static counts weights and KV cache alone")
    return Command(start=start, arguments=tuple(arguments), variables=settings, notes=account.close())


def _speculation(account: Account) -> list[tuple[str, ...]]:
    if not account.drafts(_ALGORITHMS, _DRAFTING):
        return []
    arguments: list[tuple[str, ...]] = [("--speculative-algorithm", _ALGORITHMS[account.take("method")])]
    drafter = account.take("drafter")
    if drafter is not None:
        arguments.append(("--speculative-draft-model-path", drafter))
    tokens = account.take("draft_tokens")
    if tokens is not None:
        # A chain of K drafts, or as many branches of them; the token that the target adds is counted with them.
        branches = account.take("draft_top_k") or 1
        arguments += [
            ("--speculative-num-steps", str(tokens)),
            ("--speculative-eagle-topk", str(branches)),
            ("--speculative-num-draft-tokens", str(tokens * branches + 1)),
        ]
    if account.take("draft_sampling") == "probabilistic":
        arguments.append(("--speculative-use-rejection-sampling",))
    arguments += _attention(account, "draft_attention_backend", "--speculative-draft-attention-backend")
    arguments += _cache_type(
        account, "draft_kv_cache_dtype", "--speculative-draft-kv-cache-dtype", ("float16", "nvfp4")
    )
    account.leave("draft_tensor_parallel_size", "SGLang divides a drafter like its target")
    for name, without in GATE.items():
        account.leave(name, f"SGLang {without}")
    return arguments


def _attention(account: Account, name: str, flag: str) -> list[tuple[str, ...]]:
    backend = _ATTENTION.get(account.peek(name))
    if backend is not None and (name == "attention_backend" or backend in _DRAFT_ATTENTION):
        account.take(name)
        return [(flag, backend)]
    account.leave(name, "SGLang has no attention kernels of that name (FLASH_ATTN is fa3 on Hopper, fa4 on Blackwell)")
    return []


def _language(account: Account) -> list[tuple[str, ...]]:
    parsers = account.take_parsers("sglang_parsers")
    if parsers is None:
        return []
    flags = (("--tool-call-parser", parsers.calls), ("--reasoning-parser", parsers.reasoning))
    return [(flag, word) for flag, word in flags if word is not None]


def _cache_type(account: Account, name: str, flag: str, unknown: tuple[str, ...]) -> list[tuple[str, ...]]:
    cache = account.peek(name)
    if cache is None or cache in unknown:
        account.leave(name, f"SGLang's {flag} has no such choice")
        return []
    account.take(name)
    return [(flag, _CACHE.get(cache, cache))]


def _chunks(account: Account) -> list[tuple[str, ...]]:
    chunked, most = account.take("chunked_prefill"), account.take("max_batched_tokens")
    if chunked is False:
        return [("--chunked-prefill-size", "-1"), *([] if most is None else [("--max-prefill-tokens", str(most))])]
    return [] if most is None else [("--chunked-prefill-size", str(most))]


def _switched_off(name: str, flag: str) -> Callable[[Account], list[tuple[str, ...]]]:
    """For what SGLang does unless told not to."""
    return lambda account: [] if account.take(name) else [(flag,)]


def _images(account: Account) -> list[tuple[str, ...]]:
    return [("--mm-preprocess-cache-size-mb", str(round(account.take("mm_processor_cache_gb") * 1024)))]


def _encoder(account: Account) -> list[tuple[str, ...]]:
    return [("--mm-enable-dp-encoder",)] if account.take("mm_encoder_tp_mode") == "data" else []


def _key(account: Account) -> list[tuple[str, ...]]:
    account.notes.append("SGLang takes its key as a word of the command, which everybody on the machine can read")
    return [("--api-key", Shell(f'"$(cat {shlex.quote(account.take("api_key_file"))})"'))]


_SPECIAL: Mapping[str, Callable[[Account], list[tuple[str, ...]]]] = {
    "format": _language,
    "kv_cache_dtype": lambda account: _cache_type(account, "kv_cache_dtype", "--kv-cache-dtype", ("float16",)),
    "attention_backend": lambda account: _attention(account, "attention_backend", "--attention-backend"),
    "max_batched_tokens": _chunks,
    "chunked_prefill": _chunks,
    "async_scheduling": _switched_off("async_scheduling", "--disable-overlap-schedule"),
    "prefix_caching": _switched_off("prefix_caching", "--disable-radix-cache"),
    "mm_processor_cache_gb": _images,
    "mm_encoder_tp_mode": _encoder,
    "api_key_file": _key,
}
