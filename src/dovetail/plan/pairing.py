"""Checks that a drafter fits its target (widths, vocabularies, layers, families, positions, lengths) and its engine.

Every refusal names both sides and a way out. If a rule is an engine's, the docstring names the file in vLLM 0.33.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.drafter_fit import misfit
from dovetail.checkpoints.methods import OF_EMBEDDED
from dovetail.checkpoints.target import Target
from dovetail.errors import PlanError
from dovetail.plan.candidate import Advice, Candidate


def check(plan: Candidate, drafter: Drafter) -> list[Advice]:
    """Check the pair, and return what there is to know. Raises `PlanError` for the first thing that does not fit."""
    _engine(plan, drafter)
    _pair(plan.target, drafter)
    return [*_named_target(plan.target, drafter), *_positions(plan, drafter), *_length(plan, drafter)]


def longest_context(target: Target, drafter: Drafter | None) -> tuple[int, str]:
    """The longest context that target and drafter support, and whose limit it is. It is the default context."""
    limit = _limit(drafter)
    if drafter is not None and limit is not None and limit < target.context:
        return limit, f"the drafter's ({drafter.path}: max_position_embeddings)"
    return target.context, f"the target's ({target.context_note})"


def _misfit(target: Target, drafter: Drafter, why: str) -> PlanError:
    return PlanError(
        f"{drafter.path} does not fit {target.path}: {why}. Use a drafter made for this target, or `--drafter none`"
    )


def _engine(plan: Candidate, drafter: Drafter) -> None:
    if plan.engine in ("embedded", "vllm", "sglang", "trtllm", "llama.cpp"):
        reason = cannot_run(drafter, plan.engine)
        if reason is not None:
            raise PlanError(
                f"engine {plan.engine} cannot run {drafter.path} ({drafter.method}, {drafter.config_format}): "
                f"{reason}. Use another drafter or engine, or `--drafter none`"
            )


def cannot_run(drafter: Drafter, engine: str) -> str | None:
    """Why `engine` ("embedded", "vllm", "sglang", "trtllm", "llama.cpp") cannot run the drafter, None when it can.

    The embedded engine's own check of the configs (`plan.embedded`) finds further reasons.

    Sources: vLLM 0.33 (config/speculative.py, models/registry.py), SGLang 0.5.23 (speculative/spec_info.py, models/)
    and TensorRT-LLM's documentation of speculative decoding.
    """
    if drafter.hidden is None or drafter.attention is None or drafter.vocab is None:
        return "its config leaves out hidden_size, num_attention_heads or vocab_size, so no engine can build it"
    if drafter.method in ("medusa", "mlp_speculator"):
        return f"{drafter.method} heads were dropped by engines that still run EAGLE-3"
    if engine == "embedded":
        if drafter.method not in OF_EMBEDDED:
            return "the embedded engine drafts with EAGLE-3, P-EAGLE, MTP layers inside the target and draft models"
        if drafter.method == "mtp" and drafter.config_format != "inside the target":
            return "the embedded engine drafts with MTP layers inside the target only"
    elif engine == "vllm":
        mla = drafter.attention.kind == "mla"
        if drafter.method == "domino":
            return "vLLM 0.33 has no Domino; SGLang runs it as DFLASH"
        if drafter.config_format == "speculators" and drafter.method in ("eagle3", "peagle") and mla:
            return "vLLM 0.33 reads speculators drafters of model_type llama or qwen3 only; write it as a plain config"
        if drafter.method == "peagle" and drafter.mask_token is None:
            return "vLLM 0.33 needs a P-EAGLE drafter's mask_token_id, and its config has none"
    elif engine == "sglang":
        if drafter.method == "peagle":
            return "SGLang 0.5.23 has no P-EAGLE; vLLM runs it"
    elif engine == "llama.cpp" and drafter.method in ("peagle", "domino"):
        return f"llama.cpp has no {drafter.method}; it runs draft models, EAGLE-3, MTP, DFlash and DSpark"
    elif engine == "trtllm" and drafter.method in ("dspark", "domino", "peagle"):
        return f"TensorRT-LLM has no {drafter.method}; it runs EAGLE-3, DFlash, MTP and draft models"
    return None


#: Drafters for another model than their name says, which their config does not declare: part of the path -> the
#: model_types of their targets, the target, and the source. vLLM's recipe for Kimi-K2.5 names this drafter too, but
#: those who ran the pair report that it is not compatible.
_PAIRS: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "kimi-k2.5-thinking-eagle3": (
        ("kimi_k2", "deepseek_v3"),
        "nvidia/Kimi-K2-Thinking-NVFP4, the text model",
        "README of the vllm-kimi25-eagle image",
    ),
}


def _pair(target: Target, drafter: Drafter) -> None:
    for part, (families, only, source) in _PAIRS.items():
        if part in drafter.path.lower() and target.family not in families:
            multimodal = ", multimodal" if target.multimodal else ""
            this = f"this one is {target.architecture} ({target.family}{multimodal})"
            raise _misfit(target, drafter, f"it works only with {only} ({source}), {this}")
    reason = misfit(drafter, target)
    if reason is not None:
        raise _misfit(target, drafter, reason)
    draft = drafter.draft_vocab
    if draft is not None and draft < target.vocab and drafter.has_vocab_map is False:
        raise PlanError(
            f"{drafter.path}: draft_vocab_size is {draft} of the target's {target.vocab} but its weights hold no d2t, "
            "the map from one vocabulary to the other: fetch or convert the drafter again"
        )


def _named_target(target: Target, drafter: Drafter) -> list[Advice]:
    """A warning if the drafter names another target. Models of one shape can differ, as Qwen3-30B-A3B and its Coder."""
    verifier = drafter.verifier
    if drafter.config_format != "speculators" or verifier is None or _letters(verifier) in _letters(target.path):
        return []
    return [
        Advice(
            "warning",
            "drafter",
            f"{drafter.path} was made for {verifier}: with {target.path} fewer drafts may be accepted (the "
            "text is the target's in any case)",
        )
    ]


def _letters(path: str) -> str:
    """The last part of `path`, or all of a path in the hub's cache, reduced to letters and digits for comparison."""
    name = path if "snapshots" in path else path.rstrip("/").rpartition("/")[2]
    return "".join(letter for letter in name.lower() if letter.isalnum())


