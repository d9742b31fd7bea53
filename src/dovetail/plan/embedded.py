"""What the embedded engine can run and what it is given: why it cannot, and which values its settings may have.

Configs are held against the engine's own checks, which need no torch: what is planned for it is what it will load.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

from dovetail.checkpoints.files import has_weights
from dovetail.engine.compute import kernels_here
from dovetail.engine.config import drafter_config, mtp_config, target_config
from dovetail.errors import CheckpointError, PlanError
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.drafter_support import cannot_run
from dovetail.plan.layers import Setting
from dovetail.plan.methods import LOOKUPS, OF_EMBEDDED
from dovetail.plan.options import BY_NAME, GATE
from dovetail.plan.parallel import SIZES

#: Its lookups, which go on as long as what they find agrees, are the kind that other engines call suffix decoding.
LOOKUP = "suffix"
#: As many tokens as its lookups draft where nobody says: the K with which docs/decisions/0011 was measured.
LOOKUP_TOKENS = 5
DRAFT_TOKENS = 8  # the longest with which docs/decisions/0011 was measured
_CPU = "computes on the CPU: --engine embedded where that is meant"
_BACKENDS, _CACHES = ("auto", "matmul", "sdpa"), ("auto", "bfloat16")
_OF_DRAFTERS = ("draft_sampling", "draft_kv_cache_dtype", "draft_attention_backend")
#: Values of settings that others have more of.
VALUES: Mapping[str, tuple[str, ...]] = {
    "dtype": ("float32", "bfloat16"),
    "quantization": ("int8",),
    "kv_cache_dtype": _CACHES,
    "attention_backend": _BACKENDS,
    "draft_kv_cache_dtype": _CACHES,
    "draft_attention_backend": _BACKENDS,
}


def why_not(plan: Candidate) -> str | None:
    """Why it cannot run what is said, None where it can."""
    try:
        why = _drafting(plan)
    except CheckpointError as error:
        return error.message
    if why is not None:
        return why
    for name in SIZES:
        if plan.size(name) > 1:
            return f"{plan.text(name)} and the embedded engine runs on one device"
    for name, has in VALUES.items():
        if plan.value(name) not in (None, *has):
            # A word of a closed list is another engine's, and not a slip.
            near = () if BY_NAME[name].choices else difflib.get_close_matches(plan.value(name).lower(), has, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            return f"{plan.text(name)} and the embedded engine has {' or '.join(has)}{hint}"
    return _too_large(plan)


def _drafting(plan: Candidate) -> str | None:
    """Raises `CheckpointError` as the engine does when it looks target and drafter over."""
    target, drafter = target_config(plan.target), plan.drafter
    if plan.method in LOOKUPS and plan.method != LOOKUP:
        return f"{plan.text('method')} and the embedded engine looks earlier text up by {LOOKUP}"
    if drafter is None:
        if plan.method in (None, LOOKUP, *OF_EMBEDDED):
            return None
        return f"{plan.text('method')} and the embedded engine drafts by {', '.join((*OF_EMBEDDED, LOOKUP))}"
    why = cannot_run(drafter, "embedded")
    if why is not None:
        return f"{drafter.path} drafts by {drafter.method}, and {why}"
    if drafter.config_format == "inside the target":
        mtp_config(plan.target, target)
    else:
        drafter_config(drafter, plan.target)
    return None


def not_intended(plan: Candidate, folders: Mapping[str, str], demo: bool) -> str | None:
    """Why it is not what somebody means who does not say an engine, None where it may be.

    The demo pair runs on it whatever GPUs are found.
    """
    gpus, target = plan.settings.get("gpus"), plan.target
    if gpus is not None and gpus.value not in (None, "auto"):
        return f"{plan.text('gpus')} and the embedded engine {_CPU}"
    if plan.gpus is not None and not demo:
        return f"this machine has {plan.gpus} and the embedded engine {_CPU}"
    if os.path.isabs(target.path) and not has_weights(folders["target"]):
        return f"{target.path} holds no weights, which the embedded engine would load"
    return None


def _too_large(plan: Candidate) -> str | None:
    here = machine_memory()
    width = 1 if plan.value("quantization") == "int8" else 2 if plan.value("dtype") == "bfloat16" else 4
    needed = plan.target.weights.parameters * width
    if here is None or needed <= here:
        return None
    return (
        f"{plan.target.path} has {plan.target.weights.parameters / 1e9:,.0f}B parameters, which take "
        f"{needed / 1e9:,.0f} GB in the embedded engine, and this machine has {here / 1e9:,.0f}"
    )


def machine_memory() -> int | None:
    """Bytes of this machine's memory, None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def compute(settings: Mapping[str, Setting[Any]]) -> Setting[str]:
    """What this machine's processor is, and by which kernel it multiplies by the weights: "avx2, float32 packed"."""
    shown = kernels_here().shown(settings["dtype"].value, settings["quantization"].value)
    return Setting(shown, "this processor")


