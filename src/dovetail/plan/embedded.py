"""Checks a plan against the embedded engine: what the engine can run, and which values its settings may have.

Checkpoints are checked by the engine's own code, which needs no torch here, so that plan and engine agree.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.checkpoints.files import has_weights
from dovetail.checkpoints.methods import LOOKUPS, OF_EMBEDDED
from dovetail.checkpoints.tensor_files import cache_scales, read_headers
from dovetail.engine.compute import default_threads, kernels_here
from dovetail.engine.config import drafter_config, mtp_config, target_config
from dovetail.engine.parallel.shards import rank_parameters
from dovetail.engine.parallel.sizes import part
from dovetail.engine.settings import FP8, GROUP, packed_bytes, packs
from dovetail.errors import CheckpointError, PlanError
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.layers import Setting
from dovetail.plan.options import BY_NAME, GATE
from dovetail.plan.pairing import cannot_run
from dovetail.plan.parallel import OF_EMBEDDED as RANKS
from dovetail.plan.parallel import embedded_sizes, why_not_embedded

#: The method of its lookups. They draft as long as the matches agree, which other engines call suffix decoding.
LOOKUP = "suffix"
#: How many tokens its lookups draft by default: the K with which docs/decisions/0011 was measured.
LOOKUP_TOKENS = 5
DRAFT_TOKENS = 8  # the longest with which docs/decisions/0011 was measured
_CPU = "computes on the CPU: use --engine embedded if you want that"
_BACKENDS, _CACHES = ("auto", "matmul", "sdpa"), ("auto", "bfloat16", "fp8", "fp8_ds_mla")
_DRAFTER_SETTINGS = ("draft_sampling", "draft_kv_cache_dtype", "draft_attention_backend")
#: The values of settings that have more values on other engines.
VALUES: Mapping[str, tuple[str, ...]] = {
    "dtype": ("float32", "bfloat16"),
    "quantization": ("int8",),
    "kv_cache_dtype": _CACHES,
    "attention_backend": _BACKENDS,
    "draft_kv_cache_dtype": _CACHES,
    "draft_attention_backend": _BACKENDS,
}


def why_not(plan: Candidate) -> str | None:
    """Why the embedded engine cannot run `plan`, None if it can."""
    try:
        reason = _drafting(plan)
    except CheckpointError as error:
        return error.message
    if reason is not None:
        return reason
    reason = why_not_embedded(plan)
    if reason is not None:
        return reason
    for name, has in VALUES.items():
        if plan.value(name) not in (None, *has):
            # A wrong value of a setting with choices is another engine's value, not a typing error.
            near = () if BY_NAME[name].choices else difflib.get_close_matches(plan.value(name).lower(), has, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            return f"{plan.text(name)} and the embedded engine has {' or '.join(has)}{hint}"
    return _no_latents(plan) or _too_large(plan)


def _no_latents(plan: Candidate) -> str | None:
    """Why an FP8 cache, which stores latents, cannot be had."""
    models = {"kv_cache_dtype": plan.target, "draft_kv_cache_dtype": plan.drafter}
    for name, model in models.items():
        if plan.value(name) not in FP8 or model is None:
            continue
        attention = model.attention
        if attention is None or attention.kind != "mla":
            return f"{plan.text(name)}, which stores latents, and {model.path} has none (its attention is not MLA)"
        rank, rope = attention.kv_lora_rank or 0, attention.rope_dim or 0
        if plan.value(name) == "fp8_ds_mla" and not packs(rank, rope):
            return (
                f"{plan.text(name)}, which has a scale for every {GROUP} numbers of a latent, and {model.path} has a "
                f"kv_lora_rank of {rank} and a qk_rope_head_dim of {rope}: fp8 has one scale"
            )
    return None


def draft_cache(plan: Candidate) -> str:
    """The type of the drafter's cache: what is set, else the target's, but an FP8 cache only for latents."""
    own, inherited = plan.value("draft_kv_cache_dtype"), plan.value("kv_cache_dtype") or "auto"
    attention = plan.drafter.attention if plan.drafter else None
    latents = attention is not None and attention.kind == "mla"
    return own or ("auto" if inherited in FP8 and not latents else inherited)


def _drafting(plan: Candidate) -> str | None:
    """Why it cannot draft as planned. Raises the engine's own `CheckpointError` for target and drafter."""
    target, drafter = target_config(plan.target), plan.drafter
    if plan.method in LOOKUPS and plan.method != LOOKUP:
        return f"{plan.text('method')} and the lookup method of the embedded engine is {LOOKUP}"
    if drafter is None:
        if plan.method in (None, LOOKUP, *OF_EMBEDDED):
            return None
        return f"{plan.text('method')} and the embedded engine drafts by {', '.join((*OF_EMBEDDED, LOOKUP))}"
    reason = cannot_run(drafter, "embedded")
    if reason is not None:
        return f"{drafter.path} drafts by {drafter.method}, and {reason}"
    if drafter.config_format == "inside the target":
        mtp_config(plan.target, target)
    else:
        drafter_config(drafter, plan.target)
    return None