#: Rope types whose table of positions can be extended (config/speculative.py: _CACHE_ONLY_ROPE_TYPES).
_EXTENSIBLE = ("default", "linear", "llama3", "ntk", "proportional", "mrope")


def _limit(drafter: Drafter | None) -> int | None:
    """The longest context that the drafter allows, None if it sets no limit.

    A drafter uses the target's positions. A rope that only fills a table is extended to them. A rope whose frequencies
    depend on the trained length (YaRN, dynamic, longrope) is not, and limits the endpoint, as the context of a draft
    model does (config/vllm.py: _limit_max_model_len_to_draft).
    """
    if drafter is None or drafter.context is None or drafter.rope is None:
        return None
    extends = drafter.rope.type in _EXTENSIBLE and drafter.method != "draft_model"
    return None if extends else drafter.context


def _positions(plan: Candidate, drafter: Drafter) -> list[Advice]:
    """Check the drafter's rope: three-part positions (mrope) only with the target's, and the context of the plan."""
    rope, target = drafter.rope, plan.target
    if rope is not None and rope.mrope and not target.rope.mrope:
        raise _misfit(
            target,
            drafter,
            f"its positions have three parts (rope type {rope.type}, mrope), the target's have one (rope type "
            f"{target.rope.type})",
        )
    context = plan.value("context") or target.context
    limit = _limit(drafter)
    if limit is not None and rope is not None and limit < context:
        context_text = plan.text("context") if plan.value("context") else f"context is the target's {context}"
        raise PlanError(
            f"{context_text} but {drafter.path} ends at {limit} (max_position_embeddings, rope type {rope.type}): use "
            f"--context {limit}, or `--drafter none`"
        )
    below = plan.settings.get("speculate_below_context")
    own = below is not None and below.source != "default" and below.value is not None
    if drafter.context is None or drafter.context >= (min(context, below.value) if own and below else context):
        return []
    measured = plan.value("gate") == "measured"
    then = ", which the gate measures" if measured else "" if own else f", so the limit is {drafter.context}"
    return [
        Advice(
            "note" if measured else "warning",
            "speculate_below_context",
            f"{drafter.path} was trained on {drafter.context} tokens, the context is {context}: beyond, fewer "
            f"drafts are accepted{then}; --speculate-below-context sets another limit",
        )
    ]


def trained_limit(plan: Candidate) -> int | None:
    """The default of speculate_below_context: where the drafter's training ends, if that is within the context.

    None with a measured gate, which notices where drafts are no longer accepted: the number in a config is as often the
    size of a table as the trained length.
    """
    drafter, context = plan.drafter, plan.value("context") or plan.target.context
    if drafter is None or drafter.context is None or drafter.context >= context:
        return None
    return None if plan.value("gate") == "measured" or not plan.value("draft_tokens") else drafter.context


def _length(plan: Candidate, drafter: Drafter) -> list[Advice]:
    """A block method drafts at most its block; MTP layers draft in whole rounds (config/speculative.py)."""
    tokens, layers = plan.value("draft_tokens"), drafter.layers
    if not tokens:
        return []
    if drafter.most_tokens is not None and tokens > drafter.most_tokens:
        raise PlanError(
            f"{plan.text('draft_tokens')} but {drafter.path} ({drafter.method}) drafts at most {drafter.most_tokens} a "
            f"step (block_size {drafter.block_size}): set a smaller --draft-tokens"
        )
    # All layers of a drafter beside the target, such as Gemma's, draft one token.
    if drafter.method != "mtp" or drafter.config_format == "plain" or not layers or tokens <= layers:
        return []
    if tokens % layers:
        raise PlanError(
            f"{plan.text('draft_tokens')} but {drafter.path} has {layers} MTP layers, which draft in whole rounds: "
            f"set a multiple of {layers}, or less"
        )
    return [
        Advice(
            "note",
            "draft_tokens",
            f"{tokens} tokens a step from {layers} MTP layer{'s' if layers > 1 else ''}: the same layers run again for "
            "the further tokens, which are accepted less often",
        )
    ]