def _slow_products(plan: Candidate) -> list[Advice]:
    """A note for types of weights that this processor multiplies by slowly. Ratios: docs/engine.md."""
    kernels, wide = kernels_here(), plan.value("dtype") == "bfloat16"
    if plan.value("quantization") == "int8":
        setting, slow = "quantization", kernels.int8 != "8 bit digits"
        why = "has no VNNI instructions, so int8 products are exact but up to twice as slow as float32's"
    else:
        setting, slow = "dtype", wide and kernels.bfloat16 != "packed"
        why = "has no bfloat16 instructions, so verifying drafts takes about twice as long as in float32"
    saved = "a quarter" if setting == "quantization" else "half"
    message = f"{plan.text(setting)}: this processor ({kernels.processor}) {why}; weights take {saved} of the memory"
    return [Advice("note", setting, message)] if slow else []


def check(plan: Candidate) -> list[Advice]:
    """Which settings have no effect. All of them are settled.

    Raises `PlanError` for those that do not go with one another.
    """
    for name in ("draft_tokens", "max_draft_tokens"):
        if plan.size(name) > DRAFT_TOKENS:
            raise PlanError(
                f"{plan.text(name)}, at most {DRAFT_TOKENS} can be drafted a step by the embedded engine: say "
                f"--{name.replace('_', '-')}"
            )
    context, batched = plan.value("context"), plan.value("max_batched_tokens")
    if context is not None and context < 2:
        raise PlanError(f"{plan.text('context')}, which has no room for a prompt and an answer: say --context")
    if batched is not None and batched < plan.size("max_batch"):
        raise PlanError(
            f"{plan.text('max_batched_tokens')} but {plan.text('max_batch')}: a step has at least a token of each "
            "running request: say --max-batched-tokens or --max-batch"
        )
    if plan.value("chunked_prefill") is False and plan.value("max_batched_tokens") < whole_prompts(plan.settings):
        raise PlanError(
            f"{plan.text('chunked_prefill')} but {plan.text('max_batched_tokens')}: where no prompt is computed in "
            f"parts, a step has up to {whole_prompts(plan.settings)} tokens ({plan.text('max_batch')}, "
            f"{plan.text('context')}): leave one of them out"
        )
    return [*_slow_products(plan), *_idle(plan)]


def _idle(plan: Candidate) -> list[Advice]:
    """A warning for each setting of drafting that somebody gave where there is no such drafter, or no gate."""
    idle: dict[str, str] = {}
    if plan.value("gate") == "off" and plan.size("max_draft_tokens") > plan.size("draft_tokens"):
        idle["max_draft_tokens"] = f"{plan.text('gate')}, which drafts draft_tokens always"
    if plan.method in LOOKUPS:
        idle |= dict.fromkeys(_OF_DRAFTERS, f"{plan.method} looks earlier text up and has no model")
    if not plan.size("draft_tokens") or plan.method is None:
        idle |= dict.fromkeys((*_OF_DRAFTERS, *GATE), "nothing drafts")
    return [
        Advice("warning", name, f"{plan.text(name)}: {why}, so it has no effect")
        for name, why in idle.items()
        if plan.value(name) is not None and plan.settings[name].source != "default"
    ]


def whole_prompts(settings: Mapping[str, Setting[Any]]) -> int:
    """Tokens that a step must be allowed, lest any prompt be computed in parts."""
    tokens: int = settings["context"].value * settings["max_batch"].value
    return tokens