def not_intended(plan: Candidate, folders: Mapping[str, str], demo: bool) -> str | None:
    """Why a user who names no engine probably does not want this one, None if they may.

    `demo`: the plan is for the demo pair, which runs on the embedded engine whatever GPUs there are.
    """
    gpus, target = plan.settings.get("gpus"), plan.target
    if gpus is not None and gpus.value not in (None, "auto"):
        return f"{plan.text('gpus')} and the embedded engine {_CPU}"
    for name in RANKS:
        if plan.size(name) > 1 and not demo:
            return f"{plan.text(name)} and the embedded engine {_CPU}"
    if plan.gpus is not None and not demo:
        return f"this machine has {plan.gpus} and the embedded engine {_CPU}"
    if os.path.isabs(target.path) and not has_weights(folders["target"]):
        return f"{target.path} has no weights, which the embedded engine needs"
    return None


def _too_large(plan: Candidate) -> str | None:
    here, ranks = machine_memory(), embedded_sizes(plan).tensor
    parameters = plan.target.weights.parameters if ranks == 1 else ranks * _of_a_rank(plan)
    needed = parameters * _width(plan)
    if here is None or needed <= here:
        return None
    return (
        f"{plan.target.path} has {plan.target.weights.parameters / 1e9:,.0f}B parameters, which take "
        f"{needed / 1e9:,.0f} GB in the embedded engine, and this machine has {here / 1e9:,.0f}"
    )


def _width(plan: Candidate) -> int:
    """Bytes of a weight."""
    return kernels_here().weight_bytes(plan.value("dtype"), plan.value("quantization"), plan.target.dtype)


def _of_a_rank(plan: Candidate) -> int:
    """How many parameters of the target each rank has."""
    return rank_parameters(target_config(plan.target), embedded_sizes(plan).tensor)


def _ranks(plan: Candidate) -> list[Advice]:
    """A note on the memory that each rank takes."""
    sizes = embedded_sizes(plan)
    if sizes.tensor == 1:
        return []
    own, whole = _of_a_rank(plan) * _width(plan), plan.target.weights.parameters * _width(plan)
    message = (
        f"{plan.text(RANKS[0])}: each rank has {own / 1e9:,.2f} GB of the target's {whole / 1e9:,.2f}, and "
        f"{rank_cache_bytes(plan):,} bytes of its KV cache for each token; drafter and scheduler are on the first"
    )
    return [Advice("note", RANKS[0], message)]


def rank_cache_bytes(plan: Candidate) -> int:
    """Bytes of the target's KV cache per token on each rank."""
    sizes, kind = embedded_sizes(plan), plan.value("kv_cache_dtype") or "auto"
    own = part(target_config(plan.target), sizes.tensor)
    if kind == "fp8_ds_mla" and own.latent_widths is not None:
        row = packed_bytes(*own.latent_widths)
    else:
        # FP8 and a cache that ranks share are of latents, even where heads would be fewer numbers.
        latents = own.latent_widths if kind in FP8 or sizes.context > 1 else None
        stored = plan.value("dtype") if kind == "auto" else kind
        row = (sum(latents) if latents else own.cache_width) * {"fp8": 1, "bfloat16": 2}.get(stored, 4)
    return -(-own.num_hidden_layers * row // sizes.context)


def machine_memory() -> int | None:
    """The memory of this machine in bytes, None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def compute(settings: Mapping[str, Setting[Any]]) -> Setting[str]:
    """This machine's processor, the kernel that multiplies by the weights, and how many threads compute, such as
    "avx512, float32 in float16, 4 threads"."""
    shown = kernels_here().shown(settings["dtype"].value, settings["quantization"].value)
    threads = settings["threads"].value or max(1, default_threads() // (settings[RANKS[0]].value or 1))
    return Setting(f"{shown}, {threads} {'thread' if threads == 1 else 'threads'}", "this processor")


#: What a type of weights gains where its kernel is one of these.
_INT8_GAINS: Mapping[str, str] = {
    "7 bit digits": "has no VNNI instructions, so int8 takes up to twice as long as float32 and only saves memory",
    "float64": "has no kernel for int8, so it takes several times as long as float32 and only saves memory",
    "float16": "has no VNNI instructions, so int8 weights are multiplied in 16 bits: faster than float32 only if they "
    "were not published in bfloat16 or float16, because float32 keeps those in 16 bits, too",
}
_BFLOAT16_GAINS: Mapping[str, str] = {
    "converted": "has no bfloat16 instructions, so verifying drafts takes about twice as long as in float32; weights "
    "take half of the memory",
    "float16": "has no bfloat16 instructions, so float32 is a tenth faster; it is exact, and keeps weights that were "
    "published in 16 bits as they are",
}


def _slow_products(plan: Candidate) -> list[Advice]:
    """A note on types of weights that are no faster than float32 on this processor. docs/engine.md has the ratios."""
    kernels = kernels_here()
    if plan.value("quantization") == "int8":
        setting, why = "quantization", _INT8_GAINS.get(kernels.int8)
    elif plan.value("dtype") == "bfloat16":
        setting, why = "dtype", _BFLOAT16_GAINS.get(kernels.bfloat16)
    else:
        return []
    message = f"{plan.text(setting)}: this processor ({kernels.processor}) {why}"
    return [] if why is None else [Advice("note", setting, message)]


def _unscaled(plan: Candidate, folder: str) -> list[Advice]:
    """A warning if an FP8 cache needs scales that the checkpoint does not have."""
    if plan.value("kv_cache_dtype") != "fp8" or not has_weights(folder) or cache_scales(read_headers(Path(folder))):
        return []
    message = (
        f"{plan.text('kv_cache_dtype')} and {plan.target.path} has no scales for it (k_scale), so 1 is used: what is "
        "over 448 in a latent is stored as 448; fp8_ds_mla makes scales of its own"
    )
    return [Advice("warning", "kv_cache_dtype", message)]


def check(plan: Candidate, folder: str) -> list[Advice]:
    """Check the settings of a complete plan, whose target is in `folder`, and return what there is to know.

    Raises `PlanError` for settings that contradict each other.
    """
    for name in ("draft_tokens", "max_draft_tokens"):
        if plan.size(name) > DRAFT_TOKENS:
            raise PlanError(
                f"{plan.text(name)}, but the embedded engine drafts at most {DRAFT_TOKENS} tokens a step: set "
                f"--{name.replace('_', '-')}"
            )
    context, batched = plan.value("context"), plan.value("max_batched_tokens")
    if context is not None and context < 2:
        raise PlanError(f"{plan.text('context')}, which has no room for a prompt and an answer: set --context")
    if batched is not None and batched < plan.size("max_batch"):
        raise PlanError(
            f"{plan.text('max_batched_tokens')} but {plan.text('max_batch')}: a step has at least one token of each "
            "running request: set --max-batched-tokens or --max-batch"
        )
    if plan.value("chunked_prefill") is False and plan.value("max_batched_tokens") < whole_prompts(plan.settings):
        raise PlanError(
            f"{plan.text('chunked_prefill')} but {plan.text('max_batched_tokens')}: without chunks, "
            f"a step has up to {whole_prompts(plan.settings)} tokens ({plan.text('max_batch')}, "
            f"{plan.text('context')}): leave one of them out"
        )
    return [*_ranks(plan), *_slow_products(plan), *_unscaled(plan, folder), *_idle(plan)]


def _idle(plan: Candidate) -> list[Advice]:
    """Warnings about settings of drafting that a source sets but that have no effect, such as without a drafter."""
    idle: dict[str, str] = {}
    if plan.value("gate") == "off" and plan.size("max_draft_tokens") > plan.size("draft_tokens"):
        idle["max_draft_tokens"] = f"{plan.text('gate')}, which always drafts draft_tokens"
    if plan.method in LOOKUPS:
        idle |= dict.fromkeys(_DRAFTER_SETTINGS, f"{plan.method} drafts from earlier text, without a model")
    if not plan.size("draft_tokens") or plan.method is None:
        idle |= dict.fromkeys((*_DRAFTER_SETTINGS, *GATE), "nothing drafts")
    return [
        Advice("warning", name, f"{plan.text(name)}: {reason}, so it has no effect")
        for name, reason in idle.items()
        if plan.value(name) is not None and plan.settings[name].source != "default"
    ]


def whole_prompts(settings: Mapping[str, Setting[Any]]) -> int:
    """How many tokens a step must be able to compute, so that no prompt has to be computed in parts."""
    tokens: int = settings["context"].value * settings["max_batch"].value
    return tokens
